"""What a preparation will write: which example goes to which shard, and a digest that says whether it is the same."""

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
    """What a caller may choose; all of it decides which bytes are written.

    Attributes:
      name: of the dataset; None for one made from the source's.
      shards: of each split; None for as many as have about 128 MB each.
      resize_shortest: pixels; images whose shorter side is longer are shrunk to it.
      quality: of images that are encoded as JPEG.
      seed: of the order of examples over the shards, and of the choice of validation images.
    """

    name: str | None = None
    shards: int | None = None
    resize_shortest: int | None = None
    quality: int = 95
    seed: int = 0

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
    """One file to write, and what goes into it, in order."""

    split: str
    file_name: str
    items: list[Item]


@dataclass(frozen=True)
class Plan:
    """The shards of a dataset of this name, and how their images are stored; `identity` tells it from other plans."""

    name: str
    rules: Rules
    shards: list[Shard]
    identity: dict[str, Any]


def make_plan(source: Source, path: str, options: Options) -> Plan:
    """Shuffles the examples of each split over its shards.

    Raises:
      ValueError: if a split has fewer images than shards, or no image can be read.
    """
    name = options.name or name_dataset(path)
    grey = _is_all_grey(source, path) if source.grey is None else source.grey
    rules = Rules(source.encoding, 1 if grey else 3, options.resize_shortest, options.quality)
    shards = [
        shard
        for split, items in source.splits.items()
        for shard in _cut(name, split, items, _count_shards(source, split, rules, options), options.seed)
    ]
    counts = dict(Counter(shard.split for shard in shards))
    # what follows from the source is in its digest
    identity = dataclasses.asdict(options) | {"name": name, "shards": counts, "source": _digest(source)}
    return Plan(name, rules, shards, identity)


def name_dataset(path: str) -> str:
    """Names a dataset by the last part of a path: in small letters, without suffixes, other signs as _."""
    stem = re.sub(r"\.(zip|tar|tgz|gz)", "", Path(path).resolve().name.lower())
    name = re.sub(r"[^a-z0-9]+", "_", stem).strip("_")
    return name if _NAME.fullmatch(name) else f"data_{name}".rstrip("_")


def _is_all_grey(source: Source, path: str) -> bool:
    """Whether every image that can be read has one channel; looks no further than the first that has more."""
    any_readable = False
    for item in itertools.chain(*source.splits.values()):
        with contextlib.suppress(DamagedImage):
            if not is_grey(source.read(item.location)):
                return False
            any_readable = True
    if not any_readable:
        raise ValueError(f"SOURCE={path!r}: none of its images can be decoded")
    return True


def _count_shards(source: Source, split: str, rules: Rules, options: Options) -> int:
    items = source.splits[split]
    if options.shards is None:
        return min(len(items), max(1, math.ceil(_estimate_bytes(source, items, rules) / SHARD_BYTES)))
    if options.shards > len(items):
        raise ValueError(f"shards={options.shards}: split {split} has only {len(items)} images")
    return options.shards


def _estimate_bytes(source: Source, items: list[Item], rules: Rules) -> float:
    """Estimates the bytes of all images as stored: from a few of them, where they are shrunk."""
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
    """Shuffles the items into `count` shards, whose sizes differ by one at most."""
    generator = np.random.Generator(np.random.Philox(key=[seed, zlib.crc32(split.encode())]))
    order = generator.permutation(len(items))
    edges = [len(items) * i // count for i in range(count + 1)]
    return [
        Shard(
            split,
            f"{name}-{split}.array_record-{i:05d}-of-{count:05d}",
            [items[row] for row in order[edges[i] : edges[i + 1]]],
        )
        for i in range(count)
    ]


def _digest(source: Source) -> str:
    """Digest of all that decides an example but the pixels, of which there are too many to read twice."""
    digest = hashlib.sha256(repr((source.class_names, source.encoding, source.grey, source.has_boxes)).encode())
    for split, items in source.splits.items():
        for item in items:
            line = (split, item.name, item.label, item.size, item.boxes)
            digest.update(repr(line).encode(errors="surrogateescape"))
    return digest.hexdigest()
