"""CIFAR-10 and CIFAR-100 in their binary version, as archive or folder."""

import functools
import itertools
import lzma
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from jaxtern.preparation.files import read_tar
from jaxtern.preparation.source import Item, Source

_PIXELS = 3 * 32 * 32


class Layout(NamedTuple):
    """Where CIFAR-10 or CIFAR-100 keeps things.

    Attributes:
      train, test: files by split.
      metas: the files of class names: fine and, of CIFAR-100, coarse ones.
      label_bytes: before the pixels of a record.
      num_classes: fine and coarse, 0 where there is none.
    """

    train: tuple[str, ...]
    test: tuple[str, ...]
    metas: tuple[str, ...]
    label_bytes: int
    num_classes: tuple[int, int]


_BATCHES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
LAYOUTS = (
    Layout(_BATCHES, ("test_batch.bin",), ("batches.meta.txt",), 1, (10, 0)),
    Layout(("train.bin",), ("test.bin",), ("fine_label_names.txt", "coarse_label_names.txt"), 2, (100, 20)),
)
_PICKLED = ({"test_batch", "batches.meta"}, {"train", "test", "meta"})  # some files of the Python versions


def find_layout(path: Path) -> Layout | None:
    """What is in a folder, at its top or one below, or in a tar, compressed or not; None if it is no CIFAR.

    Raises:
      ValueError: if it is a Python version.
    """
    present = {PurePosixPath(name).name for name in _list_names(path)}
    if any(names <= present for names in _PICKLED):
        remedy = "take the binary version, as cifar-10-binary.tar.gz, which holds the same"
        raise ValueError(f"SOURCE={str(path)!r}: is CIFAR in pickles, which may run code when they are read: {remedy}")
    return next((layout for layout in LAYOUTS if {*layout.metas, *layout.test} <= present), None)


def _list_names(path: Path) -> list[str]:
    """Names of files; of a tar up to the twentieth."""
    if path.is_dir():
        return [file.name for pattern in ("*", "*/*") for file in path.glob(pattern) if file.is_file()]
    try:
        with tarfile.open(path) as archive:
            return [info.name for info in itertools.islice(archive, 20)]
    except (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError):
        return []


def open_cifar(path: Path, coarse_labels: bool) -> Source:
    """The splits train and test.

    Raises:
      ValueError: if files are missing or damaged, or coarse labels wanted of CIFAR-10.
    """
    _load_files(str(path))  # which names the damage of an archive, where find_layout only finds nothing
    layout = find_layout(path)
    if layout is None:
        metas = ", ".join(name for layout in LAYOUTS for name in layout.metas)
        raise ValueError(f"SOURCE={str(path)!r}: is no version of CIFAR, which has one of {metas}")
    if coarse_labels and not layout.num_classes[1]:
        raise ValueError("coarse_labels: CIFAR-10 has none")
    splits = {
        split: [item for name in names for item in _list_items(path, layout, name, coarse_labels)]
        for split, names in (("train", layout.train), ("test", layout.test))
    }
    names = _read_names(path, layout, coarse_labels)
    return Source(names, splits, read_cifar_row, "png", grey=False)


def _read_names(path: Path, layout: Layout, coarse: bool) -> tuple[str, ...]:
    wanted, meta = layout.num_classes[coarse], layout.metas[coarse]
    names = _file(str(path), meta).decode().split()
    if len(names) != wanted:
        raise ValueError(f"{path}: {meta} must have {wanted} class names, but has {len(names)}")
    return tuple(names)


def _list_items(path: Path, layout: Layout, name: str, coarse: bool) -> list[Item]:
    labels, _ = _load_batch(str(path), name, layout, coarse)
    place = str(path), name, layout, coarse
    return [Item(f"{name}/{row:05d}", label, (*place, row), _PIXELS) for row, label in enumerate(labels)]


def read_cifar_row(location: tuple) -> np.ndarray:
    """uint8[32, 32, 3] of location (path, file, layout, coarse, row)."""
    *place, row = location
    return np.ascontiguousarray(_load_batch(*place)[1][row].reshape(3, 32, 32).transpose(1, 2, 0))


@functools.lru_cache(maxsize=8)
def _load_batch(path: str, name: str, layout: Layout, coarse: bool) -> tuple[list[int], np.ndarray]:
    """Labels, and pixels uint8[n, 3072], of one file."""
    raw = _file(path, name)
    width = layout.label_bytes + _PIXELS
    if not raw or len(raw) % width:
        raise ValueError(
            f"{path}: {name} must hold records of {width} bytes, but has {len(raw)} bytes: it is cut short"
        )
    rows = np.frombuffer(raw, np.uint8).reshape(-1, width)
    return rows[:, 0 if coarse else layout.label_bytes - 1].tolist(), rows[:, layout.label_bytes :]


@functools.lru_cache(maxsize=1)
def _load_files(path: str) -> dict[str, bytes]:
    """Files by their last name: of an archive all, at most 180 MB, as it cannot be read at random."""
    if Path(path).is_dir():
        known = {name for layout in LAYOUTS for name in (*layout.train, *layout.test, *layout.metas)}
        files = [file for pattern in ("*/*", "*") for file in Path(path).glob(pattern)]
        return {file.name: file.read_bytes() for file in files if file.name in known and file.is_file()}
    return {PurePosixPath(name).name: content for name, content in read_tar(Path(path), f"SOURCE={path!r}")}


def _file(path: str, name: str) -> bytes:
    files = _load_files(path)
    if name not in files:
        raise ValueError(f"SOURCE={path!r}: {name} is missing")
    return files[name]
