"""Reads ImageNet's original tars: training images in a tar of tars, validation images, their labels, and boxes."""

import io
import tarfile
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from jaxtern.preparation.files import Member, list_tar, read_span, read_tar
from jaxtern.preparation.source import Box, Item, Source, name_some

_LABELS = ("ILSVRC2012_devkit_t12.tar.gz", "imagenet_2012_validation_synset_labels.txt")
_GROUND_TRUTH = "validation_ground_truth.txt"

Boxes = dict[str, tuple[Box, ...]]  # by the image's file name without suffix


def find_tars(folder: Path) -> tuple[Path, Path] | None:
    """The tars of training and validation images in a folder; None unless both are there."""
    found = [sorted(folder.glob(pattern)) for pattern in ("*img_train*.tar", "*img_val*.tar")]
    return (found[0][0], found[1][0]) if all(found) else None


def open_imagenet(folder: Path, labels: Path | None, boxes: Iterable[Path]) -> Source:
    """Opens the splits train and validation; the classes are the synsets, sorted.

    Args:
      folder: holds `*img_train*.tar` and `*img_val*.tar`, of any number of synsets.
      labels: a text file with the synset of each validation image, in the order of their names; or the devkit,
        ILSVRC2012_devkit_t12.tar.gz. None: the devkit or labels in `folder`.
      boxes: folders or tars of annotations, one XML file an image, named as the image.

    Raises:
      ValueError: if something is missing or damaged, or does not fit the rest.
    """
    tars = find_tars(folder)
    if tars is None:
        raise ValueError(f"SOURCE={str(folder)!r}: holds no *img_train*.tar and *img_val*.tar")
    found, dropped = read_boxes(boxes)
    synsets = {PurePosixPath(tar.name).stem: tar for tar in list_tar(tars[0]) if tar.name.endswith(".tar")}
    if not synsets:
        raise ValueError(f"{tars[0]}: holds no tars of synsets")
    classes = {name: label for label, name in enumerate(sorted(synsets))}
    train = [
        _make_item(member, label, found)
        for name, label in classes.items()
        for member in list_tar(tars[0], synsets[name])
        if not member.is_folder
    ]
    validation = _list_validation(tars[1], _read_labels(folder, labels), classes, found)
    remarks = (f"{dropped:,} boxes without area dropped",) if dropped else ()
    splits = {"train": train, "validation": validation}
    return Source(tuple(classes), splits, read_span, "jpeg", has_boxes=bool(found), remarks=remarks)


def _list_validation(path: Path, labels: list[str], classes: dict[str, int], boxes: Boxes) -> list[Item]:
    members = sorted(member for member in list_tar(path) if not member.is_folder)
    if len(members) != len(labels):
        raise ValueError(f"labels: there are {len(labels):,} for the {len(members):,} images of {path}")
    unknown = sorted(set(labels) - set(classes))
    if unknown:
        raise ValueError(f"labels: {name_some(unknown, 'synset', 'synsets')} is none of the training images")
    return [_make_item(member, classes[synset], boxes) for member, synset in zip(members, labels, strict=True)]


def _make_item(member: Member, label: int, boxes: Boxes) -> Item:
    return Item(member.name, label, member.location, member.size, boxes.get(PurePosixPath(member.name).stem, ()))


def _read_labels(folder: Path, path: Path | None) -> list[str]:
    """Reads the synset of every validation image."""
    path = path or next((folder / name for name in _LABELS if (folder / name).is_file()), None)
    if path is None:
        raise ValueError(f"labels is not set: give the classes of the validation images, as {_LABELS[0]}")
    if not path.is_file():
        raise ValueError(f"labels={str(path)!r}: no such file")
    if tarfile.is_tarfile(path):
        return _read_devkit(path)
    try:
        return [line.split()[0] for line in path.read_text().splitlines() if line.strip()]
    except UnicodeDecodeError:
        raise ValueError(f"labels={str(path)!r}: is no text") from None


def _read_devkit(path: Path) -> list[str]:
    import scipy.io
    from scipy.io.matlab import MatReadError

    found = read_tar(path, f"labels={str(path)!r}", ("/meta.mat", _GROUND_TRUTH))
    files = {PurePosixPath(name).name.removeprefix("ILSVRC2012_"): content for name, content in found}
    try:
        table = scipy.io.loadmat(io.BytesIO(files["meta.mat"]), simplify_cells=True)["synsets"]
        synsets = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in table}
        words = files[_GROUND_TRUTH].decode().split()
    except (OSError, EOFError, KeyError, TypeError, ValueError, MatReadError) as error:
        raise ValueError(f"labels={str(path)!r}: is no devkit, or is damaged: {error}") from None
    wrong = sorted({word for word in words if not word.isdecimal() or int(word) not in synsets})
    if wrong:
        raise ValueError(f"labels={str(path)!r}: has {name_some(wrong, 'number', 'numbers')}, which no synset has")
    return [synsets[int(word)] for word in words]


def read_boxes(paths: Iterable[Path]) -> tuple[Boxes, int]:
    """Reads the annotations in folders or tars; also returns how many boxes were dropped, as they have no area.

    Raises ValueError if a file is missing, damaged, or not an annotation.
    """
    found: Boxes = {}
    dropped = 0
    for path in paths:
        count = len(found)
        for name, content in _list_annotations(path):
            raw = _parse(content, f"{path}: {name}")
            kept = clean_boxes(raw)
            dropped += len(raw) - len(kept)
            found[PurePosixPath(name).stem] = kept
        if len(found) == count:
            raise ValueError(f"boxes={str(path)!r}: holds no annotations (.xml)")
    return found, dropped


def clean_boxes(boxes: Iterable[Box]) -> tuple[Box, ...]:
    """Clips boxes to the image, and drops those without area."""
    clipped = [tuple(min(max(edge, 0.0), 1.0) for edge in box) for box in boxes]
    return tuple((y0, x0, y1, x1) for y0, x0, y1, x1 in clipped if y0 < y1 and x0 < x1)


def _list_annotations(path: Path) -> Iterator[tuple[str, bytes]]:
    if path.is_dir():
        for file in sorted(path.rglob("*.xml")):
            yield file.name, file.read_bytes()
    elif path.is_file():
        yield from read_tar(path, f"boxes={str(path)!r}", (".xml",))
    else:
        raise ValueError(f"boxes={str(path)!r}: no such file or folder")


def _parse(content: bytes, where: str) -> list[Box]:
    """Parses boxes as fractions of the size in the annotation, which may differ from the image's."""
    try:
        root = ET.fromstring(content)
        width, height = (_number(root, f"size/{side}") for side in ("width", "height"))
        boxes = []
        for box in root.iterfind("object/bndbox"):
            x0, y0, x1, y1 = (_number(box, edge) for edge in ("xmin", "ymin", "xmax", "ymax"))
            boxes.append((y0 / height, x0 / width, y1 / height, x1 / width))
    except (ET.ParseError, ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{where}: is no annotation of boxes: {error}") from None
    return boxes


def _number(element: ET.Element, path: str) -> float:
    text = element.findtext(path)
    if text is None:
        raise ValueError(f"it has no {path}")
    return float(text)
