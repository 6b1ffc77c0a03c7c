"""The four idx files of MNIST, Fashion-MNIST, KMNIST and others that took the names over."""

import functools
from pathlib import Path

import numpy as np

from jaxtern.data.idx import FILES, find_idx, read_idx, read_pair
from jaxtern.preparation.source import Item, Source


def holds_idx(folder: Path) -> bool:
    """Whether any of the four files lies in a folder."""
    return any(find_idx(folder, name) for names in FILES.values() for name in names)


def open_idx_folder(folder: Path) -> Source:
    """The splits train and test; classes are called by their numbers.

    Raises:
      FileNotFoundError, ValueError: if a file is missing, damaged, or does not fit the others.
    """
    splits = {split: _list_items(folder, split) for split in FILES}
    num_classes = 1 + max(item.label for items in splits.values() for item in items)
    return Source(tuple(map(str, range(num_classes))), splits, read_idx_row, "png", grey=True)


def _list_items(folder: Path, split: str) -> list[Item]:
    (path, _), images, labels = read_pair(folder, split, f"SOURCE={str(folder)!r}")
    size, stem = images[0].size, path.name.removesuffix(".gz")
    return [Item(f"{stem}/{row:05d}", label, (str(path), row), size) for row, label in enumerate(labels.tolist())]


def read_idx_row(location: tuple) -> np.ndarray:
    """uint8[H, W, 1] of location (path, row)."""
    path, row = location
    return _load_images(path)[row][..., None]


@functools.lru_cache(maxsize=2)
def _load_images(path: str) -> np.ndarray:
    return read_idx(Path(path), dimensions=3)
