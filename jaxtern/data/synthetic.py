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
    generator = np.random.default_rng(_SEED)

    def make_split(size: int) -> Split:
        images = generator.integers(0, 256, _require_room((size, *image_shape), "synthetic_shape"), np.uint8)
        return Split(images, generator.integers(0, num_classes, size, np.int32))

    return Dataset(make_split(num_examples), make_split(-(-num_examples // _TEST_SHARE)), num_classes)


def make_synthetic_text(sequence_length: int, num_classes: int, num_examples: int) -> Dataset:
    """Random characters, the same every time.

    Args:
      sequence_length: characters that an example predicts; it holds one more.
      num_classes: different characters.
      num_examples: of the training split; the test split has a fourth as many.

    Raises:
      ValueError: for more characters than text may have.
    """
    if num_classes > MAX_CHARACTERS:
        rule = f"must be {MAX_CHARACTERS} at most where preprocessing='text'"
        raise ValueError(f"synthetic_classes={num_classes}: {rule}")
    generator = np.random.default_rng(_SEED)

    def make_split(size: int) -> Windows:
        shape = _require_room((size, sequence_length + 1), "sequence_length")
        return Windows(generator.integers(0, num_classes, shape, np.uint8))

    return Dataset(make_split(num_examples), make_split(-(-num_examples // _TEST_SHARE)), num_classes)


def _require_room(shape: tuple[int, ...], field: str) -> tuple[int, ...]:
    """Refuses a shape of more bytes than this machine has memory; returns it otherwise."""
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if math.prod(shape) > room:
        made = f"{field}={shape[1:]}" if field == "synthetic_shape" else f"{field}={shape[1] - 1}"
        raise ValueError(
            f"{made}: with synthetic_examples={shape[0]}, takes {math.prod(shape):,} bytes, and this machine has"
            f" {room:,}"
        )
    return shape
