"""Reads the four idx files of MNIST, and of Fashion-MNIST, KMNIST and others with the same file names."""

from pathlib import Path

from jaxtern.data.idx import FILES, find_idx, read_pair
from jaxtern.preparation.source import Item, Source, read_pixels


def holds_idx(folder: Path) -> bool:
    """Whether any of the four files lies in a folder."""
    return any(find_idx(folder, name) for names in FILES.values() for name in names)


def open_idx_folder(folder: Path) -> Source:
    """Opens the splits train and test, with numbers as class names; raises as `read_pair`."""
    splits = {split: _list_items(folder, split) for split in FILES}
    num_classes = 1 + max(item.label for items in splits.values() for item in items)
    return Source(tuple(map(str, range(num_classes))), splits, read_pixels, "png", grey=True)


def _list_items(folder: Path, split: str) -> list[Item]:
    (path, _), images, labels = read_pair(folder, split, f"SOURCE={str(folder)!r}")
    stem, rows = path.name.removesuffix(".gz"), zip(images[..., None], labels.tolist(), strict=True)
    return [Item(f"{stem}/{row:05d}", label, (pixels,), pixels.size) for row, (pixels, label) in enumerate(rows)]
