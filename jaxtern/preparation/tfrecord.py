"""Shards of tf.Example records, as TernGrad's, slim's and other preparations wrote them, without TensorFlow."""

import math
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import tqdm
from google.protobuf.message import DecodeError

from jaxtern.preparation.boxes import clean_boxes
from jaxtern.preparation.files import read_span
from jaxtern.preparation.source import Box, DamagedImage, Encoding, Item, Source

_SPLIT = re.compile(r"(?:.*[_.-])?(train|validation|val|test)(?:[_.-].*)?")
_SHARD = re.compile(r"\.tfrecords?\b|-\d{5}-of-\d{5}")
_EDGES = ("ymin", "xmin", "ymax", "xmax")
_LOSSLESS = ("png", "raw")  # image/format in small letters
_HEADER, _FOOTER = 12, 4  # length and its checksum before, a checksum behind


class _Record(NamedTuple):
    """What a record says, but for the image itself."""

    item: Item
    class_name: str
    is_lossless: bool
    boxes_given: int


def find_shards(folder: Path) -> dict[str, list[Path]]:
    """Files of records by split, sorted."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        match = _SPLIT.fullmatch(path.name)
        if match and _SHARD.search(path.name) and path.is_file():
            found.setdefault("validation" if match[1] == "val" else match[1], []).append(path)
    return {split: found[split] for split in ("train", "validation", "test") if split in found}


def open_tfrecords(folder: Path, label_offset: int) -> Source:
    """The splits that its files are called by; all records are read once for their labels,
    with a bar on a terminal.

    Features taken: image/encoded, image/class/label, and where they are there image/class/synset or image/class/text
    (the class's name), image/filename, image/format, image/object/bbox/{xmin,xmax,ymin,ymax}. Where the format is RAW,
    as TernGrad's raw_pixel writes it, image/encoded holds pixels: image/height x image/width x image/channels bytes.

    Args:
      folder: holds files such as train-00000-of-01024 and validation-00000-of-00128, or mnist_train.tfrecord.
      label_offset: what is added to labels; -1 where 0 is the background, as in records of ImageNet.

    Raises:
      ValueError: if there are none, or one is cut short, or holds something else.
    """
    shards = find_shards(folder)
    if not shards:
        raise ValueError(f"SOURCE={str(folder)!r}: holds no records, as train-00000-of-00010 or train.tfrecord")
    total = sum(path.stat().st_size for paths in shards.values() for path in paths)
    with tqdm.tqdm(total=total, unit="B", unit_scale=True, desc="looking for labels", disable=None) as bar:
        records = {
            split: [record for path in paths for record in _list_records(path, label_offset, bar.update)]
            for split, paths in shards.items()
        }
    everything = [record for listed in records.values() for record in listed]
    if not everything:
        raise ValueError(f"SOURCE={str(folder)!r}: its files hold no records")
    names = _name_classes(folder, everything, label_offset)
    splits = {split: [record.item for record in listed] for split, listed in records.items()}
    encoding: Encoding = "png" if all(record.is_lossless for record in everything) else "jpeg"
    dropped = sum(record.boxes_given - len(record.item.boxes) for record in everything)
    remarks = (f"{dropped:,} boxes without area dropped",) if dropped else ()
    has_boxes = any(record.item.boxes for record in everything)
    return Source(names, splits, read_record_image, encoding, has_boxes=has_boxes, remarks=remarks)


def read_record_image(location: tuple) -> bytes | np.ndarray:
    """The bytes of image/encoded in the record at (path, offset, length), as pixels uint8[H, W, C] if they are RAW."""
    where = f"{location[0]} at {location[1]}"
    features = _parse(read_span(location), where)
    images = features["image/encoded"].bytes_list.value
    if len(images) != 1:
        raise DamagedImage("its record has no image/encoded")
    return _shape_pixels(images[0], features, where) if _format(features) == "raw" else images[0]


def _shape_pixels(encoded: bytes, features: Any, where: str) -> np.ndarray:
    shape = [_integer(features, f"image/{side}") for side in ("height", "width", "channels")]
    if min(shape) < 1 or shape[2] not in (1, 3) or math.prod(shape) != len(encoded):
        raise ValueError(
            f"{where}: the record's image is RAW and has {len(encoded)} bytes, but its height, width and channels are"
            f" {shape[0]}, {shape[1]} and {shape[2]}; channels must be 1 or 3, and their product the bytes"
        )
    return np.frombuffer(encoded, np.uint8).reshape(shape)


def _list_records(path: Path, label_offset: int, on_bytes: Callable[[int], object]) -> Iterator[_Record]:
    for number, (place, content) in enumerate(_walk(path)):
        on_bytes(_HEADER + len(content) + _FOOTER)
        where = f"{path.name}/{number:05d}"
        features = _parse(content, f"{path}: record {number}")
        labels = features["image/class/label"].int64_list.value
        if len(labels) != 1:
            raise ValueError(f"{path}: record {number} has no image/class/label")
        label = labels[0] + label_offset
        if label < 0:
            raise ValueError(
                f"{path}: record {number} has label {labels[0]}, less than 0 with label_offset={label_offset}"
            )
        boxes = _read_boxes(features)
        kept = clean_boxes(boxes)
        file_name = _text(features, "image/filename")
        item = Item(f"{where} {file_name}".rstrip(), label, (str(path), place, len(content)), len(content), kept)
        class_name = _text(features, "image/class/synset") or _text(features, "image/class/text")
        if _format(features) == "raw" and features["image/encoded"].bytes_list.value:
            _shape_pixels(features["image/encoded"].bytes_list.value[0], features, f"{path}: record {number}")
        yield _Record(item, class_name, _format(features) in _LOSSLESS, len(boxes))


def _walk(path: Path) -> Iterator[tuple[int, bytes]]:
    """Place and content of every record."""
    place, end = 0, path.stat().st_size
    with path.open("rb") as file:
        while place < end:
            header = file.read(_HEADER)
            length = struct.unpack("<Q", header[:8])[0] if len(header) == _HEADER else end
            if place + _HEADER + length + _FOOTER > end:
                raise ValueError(f"{path}: is cut short or no file of records: at {place} it wants {length} bytes more")
            yield place + _HEADER, file.read(length)
            file.seek(_FOOTER, 1)
            place += _HEADER + length + _FOOTER


def _parse(content: bytes, where: str) -> Any:
    from tensorflow_datasets.proto import tf_example_pb2 as protos  # here, because it takes half a second

    try:
        return cast(Any, protos).Example.FromString(content).features.feature
    except DecodeError:
        raise ValueError(f"{where} is no tf.Example") from None


def _text(features: Any, key: str) -> str:
    values = features[key].bytes_list.value
    return values[0].decode(errors="replace") if values else ""


def _integer(features: Any, key: str) -> int:
    values = features[key].int64_list.value
    return values[0] if values else 0


def _format(features: Any) -> str:
    return _text(features, "image/format").lower()


def _read_boxes(features: Any) -> list[Box]:
    edges = [features[f"image/object/bbox/{edge}"].float_list.value for edge in _EDGES]
    return [(y0, x0, y1, x1) for y0, x0, y1, x1 in zip(*edges, strict=False)]


def _name_classes(folder: Path, records: list[_Record], label_offset: int) -> tuple[str, ...]:
    """The name of every class, its number where records have none or one name stands for several."""
    names: dict[int, str] = {}
    for record in records:
        names.setdefault(record.item.label, record.class_name)
    if 0 not in names and label_offset == 0:
        raise ValueError(f"SOURCE={str(folder)!r}: has no label 0; where labels start at 1, set --label_offset=-1")
    if max(names) >= len(records):
        raise ValueError(f"SOURCE={str(folder)!r}: has label {max(names)}, but only {len(records):,} images")
    listed = [names.get(label, "") for label in range(max(names) + 1)]
    unique = len(set(filter(None, listed))) == len(names)
    return tuple(name if name and unique else str(label) for label, name in enumerate(listed))
