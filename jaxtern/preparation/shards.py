"""Writes one shard: reads, checks and stores its examples. A shard has its final name only once it is whole."""

import contextlib
import errno
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxtern.data.any_image import DamagedImage
from jaxtern.data.durable import replace_durably, sync_path
from jaxtern.preparation.images import Rules, Stored, store_image
from jaxtern.preparation.plan import Shard
from jaxtern.preparation.source import Item

WORK = ".preparation"  # folder in OUT for unfinished work
# One record a group, to be read alone; compressing would not shrink images, and makes writing six times slower.
_WRITER_OPTIONS = "group_size:1,uncompressed"


@dataclass
class ShardResult:
    """The result of writing a shard."""

    images: int = 0  # number of images
    file_bytes: int = 0  # size of the file
    classes: dict[str, int] = field(default_factory=dict)  # number of images by label
    # names of images that were encoded again because they broke the rules
    repaired: list[str] = field(default_factory=list)
    left_out: list[list[str]] = field(default_factory=list)  # names of damaged images, each with the reason
    # smallest and largest height, smallest and largest width in pixels; empty without images
    shapes: list[int] = field(default_factory=list)

    def add(self, item: Item, stored: Stored) -> None:
        height, width = stored.shape
        low_height, high_height, low_width, high_width = self.shapes or [height, height, width, width]
        self.shapes = [min(low_height, height), max(high_height, height), min(low_width, width), max(high_width, width)]
        self.images += 1
        self.classes[str(item.label)] = self.classes.get(str(item.label), 0) + 1
        if stored.repaired:
            self.repaired.append(item.name)


class Task(NamedTuple):
    """A shard to write in the folder `out`, with all that this needs of source and plan; can be pickled."""

    out: Path
    shard: Shard
    read: Callable[[tuple], bytes | np.ndarray]
    rules: Rules
    class_names: tuple[str, ...]


def make_features(
    class_names: tuple[str, ...], rules: Rules, height: int | None = None, width: int | None = None
) -> Any:
    """TFDS's features of an example; height and width are given if all images share them."""
    from tensorflow_datasets import features  # here because importing it takes half a second

    image = features.Image(shape=(height, width, rules.channels), encoding_format=rules.encoding)
    label = features.ClassLabel(names=list(class_names))
    return features.FeaturesDict({"image": image, "label": label, "file_name": features.Text()})


def write_shard(task: Task, on_image: Callable[[], object]) -> ShardResult:
    """Writes a shard and its result, always with the same bytes, then gives it its final name.

    It calls `on_image` after every image; an exception from that stops the shard. Raises OSError if the shard cannot be
    written, ValueError if an image cannot be stored by the rules.
    """
    path = task.out / task.shard.file_name
    temporary = task.out / WORK / f"{path.name}.{os.getpid()}.tmp"
    try:
        result = _write_records(task, temporary, on_image)
        result.file_bytes = temporary.stat().st_size
        replace_durably(result_path(task.out, path.name), json.dumps(asdict(result)))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return result


def result_path(out: Path, file_name: str) -> Path:
    """The file of a shard's result until all shards are finished."""
    return out / WORK / f"{file_name}.json"


def read_result(out: Path, file_name: str) -> ShardResult | None:
    """The result of a finished shard; None if it is not finished, or its file has changed size."""
    try:
        result = ShardResult(**json.loads(result_path(out, file_name).read_text()))
        whole = (out / file_name).stat().st_size == result.file_bytes
    except (OSError, ValueError, TypeError):
        return None
    return result if whole else None


def group_by_split(shards: list[Shard], results: dict[str, ShardResult]) -> dict[str, list[ShardResult]]:
    """Groups results, given by file name, by split, in the order of the shards."""
    found: dict[str, list[ShardResult]] = {}
    for shard in shards:
        found.setdefault(shard.split, []).append(results[shard.file_name])
    return found


def _write_records(task: Task, path: Path, on_image: Callable[[], object]) -> ShardResult:
    from array_record.python.array_record_module import ArrayRecordWriter

    serialize, result = _make_serializer(task), ShardResult()
    try:
        with contextlib.closing(ArrayRecordWriter(str(path), _WRITER_OPTIONS)) as writer:
            for item in task.shard.items:
                try:
                    stored = store_image(task.read(item.location), task.rules)
                except DamagedImage as damage:
                    result.left_out.append([item.name, str(damage)])
                except ValueError as error:
                    raise ValueError(f"{item.name}: {error}") from None
                else:
                    writer.write(serialize(item, stored))
                    result.add(item, stored)
                on_image()
    except RuntimeError as error:  # ArrayRecordWriter raises this for a full disk
        raise OSError(errno.EIO, f"cannot be written: {error}", str(path.parent.parent)) from None
    sync_path(path)
    return result


def _make_serializer(task: Task) -> Callable[[Item, Stored], bytes]:
    """Makes the function that serializes an example for TFDS."""
    from tensorflow_datasets.core.example_serializer import ExampleSerializer

    features = make_features(task.class_names, task.rules)
    serializer = ExampleSerializer(features.get_serialized_info())

    def serialize(item: Item, stored: Stored) -> bytes:
        file_name = item.name.encode(errors="replace")  # file names need not be valid text
        example = {"image": stored.content, "label": item.label, "file_name": file_name}
        message: Any = serializer.get_tf_example(features.encode_example(example))
        # The order of features would otherwise differ between processes.
        return message.SerializeToString(deterministic=True)

    return serialize
