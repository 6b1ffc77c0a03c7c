"""Reads images from a folder, a zip or a tar: one folder a class, perhaps inside folders of splits."""

import itertools
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from jaxtern.data.any_image import LOSSLESS, SUFFIXES
from jaxtern.preparation.files import Member, list_container
from jaxtern.preparation.source import Item, Source, name_some

SPLIT_FOLDERS = {  # in any letter case
    "train": "train", "training": "train", "traindata": "train", "train_set": "train", "training_set": "train",
    "val": "validation", "valid": "validation", "validation": "validation", "validationdata": "validation",
    "test": "test", "testing": "test", "testdata": "test", "test_set": "test",
}  # fmt: skip
VALIDATION_FRACTION = 0.1


class _Entry(NamedTuple):
    """An image or a folder, and the parts of its name below the outermost folders."""

    parts: tuple[str, ...]
    member: Member


def open_image_folder(path: Path, validation_fraction: float | None, seed: int) -> Source:
    """Opens the splits that folders are named after; without such folders, splits off images for validation.

    Args:
      path: of a folder, a zip or a tar. Outer folders that hold everything, hidden files and macOS's are ignored.
      validation_fraction: of each class; None: a tenth. It must be None if there are folders of splits.
      seed: of the choice of validation images.

    Raises ValueError if there are no images, images outside folders of classes, or none in a split.
    """
    members, read = list_container(path)
    entries = [_Entry(PurePosixPath(member.name).parts, member) for member in members]
    shown = [each for each in entries if not any(part.startswith(".") or part == "__MACOSX" for part in each.parts)]
    kept = [each for each in shown if each.member.is_folder or each.parts[-1].lower().endswith(SUFFIXES)]
    splits = _find_splits(path, _strip_wrapping(path, kept))
    names = _list_class_names(path, splits)
    labels = {name: label for label, name in enumerate(names)}
    items = {
        split: [Item(m.name, labels[parts[0]], m.location, m.size) for parts, m in entries if not m.is_folder]
        for split, entries in splits.items()
    }
    if list(items) == ["train"]:
        fraction = VALIDATION_FRACTION if validation_fraction is None else validation_fraction
        items = split_off_validation(items["train"], names, fraction, seed)
    elif validation_fraction is not None:
        raise ValueError(f"validation_fraction={validation_fraction}: the source has splits: {', '.join(items)}")
    other = len(shown) - len(kept)
    remarks = (f"left out, as their names are not those of images: {other:,}",) if other else ()
    lossless = all(each.member.is_folder or each.parts[-1].lower().endswith(LOSSLESS) for each in kept)
    return Source(names, items, read, "png" if lossless else "jpeg", remarks=remarks)


def split_off_validation(
    items: list[Item], names: tuple[str, ...], fraction: float, seed: int
) -> dict[str, list[Item]]:
    """Splits items into train and validation, which gets this fraction of every class, at least one image."""
    if not fraction:
        return {"train": items}
    labels = np.array([item.label for item in items])
    chosen = np.zeros(len(items), bool)
    for label, name in enumerate(names):
        rows = np.flatnonzero(labels == label)
        count = max(1, round(fraction * len(rows)))
        if 0 < len(rows) <= count:  # require_sound refuses a class without images
            raise ValueError(
                f"validation_fraction={fraction}: class {name} has too few images to split: {len(rows)};"
                " --validation_fraction=0 leaves all of them to training"
            )
        generator = np.random.Generator(np.random.Philox(key=[seed, label]))
        chosen[generator.permutation(rows)[:count]] = True
    return {"train": [*itertools.compress(items, ~chosen)], "validation": [*itertools.compress(items, chosen)]}


def _strip_wrapping(path: Path, entries: list[_Entry]) -> list[_Entry]:
    """Entries without the outer folders that hold all images."""
    while True:
        images = [parts for parts, member in entries if not member.is_folder]
        if not images:
            raise ValueError(f"SOURCE={str(path)!r}: holds no images ({', '.join(SUFFIXES)})")
        first = {parts[0] for parts in images}
        if len(first) > 1 or min(map(len, images)) < 3 or images[0][0].lower() in SPLIT_FOLDERS:
            return entries
        entries = [_Entry(e.parts[1:], e.member) for e in entries if e.parts[0] in first and len(e.parts) > 1]


def _find_splits(path: Path, entries: list[_Entry]) -> dict[str, list[_Entry]]:
    """Entries by split, their parts starting at the class; all in train if there are no folders of splits."""
    folders = {entry.parts[0] for entry in entries}
    named = {SPLIT_FOLDERS.get(folder.lower()) for folder in folders}
    if "train" not in named and None in named:
        return {"train": entries}
    if "train" not in named:
        raise ValueError(f"SOURCE={str(path)!r}: holds {', '.join(sorted(folders))}, but no folder of training images")
    found: dict[str, str] = {}
    for folder in sorted(folders):
        split = SPLIT_FOLDERS.get(folder.lower())
        if split is None:
            raise ValueError(f"SOURCE={str(path)!r}: {folder} lies beside a folder of training images, but is no split")
        if split in found:
            raise ValueError(f"SOURCE={str(path)!r}: {found[split]} and {folder} are both the split {split}")
        found[split] = folder
    splits = {
        split: [_Entry(e.parts[1:], e.member) for e in entries if e.parts[0] == found[split] and len(e.parts) > 1]
        for split in ("train", "validation", "test")
        if split in found
    }
    for split, inside in splits.items():
        if all(entry.member.is_folder for entry in inside):
            raise ValueError(f"SOURCE={str(path)!r}: the folder {found[split]} holds no images")
    return splits


def _list_class_names(path: Path, splits: dict[str, list[_Entry]]) -> tuple[str, ...]:
    """The names of all classes, sorted."""
    names: set[str] = set()
    for entries in splits.values():
        if loose := [member.name for parts, member in entries if not member.is_folder and len(parts) == 1]:
            raise ValueError(f"SOURCE={str(path)!r}: {name_some(loose, 'image', 'images')} in no folder of a class")
        names |= {entry.parts[0] for entry in entries}
    if odd := sorted(name for name in names if not name.isprintable() or name != name.strip()):
        need = "must be printable, without blanks at the ends, as names are stored as lines"
        raise ValueError(f"SOURCE={str(path)!r}: {name_some(list(map(ascii, odd)), 'class', 'classes')} {need}")
    if len(names) < 2:
        raise ValueError(f"SOURCE={str(path)!r}: has images of one class alone: {', '.join(names)}")
    return tuple(sorted(names))
