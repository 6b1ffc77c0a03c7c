"""The types of a dataset: labelled images in memory (`Split`) or on disk (`Records`)."""

from typing import Any, NamedTuple, Protocol

import numpy as np


class Record(NamedTuple):
    """One stored example."""

    image: bytes | np.ndarray  # bytes of a JPEG or PNG file, or uint8[H, W, C]
    label: int  # 0 to num_classes - 1


class DataError(ValueError):
    """An example cannot be read, or a process that reads examples has died; the message is one line."""


class Records(Protocol):
    """Examples that can be read in any order, by several threads, and after pickling by other processes."""

    @property
    def size(self) -> int: ...

    @property
    def image_shape(self) -> tuple[int | None, int | None, int]:
        """Height, width and channels; None for a side in which images differ."""
        ...

    def read(self, index: int) -> Record:
        """Reads one example; raises DataError, which names the file, if that fails."""
        ...

    def describe(self, index: int) -> str:
        """Says where an example comes from, for messages."""
        ...

    def key(self, index: int) -> str:
        """An example's name in lists of predictions: the file it was made from, else its number."""
        ...


class Split(NamedTuple):
    """Images in memory and their classes."""

    images: np.ndarray  # uint8[n, H, W, C]
    labels: np.ndarray  # int32[n], 0 to num_classes - 1
    source: Records | None = None  # records that the images were loaded from, which know their keys; or None

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
        return Record(self.images[index], int(self.labels[index]))

    def describe(self, index: int) -> str:
        return f"example {index}"

    def key(self, index: int) -> str:
        return str(index) if self.source is None else self.source.key(index)


class Dataset(NamedTuple):
    """A training split and a test split: each a `Split` or `Records` of images, or `Windows` of text."""

    train: Any
    test: Any
    num_classes: int
    class_names: tuple[str, ...] = ()  # one a class; empty if they are not known


def refuse_arguments(name: str, **arguments: str | None) -> None:
    """Raises ValueError for an argument that a dataset does not take, unless it is `load_dataset`'s default."""
    for argument, value in arguments.items():
        if value is not None and (argument, value) != ("train_split", "train"):
            raise ValueError(f"{argument}={value!r}: dataset={name!r} takes no {argument}")
