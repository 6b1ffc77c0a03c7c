"""Made images and text for benchmarks and dry runs: any shape and number of classes, nothing to load."""

import math
import os

import numpy as np

from jaxtern.data.dataset import Dataset, Split
from jaxtern.data.text import MAX_CHARACTERS, Windows

_TEST_SHARE = 4  # a fourth as many test examples
_SEED = 0


def make_synthetic(image_shape: tuple[int, ...], num_classes: int, num_examples: int) -> Dataset:
    """Random pixels and labels, the same every time.

    Args:
      image_shape: height, width, channels.
      num_classes: labels are from 0 to one less.
      num_examples: of the training split; the test split has a fourth as many.

    Raises:
      ValueError: for a shape or number that is none.
    """
    if len(image_shape) != 3 or not all(isinstance(length, int) and length >= 1 for length in image_shape):
        raise ValueError(f"synthetic_shape={image_shape}: must be height, width and channels, whole numbers from 1 on")
    _require_room(f"synthetic_shape={image_shape}", num_examples, math.prod(image_shape))
    generator = np.random.default_rng(_SEED)

    def make_split(size: int) -> Split:
        images = generator.integers(0, 256, (size, *image_shape), np.uint8)
        return Split(images, generator.integers(0, num_classes, size, np.int32))

    return Dataset(make_split(num_examples), make_split(-(-num_examples // _TEST_SHARE)), num_classes)


def make_synthetic_text(sequence_length: int, num_classes: int, num_examples: int) -> Dataset:
    """Random characters, the same every time.

    Args:
      sequence_length: characters that an example predicts; it holds one more.
      num_classes: different characters, at most 256.
      num_examples: as `make_synthetic` has it.

    Raises:
      ValueError: for more characters than that, or than this machine has memory for.
    """
    if num_classes > MAX_CHARACTERS:
        raise ValueError(
            f"synthetic_classes={num_classes}: must be {MAX_CHARACTERS} at most where preprocessing='text'"
        )
    _require_room(f"sequence_length={sequence_length}", num_examples, sequence_length + 1)
    generator = np.random.default_rng(_SEED)

    def make_split(size: int) -> Windows:
        return Windows(generator.integers(0, num_classes, (size, sequence_length + 1), np.uint8))

    return Dataset(make_split(num_examples), make_split(-(-num_examples // _TEST_SHARE)), num_classes)


def _require_room(made: str, num_examples: int, bytes_each: int) -> None:
    """Refuses more bytes than this machine has memory."""
    needed, room = num_examples * bytes_each, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > room:
        rule = f"takes {needed:,} bytes, and this machine has {room:,}"
        raise ValueError(f"{made}: with synthetic_examples={num_examples}, {rule}")
