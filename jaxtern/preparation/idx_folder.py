"""The four idx files of MNIST, Fashion-MNIST, KMNIST and others that took the names over."""

import functools
from pathlib import Path

import numpy as np

from jaxtern.data.idx import FILES, find_idx, read_idx, require_pixels
from jaxtern.preparation.source import Item, Source


def holds_idx(folder: Path) -> bool:
    """Whether any of the four files lies in a folder."""
    return any(find_idx(folder, name) for names in FILES.values() for name in names)


def open_idx_folder(folder: Path) -> Source:
    """The splits train and test; classes are called by their numbers.

    Raises:
      ValueError: if a file is missing, damaged, or does not fit the others.
    """
    splits = {}
    for split, names in FILES.items():
        paths = [find_idx(folder, name) for name in names]
        if None in paths:
            missing = names[paths.index(None)]
            raise ValueError(f"SOURCE={str(folder)!r}: holds neither {missing} nor {missing}.gz")
        splits[split] = _list_items(*(path for path in paths if path))
    num_classes = 1 + max(item.label for items in splits.values() for item in items)
    return Source(tuple(map(str, range(num_classes))), splits, read_idx_row, "png", grey=True)


def _list_items(images_path: Path, labels_path: Path) -> list[Item]:
    images, labels = _load_images(str(images_path)), read_idx(labels_path, dimensions=1)
    if len(images) != len(labels):
        raise ValueError(f"{images_path}: holds {len(images)} images, but {labels_path} {len(labels)} labels")
    if not len(images):
        raise ValueError(f"{images_path}: holds no images")
    require_pixels(images_path, images)
    size, stem = images[0].size, images_path.name.removesuffix(".gz")
    path = str(images_path)
    return [Item(f"{stem}/{row:05d}", label, (path, row), size) for row, label in enumerate(labels.tolist())]


def read_idx_row(location: tuple) -> np.ndarray:
    """uint8[H, W, 1] of location (path, row)."""
    path, row = location
    return _load_images(path)[row][..., None]


@functools.lru_cache(maxsize=2)
def _load_images(path: str) -> np.ndarray:
    return read_idx(Path(path), dimensions=3)
