"""A source of images: named, labelled items by split, and a function that reads any of them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from jaxtern.data.records import TEST_SPLITS

Encoding = Literal["jpeg", "png"]
Box = tuple[float, float, float, float]  # ymin, xmin, ymax, xmax, as fractions of the image's sides


class Item(NamedTuple):
    """One example.

    Attributes:
      name: its file in the source, for people.
      label: its class, from 0.
      location: the argument of the source's `read`.
      size: bytes of the image in the source.
      boxes: of objects in the image; empty if not known.
    """

    name: str
    label: int
    location: tuple
    size: int
    boxes: tuple[Box, ...] = ()


@dataclass(frozen=True)
class Source:
    """Labelled images.

    Attributes:
      class_names: one a label.
      splits: items by split, in the source's order.
      read: location -> bytes of a file, or pixels uint8[H, W, C]; can be pickled for worker processes. Raises
        DamagedImage if only this image is lost, ValueError or OSError if more is.
      encoding: how to store images: "png" if all are lossless in the source, else "jpeg".
      grey: whether all images have one channel; None: to be found out from the images.
      has_boxes: whether examples have boxes.
      remarks: lines for the user on how the source was read.
    """

    class_names: tuple[str, ...]
    splits: dict[str, list[Item]]
    read: Callable[[tuple], bytes | np.ndarray]
    encoding: Encoding
    grey: bool | None = None
    has_boxes: bool = False
    remarks: tuple[str, ...] = ()


def read_pixels(location: tuple) -> np.ndarray:
    """Returns uint8[H, W, C] pixels, which a source in memory keeps as the location."""
    return location[0]


def require_sound(source: Source, path: str, whole: bool) -> Source:
    """Requires images of every class, if `whole` in every split; returns the source with remarks on what it lacks."""
    remarks, seen = source.remarks, set()
    for split, items in source.splits.items():
        present = {item.label for item in items}
        seen |= present
        if missing := [name for label, name in enumerate(source.class_names) if label not in present]:
            lacks = f"split {split} has no images of {name_some(missing, 'class', 'classes')}"
            if whole:
                raise ValueError(f"SOURCE={path!r}: {lacks}; every split must have all classes")
            remarks += (f"warning: {lacks}",)
    if not seen:
        raise ValueError(f"SOURCE={path!r}: holds no images")
    if nowhere := [name for label, name in enumerate(source.class_names) if label not in seen]:
        raise ValueError(f"SOURCE={path!r}: holds no images of {name_some(nowhere, 'class', 'classes')}")
    if set(TEST_SPLITS).isdisjoint(source.splits):
        remedy = "--config.data.train_split='train[:90%]' --config.data.test_split='train[90%:]' takes a tenth"
        remarks += (f"no split to evaluate on: training needs {' or '.join(TEST_SPLITS)}; {remedy}",)
    return replace(source, remarks=remarks)


def name_some(names: list[str], one: str, many: str) -> str:
    """Lists the first three names: "classes a, b, c and 7 more"."""
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{one if len(names) == 1 else many} {', '.join(names[:3])}{rest}"
