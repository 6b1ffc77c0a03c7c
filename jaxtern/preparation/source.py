"""A source of images: named, labelled items by split, and a function that reads any of them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from jaxtern.data.records import TEST_SPLITS

Encoding = Literal["jpeg", "png"]


class Item(NamedTuple):
    """One example."""

    name: str  # its file in the source, for people
    label: int  # its class, from 0
    location: tuple  # the argument of the source's `read`
    size: int  # bytes of the image in the source


@dataclass(frozen=True)
class Source:
    """Labelled images."""

    class_names: tuple[str, ...]  # one a label
    splits: dict[str, list[Item]]  # items by split, in the source's order
    # location -> bytes of a file, or pixels uint8[H, W, C]; can be pickled for worker processes. Raises DamagedImage if
    # only this image is lost, ValueError or OSError if more is.
    read: Callable[[tuple], bytes | np.ndarray]
    encoding: Encoding  # how to store images: "png" if all are lossless in the source, else "jpeg"
    grey: bool | None = None  # whether all images have one channel; None: to be found out from the images
    remarks: tuple[str, ...] = ()  # lines for the user on how the source was read


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
        lacks = f"holds no images of {name_some(nowhere, 'class', 'classes')}"
        raise ValueError(f"SOURCE={path!r}: {lacks}; add some, or delete what is empty")
    if set(TEST_SPLITS).isdisjoint(source.splits):
        remedy = "--config.data.train_split='train[:90%]' --config.data.test_split='train[90%:]' takes a tenth"
        remarks += (f"no split to evaluate on: training needs {' or '.join(TEST_SPLITS)}; {remedy}",)
    return replace(source, remarks=remarks)


def name_some(names: list[str], one: str, many: str) -> str:
    """Lists the first three names: "classes a, b, c and 7 more"."""
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{one if len(names) == 1 else many} {', '.join(names[:3])}{rest}"
