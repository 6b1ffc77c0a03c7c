"""The plan of a preparation: which example goes to which shard, and an identity that tells plans apart."""

import contextlib
import dataclasses
import hashlib
import itertools
import math
import re
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxtern.data.any_image import DamagedImage, is_grey
from jaxtern.preparation.images import Rules, store_image
from jaxtern.preparation.source import Item, Source

SHARD_BYTES = 128 * 2**20
_SAMPLES = 32
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Options:
    """The options that decide which bytes are written."""

    name: str | None = None  # of the dataset; None: made from the source's path
    shards: int | None = None  # files of each split; None: as many as give about 128 MB each
    resize_shortest: int | None = None  # images with a longer shorter side, in pixels, are shrunk to this
    quality: int = 95  # of images that are encoded as JPEG, 1 to 100
    seed: int = 0  # of the order of examples

    def __post_init__(self):
        if self.name is not None and not _NAME.fullmatch(self.name):
            raise ValueError(f"name={self.name!r}: must be small letters, digits and _, and start with a letter")
        for field in ("shards", "resize_shortest"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ValueError(f"{field}={value}: must be 1 or more")
        if not 1 <= self.quality <= 100:
            raise ValueError(f"quality={self.quality}: must be from 1 to 100")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed={self.seed}: must be from 0 to 2**63 - 1")


class Shard(NamedTuple):
    """A file to write, and its examples in order."""

    split: str
    file_name: str
    items: list[Item]


@dataclass(frozen=True)
class Plan:
    """The shards of a dataset, and how to store their images; equal identities mean equal bytes."""

    name: str
    rules: Rules
    shards: list[Shard]
    identity: dict[str, Any]


def make_plan(source: Source, path: str, options: Options) -> Plan:
    """Shuffles each split over its shards; ValueError if that has fewer images than shards, or none can be read."""
    name = options.name or name_dataset(path)
    grey = _is_all_grey(source, path) if source.grey is None else source.grey
    rules = Rules(source.encoding, 1 if grey else 3, options.resize_shortest, options.quality)
    shards = [
        shard
        for split, items in source.splits.items()
        for shard in _cut(name, split, items, _count_shards(source, split, rules, options), options.seed)
    ]
    counts = dict(Counter(shard.split for shard in shards))
    # The digest covers what follows from the source.
    identity = dataclasses.asdict(options) | {"name": name, "shards": counts, "source": _digest(source)}
    return Plan(name, rules, shards, identity)


def name_dataset(path: str) -> str:
    """Makes a dataset's name from the last part of a path: lower case, without suffixes, other characters as _."""
    stem = re.sub(r"(\.(zip|tar|tgz|gz|bz2|xz))+$", "", Path(path).resolve().name.lower())
    name = re.sub(r"[^a-z0-9]+", "_", stem).strip("_")
    return name if _NAME.fullmatch(name) else f"data_{name}".rstrip("_")


def _is_all_grey(source: Source, path: str) -> bool:
    """Whether every readable image has one channel; stops at the first that has more."""
    any_readable, why = False, ""
    for item in itertools.chain(*source.splits.values()):
        try:
            if not is_grey(source.read(item.location)):
                return False
            any_readable = True
        except DamagedImage as error:
            why = f"{item.name} {error}"
    if not any_readable:
        raise ValueError(f"SOURCE={path!r}: none of its images can be decoded; {why}")
    return True


def _count_shards(source: Source, split: str, rules: Rules, options: Options) -> int:
    items = source.splits[split]
    if options.shards is None:
        return min(len(items), max(1, math.ceil(_estimate_bytes(source, items, rules) / SHARD_BYTES)))
    if options.shards > len(items):
        raise ValueError(f"shards={options.shards}: split {split} has only {len(items)} images")
    return options.shards


def _estimate_bytes(source: Source, items: list[Item], rules: Rules) -> float:
    """Estimates the stored bytes of all images, from a sample if they are shrunk."""
    total = sum(item.size for item in items)
    if rules.shortest is None:
        return total
    before = after = 0
    for item in items[:: math.ceil(len(items) / _SAMPLES)]:
        with contextlib.suppress(DamagedImage):
            after += len(store_image(source.read(item.location), rules).content)
            before += item.size
    return total * after / before if before else total


def _cut(name: str, split: str, items: list[Item], count: int, seed: int) -> list[Shard]:
    """Shuffles the items into `count` shards, whose sizes differ by at most one."""
    generator = np.random.Generator(np.random.Philox(key=[seed, zlib.crc32(split.encode())]))
    parts = np.split(generator.permutation(len(items)), [len(items) * i // count for i in range(1, count)])
    return [
        Shard(split, f"{name}-{split}.array_record-{i:05d}-of-{count:05d}", [items[row] for row in part])
        for i, part in enumerate(parts)
    ]


def _digest(source: Source) -> str:
    """A digest of everything that decides the examples, except the pixels, which would have to be read twice."""
    digest = hashlib.sha256(repr((source.class_names, source.encoding, source.grey)).encode())
    for split, items in source.splits.items():
        for item in items:
            line = (split, item.name, item.label, item.size)
            digest.update(repr(line).encode(errors="surrogateescape"))
    return digest.hexdigest()
