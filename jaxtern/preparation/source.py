"""What every source of images comes down to: named, labelled items by split, and a function that reads any of them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from jaxtern.data.records import TEST_SPLITS

Encoding = Literal["jpeg", "png"]
Box = tuple[float, float, float, float]  # ymin, xmin, ymax, xmax, as shares of the image's height and width


class Item(NamedTuple):
    """One example.

    Attributes:
      name: where it came from, for a person who looks for it.
      label: its class, from 0.
      location: what the source's `read` takes.
      size: bytes of the image as it lies in the source.
      boxes: of objects in the image; none if not known.
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
      splits: items by name of the split, in the source's own order.
      read: a location to the file's bytes, or to pixels uint8[H, W, C]; a function that can be pickled, so that worker
        processes read any item. Raises DamagedImage if this image is lost, ValueError or OSError if more is.
      encoding: how to store images: "png" if all are lossless in the source, else "jpeg".
      grey: whether all images have one channel; None if that has to be seen from them.
      has_boxes: whether examples have boxes.
      remarks: what a person should know of how it was read, a line each.
    """

    class_names: tuple[str, ...]
    splits: dict[str, list[Item]]
    read: Callable[[tuple], bytes | np.ndarray]
    encoding: Encoding
    grey: bool | None = None
    has_boxes: bool = False
    remarks: tuple[str, ...] = ()


def read_pixels(location: tuple) -> np.ndarray:
    """uint8[H, W, C], which sources that lie in memory have as location."""
    return location[0]


def require_sound(source: Source, path: str, whole: bool) -> Source:
    """The source, with remarks where there is no split to evaluate on, or one lacks classes, as no whole one may.

    Raises:
      ValueError: if it has no images, or none of some class, which is named.
    """
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
        remarks += (f"no split to evaluate on: training wants {' or '.join(TEST_SPLITS)}; {remedy}",)
    return replace(source, remarks=remarks)


def name_some(names: list[str], one: str, many: str) -> str:
    """The first three of some names in words, as "classes a, b, c and 7 more"."""
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{one if len(names) == 1 else many} {', '.join(names[:3])}{rest}"
