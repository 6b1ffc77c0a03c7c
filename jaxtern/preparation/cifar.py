"""Reads the binary versions of CIFAR-10 and CIFAR-100, from an archive or a folder."""

import itertools
import tarfile
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from jaxtern.preparation.files import TAR_ERRORS, read_tar
from jaxtern.preparation.source import Item, Source, read_pixels

_PIXELS = 3 * 32 * 32


class Layout(NamedTuple):
    """The files of CIFAR-10 or CIFAR-100."""

    splits: dict[str, tuple[str, ...]]  # the files of records of each split
    classes: dict[str, int]  # the number of classes that each file of names has; CIFAR-100 has fine and coarse ones


LAYOUTS = (
    Layout(
        {"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)},
        {"batches.meta.txt": 10},
    ),
    Layout(
        {"train": ("train.bin",), "test": ("test.bin",)},
        {"fine_label_names.txt": 100, "coarse_label_names.txt": 20},
    ),
)
_PICKLED = ({"test_batch", "batches.meta"}, {"train", "test", "meta"})  # some files of the Python versions


def find_layout(path: Path) -> Layout | None:
    """The layout of the files in a tar or folder, up to one level deep; None if not CIFAR, ValueError if pickled."""
    present = set(_list_names(path))
    if any(names <= present for names in _PICKLED):
        remedy = "take the binary version, as cifar-10-binary.tar.gz, which holds the same"
        raise ValueError(f"SOURCE={str(path)!r}: is CIFAR in pickles, which may run code when they are read: {remedy}")
    return next((layout for layout in LAYOUTS if {*layout.classes, *layout.splits["test"]} <= present), None)


def open_cifar(path: Path, coarse_labels: bool) -> Source:
    """Opens the splits train and test; ValueError for missing or damaged files, or coarse labels of CIFAR-10."""
    given = f"SOURCE={str(path)!r}"
    files = _read_files(path, given)  # first, as it names the damage of an archive
    layout = find_layout(path)
    if layout is None:
        metas = ", ".join(name for layout in LAYOUTS for name in layout.classes)
        raise ValueError(f"{given}: is no version of CIFAR, which has one of {metas}")
    if coarse_labels and len(layout.classes) == 1:
        raise ValueError("coarse_labels: CIFAR-10 has none")
    if missing := [name for names in layout.splits.values() for name in names if name not in files]:
        raise ValueError(f"{given}: {missing[0]} is missing")
    meta, num_classes = list(layout.classes.items())[coarse_labels]
    class_names = tuple(files[meta].decode().split())
    if len(class_names) != num_classes:
        raise ValueError(f"{path}: {meta} must have {num_classes} class names, but has {len(class_names)}")
    splits: dict[str, list[Item]] = {split: [] for split in layout.splits}
    for split, names in layout.splits.items():
        for name in names:
            labels, images = _read_records(files[name], len(layout.classes), f"{path}: {name}")
            labels = labels[:, 0 if coarse_labels else -1]
            if labels.max() >= num_classes:
                raise ValueError(f"{path}: {name} has label {labels.max()}, which must be below {num_classes}")
            rows = enumerate(zip(labels.tolist(), images, strict=True))
            splits[split] += [Item(f"{name}/{row:05d}", label, (image,), _PIXELS) for row, (label, image) in rows]
    return Source(class_names, splits, read_pixels, "png", grey=False)


def _read_records(raw: bytes, num_labels: int, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Parses a file: uint8[n, num_labels] labels, coarse ones first, and uint8[n, 32, 32, 3] images."""
    width = num_labels + _PIXELS
    if not raw or len(raw) % width:
        raise ValueError(f"{where} must hold records of {width} bytes, but has {len(raw)} bytes: it is cut short")
    rows = np.frombuffer(raw, np.uint8).reshape(-1, width)
    return rows[:, :num_labels], rows[:, num_labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def _list_files(folder: Path) -> list[Path]:
    return [file for pattern in ("*/*", "*") for file in folder.glob(pattern) if file.is_file()]


def _list_names(path: Path) -> list[str]:
    """Names of files without their folders; at most 20 of a tar."""
    if path.is_dir():
        return [file.name for file in _list_files(path)]
    try:
        with tarfile.open(path) as archive:
            return [PurePosixPath(info.name).name for info in itertools.islice(archive, 20)]
    except TAR_ERRORS:
        return []


def _read_files(path: Path, given: str) -> dict[str, bytes]:
    """Contents of files by their names without folders. Archives hold 180 MB at most, and are read whole."""
    if path.is_dir():
        known = {name for layout in LAYOUTS for names in (*layout.splits.values(), layout.classes) for name in names}
        return {file.name: file.read_bytes() for file in _list_files(path) if file.name in known}
    return {PurePosixPath(name).name: content for name, content in read_tar(path, given)}
