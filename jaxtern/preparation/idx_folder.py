"""Reads the four idx files of MNIST, and of Fashion-MNIST, KMNIST and others with the same file names."""

from pathlib import Path

import numpy as np

from jaxtern.data.idx import FILES, find_idx, read_pair
from jaxtern.preparation.source import Item, Source, read_pixels


def holds_idx(folder: Path) -> bool:
    """Whether any of the four files lies in a folder."""
    return any(find_idx(folder, name) for names in FILES.values() for name in names)


def open_idx_folder(folder: Path) -> Source:
    """Opens the splits train and test; classes are the numbers that occur. Raises as `read_pair`."""
    pairs = {split: read_pair(folder, split, f"SOURCE={str(folder)!r}") for split in FILES}
    classes, splits = np.unique(np.concatenate([labels for _, _, labels in pairs.values()])), {}
    for split, ((path, _), images, labels) in pairs.items():
        stem, places = path.name.removesuffix(".gz"), np.searchsorted(classes, labels).tolist()
        rows = enumerate(zip(images[..., None], places, strict=True))
        splits[split] = [Item(f"{stem}/{row:05d}", label, (pixels,), pixels.size) for row, (pixels, label) in rows]
    return Source(tuple(map(str, classes)), splits, read_pixels, "png", grey=True)
