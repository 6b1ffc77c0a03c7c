"""Batches for a run: from examples that lie on the devices, or streamed from disk by Grain.

Both give each example once an epoch, in the order of `ExampleOrder`, and key every random choice of an example by
(seed, epoch, place in the epoch). So a batch is the same whatever the number of hosts, threads and processes, and where
a run stands is one number: the examples seen so far.
"""

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
from absl import flags

from jaxtern.data.dataset import DataError, Records, Split
from jaxtern.data.order import ExampleOrder
from jaxtern.data.preprocessing.families import Preprocessing
from jaxtern.data.rendering import Batch, Share, render_examples, whole_image_shape
from jaxtern.data.text import Windows
from jaxtern.data.worker import deaf_to_signals, follow_parent

_READ_AHEAD = 2  # pieces of a process, or of all threads, that wait to be used
_LOADED_AT_ONCE = 256  # examples
_ENDLESS = 1 << 40  # pieces of batches


class ResidentFeed:
    """Batches of a split that lies on the devices: only which examples, and their labels, go there every step."""

    def __init__(self, split: Split | Windows, batch_size: int, seed: int, share: Share | None = None):
        """Takes a split in memory; arguments and errors are those of `StreamingFeed`."""
        self._labels, self._order = split.labels, ExampleOrder(split.size, seed)
        self._batch_size, self._share = batch_size, share or Share()
        _require_batch(batch_size, split.size, self._share)

    def batches(self, start: int) -> Generator[Batch]:
        """This host's part of every batch, endlessly, after `start` examples have been seen."""
        for first in itertools.count(start, self._batch_size):
            place = self._share.of(first, self._batch_size)
            examples = self._order.batch(*place)
            labels = None if self._labels is None else self._labels[examples]
            yield Batch(examples, labels, *self._order.locate(*place))


@dataclass
class StreamingFeed:
    """Batches that are read, decoded and cropped while the devices work.

    Attributes:
      split: the examples, in memory or on disk.
      batch_size: examples of a step over all hosts.
      seed: of order and views.
      share: of this host; None: it is the only one.
      preprocessing: its training views are rendered here; the rest is the compiled step's.
      size: pixels, side of the views; None: as the preprocessing has it.
      threads: that decode at the same time, in each process.
      processes: to decode in; 0: in this one.

    Raises:
      ValueError: if the batch is larger than the split, or does not divide among the hosts.
    """

    split: Split | Records
    batch_size: int
    seed: int
    share: Share | None
    preprocessing: Preprocessing
    size: int | None = None
    threads: int = 2
    processes: int = 0

    def __post_init__(self):
        self._share, self._order = self.share or Share(), ExampleOrder(self.split.size, self.seed)
        _require_batch(self.batch_size, self.split.size, self._share)
        # Whoever decodes has a piece in hand: many of them together no more than about two batches.
        workers = self.threads * max(1, self.processes)
        self._pieces = min(self.batch_size // self._share.num_hosts, math.ceil(workers / 2))

    def batches(self, start: int) -> Generator[Batch]:
        """This host's part of every batch, endlessly, after `start` examples have been seen.

        Raises:
          DataError: if an example cannot be read, or a process was killed.
        """
        make = functools.partial(self._make_piece, start)
        with contextlib.closing(_stream(make, _ENDLESS, self.threads, self.processes)) as made:
            while True:
                pieces = list(itertools.islice(made, self._pieces))
                yield pieces[0] if len(pieces) == 1 else Batch(*map(np.concatenate, zip(*pieces, strict=True)))

    def _make_piece(self, start: int, number: int) -> Batch:
        """One of the equal runs of this host's part of a batch; as its number tells all of it, any process makes it."""
        batch, piece = divmod(number, self._pieces)
        own = self._share.of(start + batch * self.batch_size, self.batch_size)
        place = Share(piece, self._pieces).of(*own)
        epochs, places = self._order.locate(*place)
        generators = map(self._order.create_generator, epochs.tolist(), places.tolist())
        examples = self._order.batch(*place)
        images, labels = render_examples(self.split, self.preprocessing, self.size, examples, generators)
        return Batch(images, labels, epochs, places)


def _require_batch(batch_size: int, num_examples: int, share: Share) -> None:
    """Refuses a batch that is larger than the split, or that hosts cannot take equal parts of."""
    if batch_size > num_examples:
        raise ValueError(f"batch_size={batch_size}: must be at most the {num_examples} examples of the training split")
    if batch_size % share.num_hosts:
        raise ValueError(f"batch_size={batch_size}: must be a multiple of the {share.num_hosts} hosts")


def evaluation_batches(
    split: Split | Records,
    batch_size: int,
    preprocessing: Preprocessing | None,
    size: int | None = None,
    threads: int = 2,
    share: Share | None = None,
) -> Generator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """This host's part of a split, every example once: uint8[B, H, W, C], int32[B], and bool[B], false where padded.

    Raises:
      ValueError: if there are fewer examples than hosts.
      DataError: naming the example, if one cannot be read.
    """
    first, num_examples = require_shares(split.size, share or Share()).of(0, split.size)

    def make(number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        start = number * batch_size
        count = min(batch_size, num_examples - start)
        examples = first + start + np.arange(count)
        images, labels = render_examples(split, preprocessing, size, examples, itertools.repeat(None, count))
        missing = batch_size - count
        images = np.pad(images, [(0, missing), (0, 0), (0, 0), (0, 0)])
        return images, np.pad(labels, (0, missing)), np.arange(batch_size) < count

    count = math.ceil(num_examples / batch_size)
    if isinstance(split, Split) and (preprocessing is None or preprocessing.takes_whole_images):
        return (make(number) for number in range(count))  # nothing to decode
    return _stream(make, count, threads)


def require_shares(num_examples: int, share: Share) -> Share:
    """Refuses fewer examples than hosts; returns the share otherwise."""
    if num_examples < share.num_hosts:
        raise ValueError(f"a split of {num_examples} examples cannot be shared by {share.num_hosts} hosts")
    return share


def load_split(split: Split | Records, threads: int) -> Split:
    """Brings a split into memory.

    Raises:
      DataError: naming the example, if one cannot be read or has not the shape of the others.
    """
    if isinstance(split, Split):
        return split
    images = np.empty((split.size, *whole_image_shape(split)), np.uint8)
    labels, start = np.empty(split.size, np.int32), 0
    for pixels, classes, present in evaluation_batches(split, _LOADED_AT_ONCE, None, threads=threads):
        stop = start + present.sum()
        if pixels.shape[1:] != images.shape[1:]:
            alike = f"its shape is {pixels.shape[1:]}, the first one's {images.shape[1:]}; whole images must be alike"
            raise DataError(f"{split.describe(start)}: {alike}")
        images[start:stop], labels[start:stop] = pixels[present], classes[present]
        start = stop
    return Split(images, labels, split)


def _stream(make: Callable[[int], Any], count: int, threads: int, processes: int = 0) -> Generator[Any]:
    """What is made of each number from 0 on, in order, ahead of its use; the workers end with the iterator."""
    import grain  # here, because importing it takes a second, and images in memory do without

    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(threads, _READ_AHEAD))
    dataset = grain.MapDataset.range(count).map(make).to_iter_dataset(options)
    if processes:
        if not flags.FLAGS.is_parsed():  # Grain asks for a flag of its own, also where no command has parsed any
            flags.FLAGS.mark_as_parsed()
        options = grain.MultiprocessingOptions(processes, per_worker_buffer_size=_READ_AHEAD)
        dataset = dataset.mp_prefetch(options, _start_worker)
    iterator = iter(dataset)
    try:
        with deaf_to_signals():  # the processes start here
            first = next(iterator)
        yield first
        yield from iterator
    except RuntimeError as error:
        if not str(error).startswith("Worker process was terminated"):
            raise
        why = "perhaps for want of memory; fewer decode_processes need less"
        raise DataError(f"a process that decodes images was killed, {why}") from error
    finally:
        iterator.close()


def _start_worker(*_: int) -> None:
    """Runs first in a process."""
    follow_parent()
