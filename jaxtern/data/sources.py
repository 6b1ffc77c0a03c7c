"""Opens a dataset of images by its name or folder."""

import re
from pathlib import Path

from jaxtern.data import records
from jaxtern.data.dataset import Dataset, refuse_arguments
from jaxtern.data.digits import load_digits
from jaxtern.data.idx import load_mnist

_CONFIG = re.compile(r"[a-z]\w*/[^/]+")  # a TFDS name with a configuration: "cifar10_corrupted/fog_1"


def load_dataset(
    name: str, data_dir: str | None = None, train_split: str = "train", test_split: str | None = None
) -> Dataset:
    """Opens a dataset of images. Digits and idx files are loaded into memory, others stay on disk.

    Args:
      name: "digits"; the path of a prepared folder, with a slash in it; or a name that TFDS knows. "mnist" is read from
        its four idx files if `data_dir` is given, unless that folder holds TFDS's MNIST.
      data_dir: folder of TFDS's datasets, or of the idx files.
      train_split: split of a prepared dataset to train on, or a part of one in TFDS's notation, "train[:90%]".
      test_split: split to evaluate on, likewise; None: "test", or "validation" if there is no "test".

    Raises:
      ValueError: for an unknown name, damaged files, or an argument that the dataset does not take.
      FileNotFoundError: if files are missing.
    """
    splits = {"train_split": train_split, "test_split": test_split}
    if name == "digits":
        refuse_arguments(name, data_dir=data_dir, **splits)
        return load_digits()
    if "/" in name and (Path(name).exists() or not _CONFIG.fullmatch(name)):
        if Path(name).is_file():
            raise ValueError(f"dataset={name!r}: is no folder; data.preprocessing='text' reads a file as text")
        refuse_arguments(name, data_dir=data_dir)
        return records.open_folder(name, train_split, test_split)
    if name == "mnist" and data_dir is not None and not (Path(data_dir) / name).is_dir():
        refuse_arguments(name, **splits)
        return load_mnist(data_dir)
    try:
        return records.open_named(name, data_dir, train_split, test_split)
    except ValueError as error:
        hint = "; or give the folder of its four idx files (data.dir)" if name == "mnist" else ""
        if Path(name).is_dir():
            hint = f"; for the folder of that name write ./{name}"
        raise ValueError(f"{error}{hint}") from None
