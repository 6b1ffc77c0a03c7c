"""What a batch is made of: examples that are read, decoded and cropped, as the compiled step takes them."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from jaxtern.data.dataset import NO_BOXES, DataError, Records, Split
from jaxtern.data.preprocessing.families import Preprocessing

_COLORS = 3  # of a view
_EVALUATED_AT_ONCE = 500  # examples, but of no more pixels than
_EVALUATED_PIXELS = 1 << 23


class Batch(NamedTuple):
    """A step's examples, those of worker 0 first.

    Attributes:
      examples: uint8[B, H, W, C] images, or uint8[B, T + 1] characters; or int32[B], which of those on the devices.
      labels: int32[B]; None: text has none.
      epochs: int32[B].
      places: int32[B], where in its epoch each example comes.
    """

    examples: Any
    labels: Any
    epochs: Any
    places: Any


class Share(NamedTuple):
    """Which part of every batch a host takes: the host-th of num_hosts equal runs."""

    host: int = 0
    num_hosts: int = 1

    def of(self, start: int, size: int) -> tuple[int, int]:
        """First place and number of this host's part of `size` places from `start` on."""
        first, last = (size * number // self.num_hosts for number in (self.host, self.host + 1))
        return start + first, last - first


def whole_image_shape(split: Split | Records) -> tuple[int, int, int]:
    """The one shape of a split's images; that of the first, where its dataset does not say.

    Raises:
      ValueError: if it cannot be read.
    """
    height, width, channels = split.image_shape
    if height is None or width is None:
        from jaxtern.data.images import read_shape

        height, width = read_shape(split.read(0).image)
    return height, width, channels


def evaluation_batch_size(num_examples: int, height: int, width: int) -> int:
    """Examples of a batch where so many images of height by width pixels are evaluated, or predicted.

    A compiler may add in another order for another batch, so whoever wants the same bits takes the same size.
    """
    return max(1, min(num_examples, _EVALUATED_AT_ONCE, _EVALUATED_PIXELS // (height * width)))


def render_image(
    image: bytes | np.ndarray,
    preprocessing: Preprocessing | None,
    size: int | None,
    channels: int,
    generator: np.random.Generator | None = None,
    boxes: np.ndarray = NO_BOXES,
) -> np.ndarray:
    """uint8[H, W, C], as the compiled step takes it: a view of the preprocessing, or all of the image.

    Args:
      image: a JPEG or PNG, or uint8[H, W, C].
      preprocessing: with none, or one that has no views, the image is taken whole.
      size: pixels, side of the view; None: the preprocessing's.
      channels: of whole images; views have three.
      generator: draws the view for training; None: the one for evaluation.
      boxes: float32[k, 4], of objects, for training.

    Raises:
      ValueError: if it cannot be read.
    """
    if preprocessing is None or preprocessing.train_view is None or preprocessing.evaluation_view is None:
        if isinstance(image, np.ndarray) and image.shape[2] == channels:
            return image
        from jaxtern.data.images import decode  # here: what is in memory needs no decoders

        return decode(image, channels)
    from jaxtern.data.images import read_shape, render

    height, width, side = *read_shape(image), size or preprocessing.size
    assert side is not None  # as whoever has views has a size
    if generator is None:
        view = preprocessing.evaluation_view(height, width, side)
    else:
        view = preprocessing.train_view(generator, height, width, boxes, side)
    return render(image, view, side, _COLORS)


def render_examples(
    split: Split | Records,
    preprocessing: Preprocessing | None,
    size: int | None,
    examples: np.ndarray,
    generators: Iterable[np.random.Generator | None],
) -> tuple[np.ndarray, np.ndarray]:
    """uint8[B, H, W, C] images and int32[B] labels of some examples; arguments are those of `render_image`.

    Raises:
      DataError: naming the example, if one cannot be read, or has another shape than others that are taken whole.
    """
    pixels, labels = [], []
    for example, generator in zip(examples.tolist(), generators, strict=True):
        record = split.read(example)
        labels.append(record.label)
        try:
            pixels.append(
                render_image(record.image, preprocessing, size, split.image_shape[2], generator, record.boxes)
            )
            if pixels[-1].shape != pixels[0].shape:
                need = "a preprocessing that takes whole images needs them alike"
                raise ValueError(f"its shape is {pixels[-1].shape}, another's {pixels[0].shape}: {need}")
        except ValueError as error:
            raise DataError(f"{split.describe(example)}: {error}") from None
    return np.stack(pixels), np.array(labels, np.int32)
