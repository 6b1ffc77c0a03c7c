"""Reads prepared datasets, which are TFDS folders of ArrayRecord shards, in any order and without TensorFlow.

`python -m jaxtern.prepare` writes such folders, and so does TFDS for every dataset that it knows by name.
"""

import importlib.util
import resource
import shlex
from pathlib import Path
from typing import Any

import numpy as np

from jaxtern.data.dataset import DataError, Dataset, Record, Split

TEST_SPLITS = ("test", "validation")
_SPARE_FILES = 128  # open files of a program besides the shards


class RecordSplit:
    """A split of a prepared dataset."""

    def __init__(self, builder: Any, name: str):
        """Opens a split of a TFDS builder, or a part of one; raises ValueError if that fails."""
        import tensorflow_datasets as tfds

        self.path, self.name, info = Path(builder.data_dir), name, builder.info
        encoded = isinstance(info.features["image"], tfds.features.Image)
        if info.features["image"].np_dtype not in ((np.uint8, np.uint16) if encoded else (np.uint8,)):
            raise ValueError(f"dataset={str(self.path)!r}: feature image must be an Image of integers, or uint8 Tensor")
        decoders = {"image": tfds.decode.SkipDecoding()} if encoded else None
        try:
            self._source: Any = builder.as_data_source(name, decoders=decoders)
        except Exception as error:
            why = f"split {name!r} cannot be opened: {_first_line(error)}"
            raise ValueError(f"dataset={str(self.path)!r}: {why}") from error
        self.size, self.image_shape = len(self._source), info.features["image"].shape
        self._num_classes = info.features["label"].num_classes
        self.spans = [(part.filename, part.skip, part.take) for part in info.splits[name].file_instructions]

    def read(self, index: int) -> Record:
        try:
            example = self._source[index]
        except Exception as error:  # array_record and protobuf raise many types for damaged bytes
            raise DataError(f"{self.describe(index)}: cannot be read: {_first_line(error)}") from error
        label = int(example["label"])
        if not 0 <= label < self._num_classes:
            raise DataError(f"{self.describe(index)}: label {label} is not from 0 to {self._num_classes - 1}")
        return Record(example["image"], label)

    def describe(self, index: int) -> str:
        place, key = f"{self.path}: {self.name} example {index}", self.key(index)
        return place if key == str(index) else f"{place} ({key})"

    def key(self, index: int) -> str:
        try:
            return self._source[index]["file_name"].decode()
        except Exception:  # noqa: BLE001 - also names damaged records in messages
            return str(index)


def open_folder(path: str | Path, train_split: str = "train", test_split: str | None = None) -> Dataset:
    """Opens a prepared dataset; the images stay on disk.

    Args:
      path: the folder that holds dataset_info.json.
      train_split: split to train on, or a part of one in TFDS's notation, "train[:90%]".
      test_split: split to evaluate on, likewise; None: "test", or "validation" if there is no "test".

    Raises:
      FileNotFoundError: if there is no such folder, or no dataset in it.
      ValueError: if a split or shard is missing, damaged or cut short, or the examples are not labelled images.
    """
    import tensorflow_datasets as tfds  # here because importing it takes a second

    given, path = f"dataset={str(path)!r}", Path(path)
    if not path.is_dir():
        raise FileNotFoundError(f"{given}: no such folder")
    if not (path / "dataset_info.json").is_file():
        why = f"python -m jaxtern.prepare SOURCE {shlex.quote(str(path))} makes one"
        if any(path.glob("*array_record*")):
            why = "its preparation was not finished: run the same jaxtern.prepare again"
        raise FileNotFoundError(f"{given}: holds no dataset (there is no dataset_info.json); {why}")
    try:
        builder = tfds.builder_from_directory(path)
    except Exception as error:  # JSON, protobuf and TFDS raise their own types
        raise ValueError(f"{given}: its description cannot be read: {_first_line(error)}") from error
    return _open_builder(builder, train_split, test_split)


def require_apart(dataset: Dataset) -> None:
    """Raises ValueError if the training and test splits of a prepared dataset share examples."""
    train, test = (split.source if isinstance(split, Split) else split for split in (dataset.train, dataset.test))
    if not (isinstance(train, RecordSplit) and isinstance(test, RecordSplit)):
        return
    if any(
        file == other and max(start, begin) < min(start + count, begin + size)
        for file, start, count in train.spans
        for other, begin, size in test.spans
    ):
        raise ValueError(
            f"dataset={str(test.path)!r}: train_split={train.name!r} and test_split={test.name!r} share examples;"
            " parts that share none are 'train[:90%]' and 'train[90%:]'"
        )


def open_named(name: str, data_dir: str | None, train_split: str = "train", test_split: str | None = None) -> Dataset:
    """Opens a dataset that TFDS knows by name; TFDS downloads and prepares it first if need be.

    Args:
      name: as for `tfds.builder`: "cifar10", "imagenet2012:5.1.0".
      data_dir: folder of TFDS's datasets; None: TFDS's default.
      train_split, test_split: as for `open_folder`.

    Raises:
      ValueError, OSError: if TFDS does not know or cannot prepare it, and as for `open_folder`.
    """
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(name, data_dir=data_dir, file_format="array_record")
    except Exception as error:
        why = f"is no folder, and TFDS knows none of that name: {_first_line(error)}"
        if "file format" in str(error).lower():
            remedy = "it must be ArrayRecord: prepare it anew, by jaxtern.prepare or under another data_dir"
            why = f"is prepared in another format ({_first_line(error)}); {remedy}"
        raise ValueError(f"dataset={name!r}: {why}") from error
    if not (Path(builder.data_dir) / "dataset_info.json").is_file():
        if importlib.util.find_spec("tensorflow") is None:
            need = "TFDS needs TensorFlow for that: pip install 'jaxtern[tfds]'"
            raise ValueError(f"dataset={name!r}: is not yet prepared under {builder.data_dir}, and {need}")
        try:
            builder.download_and_prepare(file_format="array_record")
        except Exception as error:
            raise ValueError(f"dataset={name!r}: TFDS cannot prepare it: {_first_line(error)}") from error
    return _open_builder(builder, train_split, test_split)


def _open_builder(builder: Any, train_split: str, test_split: str | None) -> Dataset:
    """Opens the splits of a TFDS builder whose data is on disk; the errors are those of `open_folder`."""
    path, info = Path(builder.data_dir), builder.info
    test_split = test_split or next((name for name in TEST_SPLITS if name in info.splits), TEST_SPLITS[0])
    for argument, name in (("train_split", train_split), ("test_split", test_split)):
        _require_split(f"dataset={str(path)!r}", argument, name, info.splits)
    features: dict[str, Any] = dict(info.features.items())
    label, image = features.get("label"), features.get("image")
    if image is None or len(image.shape) != 3 or label is None or not hasattr(label, "num_classes") or label.shape:
        have = ", ".join(features)
        raise ValueError(f"dataset={str(path)!r}: must have features image and label, with classes; available: {have}")
    whole = {name.partition("[")[0] for name in (train_split, test_split)}
    _raise_file_limit(sum(len(info.splits[name].shard_lengths) for name in whole))
    for name in whole:
        _check_shards(info.splits[name])
    return Dataset(
        RecordSplit(builder, train_split), RecordSplit(builder, test_split), label.num_classes, tuple(label.names)
    )


def _check_shards(split: Any) -> None:
    """Requires that every shard exists and holds as many records as the description says: copies get cut short."""
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


def _require_split(dataset: str, argument: str, name: str, splits: Any) -> None:
    try:
        size = splits[name].num_examples if name.partition("[")[0] in splits else 0
    except Exception as error:  # TFDS raises many types for a malformed part
        raise ValueError(f"{dataset}: {argument}={name!r}: {_first_line(error)}") from error
    if size == 0:
        found = ", ".join(splits) or "none"
        raise ValueError(
            f"{dataset}: has no split {name!r}; available: {found}; set {argument}; parts that share no example are"
            " train_split='train[:90%]' and test_split='train[90%:]'"
        )


def _raise_file_limit(shards: int) -> None:
    """Raises this process's limit of open files, as array_record opens every shard; ValueError if it may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = shards + _SPARE_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ValueError(
            f"{shards:,} shards need as many open files, of which {hard:,} are allowed (ulimit -Hn): raise that, or"
            " prepare the dataset with fewer --shards"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
