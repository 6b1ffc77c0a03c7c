"""Prepared datasets: a TFDS folder of ArrayRecord shards, read at random without TensorFlow.

`python -m jaxtern.prepare` writes such folders; so does TFDS itself, for every dataset that it knows by name.
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxtern.data.dataset import NO_BOXES, Dataset, Record

TRAIN_SPLIT, TEST_SPLITS = "train", ("test", "validation")


class RecordSplit:
    """A split of a prepared dataset."""

    def __init__(self, path: Path, name: str, source: Sequence[dict], image_shape: tuple, num_classes: int):
        self._path, self._name, self._source = path, name, source
        self._image_shape, self._num_classes = image_shape, num_classes

    @property
    def size(self) -> int:
        return len(self._source)

    @property
    def image_shape(self) -> tuple[int | None, int | None, int]:
        return self._image_shape

    def read(self, index: int) -> Record:
        try:
            example = self._source[index]
        except Exception as error:  # array_record and protobuf raise many kinds for damaged bytes
            raise ValueError(f"{self.describe(index)}: cannot be read: {_first_line(error)}") from error
        label = int(example["label"])
        if not 0 <= label < self._num_classes:
            raise ValueError(f"{self.describe(index)}: label {label} is not from 0 to {self._num_classes - 1}")
        boxes = np.asarray(example.get("boxes", NO_BOXES), np.float32).reshape(-1, 4)
        return Record(example["image"], label, boxes)

    def describe(self, index: int) -> str:
        """The file that the image was made from, if it is known, else its number."""
        place = f"{self._path}: {self._name} example {index}"
        try:
            return f"{place} ({self._source[index]['file_name'].decode()})"
        except Exception:  # noqa: BLE001 - this is for messages, perhaps about this very record
            return place


def open_folder(path: str | Path, test_split: str | None = None) -> Dataset:
    """Opens a prepared dataset; images stay on disk.

    Args:
      path: the folder that holds dataset_info.json.
      test_split: what to evaluate on; None: "test", or "validation" where there is no such split.

    Raises:
      FileNotFoundError: if there is no such folder, or no dataset in it.
      ValueError: if a split or shard is missing, damaged or cut short, or the examples are not labelled images.
    """
    import tensorflow_datasets as tfds  # here, because importing it takes a second

    given, path = f"dataset={str(path)!r}", Path(path)
    if not path.is_dir():
        raise FileNotFoundError(f"{given}: no such folder")
    if not (path / "dataset_info.json").is_file():
        unfinished = any(path.glob("*array_record*"))
        why = "its preparation was not finished: run the same jaxtern.prepare again" if unfinished else "prepare one"
        raise FileNotFoundError(f"{given}: holds no dataset (there is no dataset_info.json); {why}")
    try:
        builder = tfds.builder_from_directory(path)
    except Exception as error:  # JSON, protobuf and TFDS each have their own
        raise ValueError(f"{given}: its description cannot be read: {_first_line(error)}") from error
    return open_builder(builder, test_split)


def open_named(name: str, data_dir: str | None, test_split: str | None = None) -> Dataset:
    """Opens a dataset that TFDS knows by name, having TFDS prepare it where that is still to do.

    Args:
      name: as `tfds.builder` takes it: "cifar10", "imagenet2012:5.1.0".
      data_dir: folder of TFDS's datasets; None: TFDS's default.
      test_split: as for `open_folder`.

    Raises:
      ValueError, OSError: if TFDS does not know it, cannot prepare it, or as for `open_folder`.
    """
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(name, data_dir=data_dir, file_format="array_record")
    except Exception as error:
        raise ValueError(_describe_unknown(name, error)) from error
    if not (Path(builder.data_dir) / "dataset_info.json").is_file():
        _require_tensorflow(f"dataset={name!r}: is not yet prepared under {builder.data_dir}")
        try:
            builder.download_and_prepare(file_format="array_record")
        except Exception as error:
            raise ValueError(f"dataset={name!r}: TFDS cannot prepare it: {_first_line(error)}") from error
    return open_builder(builder, test_split)


def open_builder(builder: Any, test_split: str | None) -> Dataset:
    """The splits of a TFDS builder whose data is on disk.

    Raises:
      ValueError: as `open_folder` does.
    """
    path, info = Path(builder.data_dir), builder.info
    found = ", ".join(info.splits) or "none"
    names = [test_split] if test_split else [name for name in TEST_SPLITS if name in info.splits][:1]
    for name in (TRAIN_SPLIT, *(names or TEST_SPLITS[:1])):
        if name not in info.splits:
            raise ValueError(f"dataset={str(path)!r}: has no split {name!r}; there is {found}")
    features: dict[str, Any] = dict(info.features.items())
    label, image = features.get("label"), features.get("image")
    if image is None or len(image.shape) != 3 or label is None or not hasattr(label, "num_classes"):
        have = ", ".join(features)
        raise ValueError(f"dataset={str(path)!r}: must have features image and label, with classes; there is {have}")
    for name in (TRAIN_SPLIT, *names):
        _check_shards(info.splits[name])
    train, test = (_open_split(builder, path, name) for name in (TRAIN_SPLIT, *names))
    return Dataset(train, test, label.num_classes, tuple(label.names))


def _open_split(builder: Any, path: Path, name: str) -> RecordSplit:
    import tensorflow_datasets as tfds

    features = builder.info.features
    encoded = isinstance(features["image"], tfds.features.Image)
    try:
        source = builder.as_data_source(name, decoders={"image": tfds.decode.SkipDecoding()} if encoded else None)
    except Exception as error:
        raise ValueError(f"dataset={str(path)!r}: split {name!r} cannot be opened: {_first_line(error)}") from error
    return RecordSplit(path, name, source, features["image"].shape, features["label"].num_classes)


def _check_shards(split: Any) -> None:
    """Every shard must be there with as many records as the description says: a copy may have been cut short."""
    from array_record.python.array_record_module import ArrayRecordReader

    for path, expected in zip(split.filepaths, split.shard_lengths, strict=True):
        if not Path(path).is_file():
            raise ValueError(f"{path}: this shard is missing; copy or prepare the dataset again")
        try:
            reader = ArrayRecordReader(str(path))
            found = reader.num_records()
            reader.close()
        except Exception as error:
            raise ValueError(f"{path}: this shard is cut short or damaged: {_first_line(error)}") from error
        if found != expected:
            raise ValueError(f"{path}: this shard holds {found} examples, its dataset says {expected}")


def _require_tensorflow(what: str) -> None:
    if importlib.util.find_spec("tensorflow") is None:
        raise ValueError(f"{what}, and TFDS needs TensorFlow for that: pip install 'jaxtern[prepare]'")


def _describe_unknown(name: str, error: Exception) -> str:
    return f"dataset={name!r}: is no folder, and TFDS knows none of that name: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
