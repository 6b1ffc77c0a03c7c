"""Made images for benchmarks and dry runs: any shape and number of classes, nothing to load."""

import numpy as np

from jaxtern.data.dataset import Dataset, Split

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
        images = generator.integers(0, 256, (size, *image_shape), np.uint8)
        return Split(images, generator.integers(0, num_classes, size, np.int32))

    return Dataset(make_split(num_examples), make_split(-(-num_examples // _TEST_SHARE)), num_classes)
