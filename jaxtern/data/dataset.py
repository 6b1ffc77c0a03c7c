"""Labelled images in memory."""

from typing import NamedTuple

import numpy as np


class Split(NamedTuple):
    """Images and their classes.

    Attributes:
      images: uint8[n, H, W, C].
      labels: int32[n], 0 to num_classes - 1.
    """

    images: np.ndarray
    labels: np.ndarray

    @property
    def size(self) -> int:
        return len(self.labels)


class Dataset(NamedTuple):
    """A training and a test split of the same classes."""

    train: Split
    test: Split
    num_classes: int

    @property
    def image_shape(self) -> tuple[int, int, int]:
        height, width, channels = self.train.images.shape[1:]
        return height, width, channels
