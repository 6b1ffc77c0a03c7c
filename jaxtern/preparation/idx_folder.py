"""Reads the four idx files of MNIST, and of Fashion-MNIST, KMNIST and others with the same file names."""

from pathlib import Path

from jaxtern.data.idx import FILES, find_idx, read_pair
from jaxtern.preparation.source import Item, Source, read_pixels


def holds_idx(folder: Path) -> bool:
    """Whether any of the four files lies in a folder."""
    return any(find_idx(folder, name) for names in FILES.values() for name in names)


def open_idx_folder(folder: Path) -> Source:
    """Opens the splits train and test, with numbers as class names; raises as `read_pair`."""
    splits: dict[str, list[Item]] = {}
    for split in FILES:
        (path, _), images, labels = read_pair(folder, split, f"SOURCE={str(folder)!r}")
        stem, rows = path.name.removesuffix(".gz"), enumerate(zip(images[..., None], labels.tolist(), strict=True))
        splits[split] = [Item(f"{stem}/{row:05d}", label, (pixels,), pixels.size) for row, (pixels, label) in rows]
    num_classes = 1 + max(item.label for items in splits.values() for item in items)
    return Source(tuple(map(str, range(num_classes))), splits, read_pixels, "png", grey=True)
