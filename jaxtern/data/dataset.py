"""Labelled images: arrays in memory, or records on disk."""

from typing import Any, NamedTuple, Protocol

import numpy as np


class Record(NamedTuple):
    """One example as it is stored.

    Attributes:
      image: bytes of a JPEG or PNG file, or uint8[H, W, C].
      label: 0 to num_classes - 1.
      boxes: float32[k, 4], ymin, xmin, ymax, xmax of objects as shares of the image; k may be 0.
    """

    image: bytes | np.ndarray
    label: int
    boxes: np.ndarray


class DataError(ValueError):
    """An example cannot be read, or processes that read them are gone; the message is one line for the user."""


NO_BOXES = np.zeros((0, 4), np.float32)


class Records(Protocol):
    """Examples that can be read in any order, by threads and, as they can be pickled, by other processes."""

    @property
    def size(self) -> int: ...

    @property
    def image_shape(self) -> tuple[int | None, int | None, int]:
        """Height, width, channels; None where images differ."""
        ...

    def read(self, index: int) -> Record:
        """Raises DataError, with the name of the file, for a record that cannot be read."""
        ...

    def describe(self, index: int) -> str:
        """Where the example comes from, for messages."""
        ...

    def key(self, index: int) -> str:
        """What it is called in lists of predictions: the file that it was made from, else its number."""
        ...


class Split(NamedTuple):
    """Images and their classes.

    Attributes:
      images: uint8[n, H, W, C].
      labels: int32[n], 0 to num_classes - 1.
      source: the same on disk, where they were loaded from there; it knows their keys.
    """

    images: np.ndarray
    labels: np.ndarray
    source: Records | None = None

    @property
    def size(self) -> int:
        return len(self.labels)

    @property
    def examples(self) -> np.ndarray:
        return self.images

    @property
    def image_shape(self) -> tuple[int, int, int]:
        height, width, channels = self.images.shape[1:]
        return height, width, channels

    def read(self, index: int) -> Record:
        return Record(self.images[index], int(self.labels[index]), NO_BOXES)

    def describe(self, index: int) -> str:
        return f"example {index}"

    def key(self, index: int) -> str:
        return str(index) if self.source is None else self.source.key(index)


class Dataset(NamedTuple):
    """A training and a test split of the same classes, whose names may be known.

    Splits are `Split` or `Records` of images, or `Windows` of text, which all have a size.
    """

    train: Any
    test: Any
    num_classes: int
    class_names: tuple[str, ...] = ()


def refuse_arguments(name: str, **arguments: str | None) -> None:
    """Refuses those that are not as `load_dataset` has them by default, which a dataset does not take."""
    for argument, value in arguments.items():
        if value is not None and (argument, value) != ("train_split", "train"):
            raise ValueError(f"{argument}={value!r}: dataset={name!r} takes no {argument}")
