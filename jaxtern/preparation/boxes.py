"""Bounding boxes: of PASCAL-VOC's XML, as ImageNet's annotations are, to shares of height and width."""

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from jaxtern.preparation.files import read_tar
from jaxtern.preparation.source import Box


class Boxes(NamedTuple):
    """Boxes of images by the name of the annotation without suffix; and how many were dropped for having no area."""

    of: dict[str, tuple[Box, ...]]
    dropped: int


def read_boxes(paths: Iterable[Path]) -> Boxes:
    """All annotations in folders or tars, compressed or not.

    Raises:
      ValueError: if a file is missing, damaged, or no annotation.
    """
    found: dict[str, tuple[Box, ...]] = {}
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
    return Boxes(found, dropped)


def clean_boxes(boxes: Iterable[Box]) -> tuple[Box, ...]:
    """Boxes clipped to the image, without those that then have no area."""
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
    """Boxes in shares of the size that the annotation names, which may be another than the image's."""
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
