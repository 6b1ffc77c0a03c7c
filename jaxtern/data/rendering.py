"""Makes batches of images: reads, decodes and crops examples for the compiled step."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from jaxtern.data.dataset import DataError, Records, Split
from jaxtern.data.preprocessing.families import Preprocessing

_COLORS = 3  # of a view
_EVALUATED_AT_ONCE, _EVALUATED_PIXELS = 500, 1 << 23  # the most examples, and pixels, of an evaluation batch
CHARACTER = 512  # pixels, whose memory an evaluated character takes, as it has logits


class Batch(NamedTuple):
    """A step's examples, those of worker 0 first."""

    examples: Any  # uint8[B, H, W, C] images, or uint8[B, T + 1] characters; or int32[B] numbers of resident examples
    labels: Any  # int32[B]; None for text
    epochs: Any  # int32[B], the epoch of each example
    places: Any  # int32[B], the place of each example in its epoch


class Share(NamedTuple):
    """The part of every batch that a host takes: part number `host` of `num_hosts` equal ones."""

    host: int = 0
    num_hosts: int = 1

    def of(self, start: int, size: int) -> tuple[int, int]:
        """First place and length of this host's part of the `size` places from `start` on."""
        first, last = (size * number // self.num_hosts for number in (self.host, self.host + 1))
        return start + first, last - first


def whole_image_shape(split: Split | Records) -> tuple[int, int, int]:
    """The shape of a split's images: the dataset's, else that of the first image; ValueError if it cannot be read."""
    height, width, channels = split.image_shape
    if height is None or width is None:
        from jaxtern.data.images import read_shape

        height, width = read_shape(split.read(0).image)
    return height, width, channels


def evaluation_batch_size(num_examples: int, height: int, width: int) -> int:
    """The size of the batches in which `num_examples` images of height by width pixels are evaluated or predicted.

    A compiler may add in another order for another batch size, so the same bits need the same size.
    """
    return max(1, min(num_examples, _EVALUATED_AT_ONCE, _EVALUATED_PIXELS // (height * width)))


def render_image(
    image: bytes | np.ndarray,
    preprocessing: Preprocessing | None,
    size: int | None,
    channels: int,
    generator: np.random.Generator | None = None,
) -> np.ndarray:
    """Makes the uint8[H, W, C] input of the compiled step: a view of an image, or the whole image.

    Args:
      image: bytes of a JPEG or PNG, or uint8[H, W, C].
      preprocessing: gives the view; None, or one without views: the image is taken whole.
      size: side of the view in pixels; None: the preprocessing's own.
      channels: of whole images; views have three.
      generator: draws a view for training; None: the view for evaluation.

    Raises:
      ValueError: if the image cannot be read.
    """
    if preprocessing is None or preprocessing.train_view is None or preprocessing.evaluation_view is None:
        if isinstance(image, np.ndarray) and image.shape[2] == channels:
            return image
        from jaxtern.data.images import decode  # here: what is in memory needs no decoders

        return decode(image, channels)
    from jaxtern.data.images import read_shape, render

    height, width, side = *read_shape(image), size or preprocessing.size
    assert side is not None  # every preprocessing with views has a size
    if generator is None:
        view = preprocessing.evaluation_view(height, width, side)
    else:
        view = preprocessing.train_view(generator, height, width, side)
    return render(image, view, side, _COLORS)


def render_examples(
    split: Split | Records,
    preprocessing: Preprocessing | None,
    size: int | None,
    examples: np.ndarray,
    generators: Iterable[np.random.Generator | None],
) -> tuple[np.ndarray, np.ndarray]:
    """uint8[B, H, W, C] images and int32[B] labels of some examples; the other arguments are those of `render_image`.

    Raises DataError, which names it, for an example that cannot be read, or is whole and not of the first one's shape.
    """
    pixels, labels, is_whole = [], [], preprocessing is None or preprocessing.takes_whole_images
    shape = whole_image_shape(split) if is_whole else None
    for example, generator in zip(examples.tolist(), generators, strict=True):
        record = split.read(example)
        labels.append(record.label)
        try:
            pixels.append(render_image(record.image, preprocessing, size, split.image_shape[2], generator))
            if shape not in (None, pixels[-1].shape):
                raise ValueError(f"shape {pixels[-1].shape}: must be {shape}, the first's, as images are taken whole")
        except ValueError as error:
            raise DataError(f"{split.describe(example)}: {error}") from None
    return np.stack(pixels), np.array(labels, np.int32)
