"""The idx format of MNIST: a big-endian header of magic number and sizes, then unsigned bytes."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from jaxtern.data.dataset import Dataset, Split

_UNSIGNED_BYTE = 0x08
FILES = {  # images and labels
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_NUM_CLASSES = 10
_AT_ONCE = 1 << 24  # bytes


def load_mnist(folder: str | Path) -> Dataset:
    """Reads the four files of MNIST, each plain or gzipped, from `folder`.

    Raises:
      FileNotFoundError: if the folder or a file is missing.
      ValueError: if a file is damaged, cut short, or does not fit the others.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"data_dir={str(folder)!r}: no such folder")
    train, test = _load_split(folder, "train"), _load_split(folder, "test")
    sizes = train.images.shape[1:], test.images.shape[1:]
    if sizes[0] != sizes[1]:
        raise ValueError(f"data_dir={str(folder)!r}: training images are {sizes[0]}, test images {sizes[1]}")
    return Dataset(train, test, _NUM_CLASSES)


def _load_split(folder: Path, split: str) -> Split:
    images_path, labels_path = (_require(folder, name) for name in FILES[split])
    images, labels = read_idx(images_path, dimensions=3), read_idx(labels_path, dimensions=1)
    if len(images) != len(labels):
        raise ValueError(f"{images_path}: holds {len(images)} images, but {labels_path} {len(labels)} labels")
    require_pixels(images_path, images)
    if len(labels) == 0 or labels.max() >= _NUM_CLASSES:
        raise ValueError(f"{labels_path}: must hold labels from 0 to {_NUM_CLASSES - 1}")
    return Split(images[..., None], labels.astype(np.int32))


def require_pixels(path: Path, images: np.ndarray) -> None:
    """Refuses images [n, H, W] that have none."""
    if 0 in images.shape[1:]:
        raise ValueError(f"{path}: holds images of {images.shape[1]} by {images.shape[2]} pixels")


def _require(folder: Path, name: str) -> Path:
    path = find_idx(folder, name)
    if path is None:
        raise FileNotFoundError(f"data_dir={str(folder)!r}: holds neither {name} nor {name}.gz")
    return path


def find_idx(folder: Path, name: str) -> Path | None:
    """The file of that name, plain or gzipped; None if there is none."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """An idx file of unsigned bytes, plain or gzipped, as uint8 with so many dimensions.

    Raises:
      ValueError: if it is not such a file, or its length is not what the header says.
    """
    header, magic = 4 + 4 * dimensions, bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            raw = bytearray(file.read(header))
            size = _count_bytes(bytes(raw[4:])) if raw[:4] == magic else 0
            while (left := header + size + 1 - len(raw)) and (part := file.read(min(left, _AT_ONCE))):
                raw += part  # no more than the header says, which may be a few of many that are packed
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"{path}: is damaged or cut short: {error}") from None
    if len(raw) < header or raw[:4] != magic:
        raise ValueError(f"{path}: starts with {raw[:4].hex()!r}, not with {magic.hex()!r} as such an idx file does")
    shape = tuple(int(size) for size in np.frombuffer(raw, ">u4", dimensions, offset=4))
    if len(raw) - header != math.prod(shape):
        more = " or more" if len(raw) - header > math.prod(shape) else ""
        raise ValueError(f"{path}: holds {len(raw) - header} bytes of data{more}, its header says {math.prod(shape)}")
    return np.frombuffer(raw, np.uint8, offset=header).reshape(shape)


def _count_bytes(sizes: bytes) -> int:
    """Of an array, by the part of the header that tells its sizes."""
    return math.prod(int(size) for size in np.frombuffer(sizes[: len(sizes) // 4 * 4], ">u4"))
