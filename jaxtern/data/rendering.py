"""Batches made from records: read, decoded, cropped. A number tells all of one, so any thread or process makes it."""

import itertools
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from jaxtern.data.dataset import DataError, Record, Records, Split
from jaxtern.data.images import convert, decode, read_shape, render
from jaxtern.data.order import ExampleOrder
from jaxtern.data.preprocessing.families import Preprocessing

_ENDLESS = 1 << 40  # pieces of batches
_COLORS = 3  # of a view
_VIEW_STREAM = 1  # of the generators keyed by (seed, epoch); the order of the epoch is drawn from stream 0
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
        image = split.read(0).image
        height, width = read_shape(image) if isinstance(image, bytes) else image.shape[:2]
    return height, width, channels


def evaluation_batch_size(num_examples: int, height: int, width: int) -> int:
    """Examples of a batch where so many images of height by width pixels are evaluated, or predicted.

    A compiler may add in another order for another batch, so whoever wants the same bits takes the same size.
    """
    return max(1, min(num_examples, _EVALUATED_AT_ONCE, _EVALUATED_PIXELS // (height * width)))


def render_for_evaluation(
    image: bytes | np.ndarray, preprocessing: Preprocessing | None, size: int | None, channels: int
) -> np.ndarray:
    """uint8[H, W, C], as the compiled step takes it in evaluation: the view of the preprocessing, or all of the image.

    Args:
      image: a JPEG or PNG, or uint8[H, W, C].
      preprocessing: with none, or one that has no views, the image is taken whole.
      size: pixels, side of the view.
      channels: of whole images; views have three.

    Raises:
      ValueError: if it cannot be read.
    """
    if preprocessing is None or preprocessing.evaluation_view is None or size is None:
        return decode(image, channels) if isinstance(image, bytes) else convert(image, channels)
    height, width = read_shape(image) if isinstance(image, bytes) else image.shape[:2]
    return render(image, preprocessing.evaluation_view(height, width, size), size, _COLORS)


class _Renderer:
    """What sources of batches share: labels, and pixels as the compiled step takes them."""

    def __init__(self, split: Split | Records, preprocessing: Preprocessing | None, size: int | None):
        """Takes images whole where there is no preprocessing, or one without views."""
        self._split, self._preprocessing = split, preprocessing
        self._size = size or (preprocessing.size if preprocessing else None)

    def _render_all(self, examples: np.ndarray, generators: Iterable[np.random.Generator | None]) -> tuple:
        """uint8[B, H, W, C] and int32[B]: views as their generators draw them, or those of evaluation."""
        labels, pixels = np.empty(len(examples), np.int32), []
        for number, (example, generator) in enumerate(zip(examples.tolist(), generators, strict=True)):
            record = self._split.read(example)
            labels[number] = record.label
            try:
                pixels.append(self._render(record, generator))
                if pixels[-1].shape != pixels[0].shape:
                    raise ValueError(
                        f"its shape is {pixels[-1].shape}, another's {pixels[0].shape}: a preprocessing that takes"
                        " whole images needs them alike"
                    )
            except ValueError as error:
                raise DataError(f"{self._split.describe(example)}: {error}") from None
        return np.stack(pixels), labels

    def _render(self, record: Record, generator: np.random.Generator | None) -> np.ndarray:
        image, family, size = record.image, self._preprocessing, self._size
        if generator is None or family is None or family.train_view is None or size is None:
            return render_for_evaluation(image, family, size, self._split.image_shape[2])
        height, width = read_shape(image) if isinstance(image, bytes) else image.shape[:2]
        return render(image, family.train_view(generator, height, width, record.boxes, size), size, _COLORS)


class TrainingBatches(_Renderer):
    """Elements are this host's parts of batches, from where the run stands, each in `pieces` equal runs."""

    def __init__(
        self, split: Split | Records, preprocessing: Preprocessing, size: int | None, batch_size: int, seed: int,
        share: Share, start: int, pieces: int,
    ):  # fmt: skip
        super().__init__(split, preprocessing, size)
        self._order, self._batch_size, self._seed = ExampleOrder(split.size, seed), batch_size, seed
        self._share, self._start, self._pieces = share, start, pieces

    def __len__(self) -> int:
        return _ENDLESS

    def __getitem__(self, number: int) -> Batch:
        batch, piece = divmod(number, self._pieces)
        first, size = self._share.of(self._start + batch * self._batch_size, self._batch_size)
        first, size = Share(piece, self._pieces).of(first, size)
        epochs, places = self._order.locate(first, size)
        generators = (
            _create_generator(self._seed, epoch, place)
            for epoch, place in zip(epochs.tolist(), places.tolist(), strict=True)
        )
        images, labels = self._render_all(self._order.batch(first, size), generators)
        return Batch(images, labels, epochs, places)


class EvaluationBatches(_Renderer):
    """Element t is the t-th batch of this host's part of the split, the last one padded with zeros."""

    def __init__(
        self, split: Split | Records, preprocessing: Preprocessing | None, size: int | None, batch_size: int,
        share: Share,
    ):  # fmt: skip
        super().__init__(split, preprocessing, size)
        self._batch_size, (self._first, self._num_examples) = batch_size, share.of(0, split.size)

    def __len__(self) -> int:
        return math.ceil(self._num_examples / self._batch_size)

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        start = number * self._batch_size
        count = min(self._batch_size, self._num_examples - start)
        examples = np.arange(self._first + start, self._first + start + count)
        images, labels = self._render_all(examples, itertools.repeat(None, count))
        missing = self._batch_size - count
        images = np.pad(images, [(0, missing), (0, 0), (0, 0), (0, 0)])
        return images, np.pad(labels, (0, missing)), np.arange(self._batch_size) < count


def _create_generator(seed: int, epoch: int, place: int) -> np.random.Generator:
    """Draws the choices for one example; its counter meets neither another's nor the shuffle's, which starts at 0."""
    return np.random.Generator(np.random.Philox(key=[seed, epoch], counter=[0, place, 0, _VIEW_STREAM]))
