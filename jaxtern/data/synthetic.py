"""Makes random images and text of any shape and number of classes, for benchmarks and dry runs."""

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxtern.data.dataset import Dataset, Split
from jaxtern.data.text import MAX_CHARACTERS, Windows

_TEST_SHARE = 4  # the test split has a quarter as many examples
_SEED = 0


def make_synthetic(image_shape: tuple[int, ...], num_classes: int, num_examples: int) -> Dataset:
    """Random uint8 images of a shape (height, width, channels) and labels below `num_classes`, the same every time.

    The training split has `num_examples`, the test split a quarter as many. Raises ValueError for a malformed shape, or
    if the images need more memory than this machine has.
    """
    if len(image_shape) != 3 or not all(isinstance(length, int) and length >= 1 for length in image_shape):
        raise ValueError(f"synthetic_shape={image_shape}: must be height, width and channels, whole numbers from 1 on")

    def make_split(generator: np.random.Generator, size: int) -> Split:
        images = generator.integers(0, 256, (size, *image_shape), np.uint8)
        return Split(images, generator.integers(0, num_classes, size, np.int32))

    return _make(f"synthetic_shape={image_shape}", make_split, math.prod(image_shape), num_classes, num_examples)


def make_synthetic_text(sequence_length: int, num_classes: int, num_examples: int) -> Dataset:
    """Random characters, the same every time; an example holds `sequence_length` + 1 of `num_classes` different ones.

    The sizes of the splits are those of `make_synthetic`. Raises ValueError for more than 256 classes, or if the text
    needs more memory than this machine has.
    """
    if num_classes > MAX_CHARACTERS:
        raise ValueError(
            f"synthetic_classes={num_classes}: must be {MAX_CHARACTERS} at most where preprocessing='text'"
        )

    def make_split(generator: np.random.Generator, size: int) -> Windows:
        return Windows(generator.integers(0, num_classes, (size, sequence_length + 1), np.uint8))

    return _make(f"sequence_length={sequence_length}", make_split, sequence_length + 1, num_classes, num_examples)


def _make(given: str, make_split: Callable[..., Any], bytes_each: int, num_classes: int, num_examples: int) -> Dataset:
    """Makes both splits, unless they need more bytes than this machine has memory."""
    needed, room = num_examples * bytes_each, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > room:
        rule = f"takes {needed:,} bytes, and this machine has {room:,}"
        raise ValueError(f"{given}: with synthetic_examples={num_examples}, {rule}")
    generator = np.random.default_rng(_SEED)
    train, test = (make_split(generator, size) for size in (num_examples, -(-num_examples // _TEST_SHARE)))
    return Dataset(train, test, num_classes)
