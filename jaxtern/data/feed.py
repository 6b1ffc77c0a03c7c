"""Batches for a run: from images that lie on the devices, or streamed from disk by Grain.

Both give each example once an epoch, in the order of `ExampleOrder`, and key every random choice of an example by
(seed, epoch, place in the epoch). So a batch is the same whatever the number of hosts, threads and processes, and where
a run stands is one number: the examples seen so far.
"""

import itertools
from collections.abc import Generator
from typing import Any

import grain
import numpy as np
from absl import flags

from jaxtern.data.dataset import Records, Split
from jaxtern.data.order import ExampleOrder
from jaxtern.data.preprocessing.families import Preprocessing
from jaxtern.data.rendering import Batch, EvaluationBatches, Share, TrainingBatches
from jaxtern.data.worker import deaf_to_interrupts, follow_parent

_READ_AHEAD = 2  # batches of a thread or process that wait to be used
_LOADED_AT_ONCE = 256  # examples


class ResidentFeed:
    """Batches of a split whose images lie on the devices: only which ones, and their labels, go there every step."""

    def __init__(self, split: Split, batch_size: int, seed: int, share: Share | None = None):
        """Takes a split in memory.

        Args:
          split: the examples.
          batch_size: examples of a step over all hosts.
          seed: of the order.
          share: of this host; None: it is the only one.

        Raises:
          ValueError: if the batch is larger than the split, or does not divide among the hosts.
        """
        self._labels, self._order = split.labels, ExampleOrder(split.size, seed)
        self._batch_size, self._share = batch_size, share or Share()
        require_batch(batch_size, split.size, self._share)

    def batches(self, start: int) -> Generator[Batch]:
        """This host's part of every batch, endlessly, after `start` examples have been seen."""
        for first in itertools.count(start, self._batch_size):
            place = self._share.of(first, self._batch_size)
            examples = self._order.batch(*place)
            yield Batch(examples, self._labels[examples], *self._order.locate(*place))


class StreamingFeed:
    """Batches that are read, decoded and cropped while the devices work."""

    def __init__(
        self,
        split: Split | Records,
        batch_size: int,
        seed: int,
        share: Share | None,
        preprocessing: Preprocessing,
        size: int | None = None,
        threads: int = 2,
        processes: int = 0,
    ):
        """Takes a split in memory or on disk.

        Args:
          split: the examples.
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
        share = share or Share()
        require_batch(batch_size, split.size, share)
        self._arguments = split, preprocessing, size, batch_size, seed, share
        self._threads, self._processes = threads, processes

    def batches(self, start: int) -> Generator[Batch]:
        """This host's part of every batch, endlessly, after `start` examples have been seen."""
        return _stream(TrainingBatches(*self._arguments, start), self._threads, self._processes)


def require_batch(batch_size: int, num_examples: int, share: Share) -> None:
    """Refuses a batch that is larger than the split, or that hosts cannot take equal parts of."""
    if batch_size > num_examples:
        raise ValueError(f"batch_size={batch_size}: must be at most the {num_examples} examples of the training split")
    if batch_size % share.num_hosts:
        raise ValueError(f"batch_size={batch_size}: must divide among {share.num_hosts} hosts")


def evaluation_batches(
    split: Split | Records,
    batch_size: int,
    preprocessing: Preprocessing,
    size: int | None = None,
    threads: int = 2,
    share: Share | None = None,
) -> Generator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """This host's part of a split, every example once: uint8[B, H, W, C], int32[B], and bool[B], false where padded.

    Raises:
      ValueError: if there are fewer examples than hosts, or one cannot be read.
    """
    share = share or Share()
    if split.size < share.num_hosts:
        raise ValueError(f"a split of {split.size} examples cannot be shared by {share.num_hosts} hosts")
    return _stream(EvaluationBatches(split, preprocessing, size, batch_size, share), threads, 0)


def load_split(split: Split | Records, threads: int) -> Split:
    """Brings a split into memory.

    Raises:
      ValueError: naming the example, if one cannot be read or has not the shape of the others.
    """
    if isinstance(split, Split):
        return split
    source = EvaluationBatches(split, None, None, _LOADED_AT_ONCE, Share())
    images, labels, present = (np.concatenate(parts) for parts in zip(*_stream(source, threads, 0), strict=True))
    return Split(images[present], labels[present])


def _stream(source: Any, threads: int, processes: int) -> Generator[Any]:
    """The batches of a source in order, made ahead of their use; the workers end with the iterator."""
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(threads, _READ_AHEAD))
    dataset = grain.MapDataset.source(source).to_iter_dataset(options)
    if processes:
        if not flags.FLAGS.is_parsed():  # Grain asks for a flag of its own, also where no command has parsed any
            flags.FLAGS.mark_as_parsed()
        options = grain.MultiprocessingOptions(processes, per_worker_buffer_size=_READ_AHEAD)
        dataset = dataset.mp_prefetch(options, lambda *_: follow_parent())
    iterator = iter(dataset)
    try:
        with deaf_to_interrupts():  # the processes start here
            first = next(iterator)
        yield first
        yield from iterator
    finally:
        iterator.close()
