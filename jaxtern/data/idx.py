"""Reads MNIST's idx files: a big-endian header of magic number and sizes, then unsigned bytes."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from jaxtern.data.dataset import Dataset, Split

_UNSIGNED_BYTE = 0x08
FILES = {  # the files of images and of labels
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_NUM_CLASSES = 10
_AT_ONCE = 1 << 24  # bytes of a read


def load_mnist(folder: str | Path) -> Dataset:
    """Reads MNIST's four files, plain or gzipped, from a folder.

    Raises FileNotFoundError for a missing file, ValueError for one that is damaged or does not fit the others.
    """
    given, splits = f"data_dir={str(folder)!r}", []
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"{given}: no such folder")
    for split in FILES:
        paths, images, labels = read_pair(Path(folder), split, given)
        if labels.max() >= _NUM_CLASSES:
            raise ValueError(f"{paths[1]}: must hold labels from 0 to {_NUM_CLASSES - 1}")
        splits.append(Split(images[..., None], labels.astype(np.int32)))
    return Dataset(splits[0], splits[1], _NUM_CLASSES)


def read_pair(folder: Path, split: str, given: str) -> tuple[list[Path], np.ndarray, np.ndarray]:
    """Reads a split: the paths of its two files, uint8[n, H, W] images and uint8[n] labels.

    Raises FileNotFoundError, which starts with `given`, for a missing file, and ValueError if a file is damaged, there
    are no pixels, or the numbers of labels and images differ.
    """
    found = {name: find_idx(folder, name) for name in FILES[split]}
    if missing := [name for name, path in found.items() if path is None]:
        raise FileNotFoundError(f"{given}: holds neither {missing[0]} nor {missing[0]}.gz")
    paths = [path for path in found.values() if path is not None]
    images, labels = (read_idx(path, dimensions) for path, dimensions in zip(paths, (3, 1), strict=True))
    if len(images) != len(labels):
        raise ValueError(f"{paths[0]}: holds {len(images)} images, but {paths[1]} {len(labels)} labels")
    if 0 in images.shape:
        raise ValueError(f"{paths[0]}: holds {len(images)} images of {images.shape[1]} by {images.shape[2]} pixels")
    return paths, images, labels


def find_idx(folder: Path, name: str) -> Path | None:
    """The path of a file in a folder, plain or gzipped; None if there is none."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Reads an idx file of unsigned bytes, plain or gzipped, as uint8; raises ValueError if it is anything else."""
    magic, data = bytes([0, 0, _UNSIGNED_BYTE, dimensions]), bytearray()
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            header = file.read(4 + 4 * dimensions)
            if header[:4] != magic or len(header) < 4 + 4 * dimensions:
                starts = f"starts with {header[:4].hex()!r}, not with {magic.hex()!r}"
                raise ValueError(f"{path}: {starts} and {dimensions} sizes, as such an idx file does")
            shape = tuple(np.frombuffer(header, ">u4")[1:].tolist())
            size = math.prod(shape)
            while (left := size + 1 - len(data)) and (part := file.read(min(left, _AT_ONCE))):
                data += part  # reads no more than the header says: a small gzip file may hold many gigabytes
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"{path}: is damaged or cut short: {error}") from None
    if len(data) != size:
        more = " or more" if len(data) > size else ""
        raise ValueError(f"{path}: holds {len(data)} bytes of data{more}, its header says {size}")
    return np.frombuffer(data, np.uint8).reshape(shape)
