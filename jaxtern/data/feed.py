"""Batches for a run: resident (the examples lie on the devices) or streaming (Grain reads them from disk).

Both feeds give each example once an epoch, in the order of `ExampleOrder`, and key the random choices for an example by
(seed, epoch, place in the epoch). So a batch does not depend on the number of hosts, threads or processes, and one
number says where a run stands: the examples seen so far.
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

from jaxtern.data.dataset import Records, Split
from jaxtern.data.order import ExampleOrder
from jaxtern.data.preprocessing.families import Preprocessing
from jaxtern.data.rendering import Batch, Share, render_examples, whole_image_shape
from jaxtern.data.text import Windows
from jaxtern.data.worker import deaf_to_signals, follow_parent

_READ_AHEAD = 2  # pieces that each process, or all threads together, hold ready
_LOADED_AT_ONCE = 256  # examples
_ENDLESS = 1 << 40  # pieces


class ResidentFeed:
    """Batches of a split that lies on the devices: a step sends only the numbers of its examples, and their labels."""

    def __init__(self, split: Split | Windows, batch_size: int, seed: int, share: Share | None = None):
        """Takes a split in memory; the arguments are those of `StreamingFeed`."""
        self._labels, self._order = split.labels, ExampleOrder(split.size, seed)
        self._batch_size, self._share = batch_size, share or Share()

    def batches(self, start: int) -> Generator[Batch]:
        """Yields this host's part of every batch, without end, from the example after the first `start` on."""
        for first in itertools.count(start, self._batch_size):
            place = self._share.of(first, self._batch_size)
            examples = self._order.batch(*place)
            labels = None if self._labels is None else self._labels[examples]
            yield Batch(examples, labels, *self._order.locate(*place))


@dataclass
class StreamingFeed:
    """Batches that are read, decoded and cropped while the devices compute."""

    split: Split | Records  # the examples, in memory or on disk
    batch_size: int  # examples of a step, over all hosts
    seed: int  # of the order and the views
    share: Share | None  # this host's part of a batch; None: all of it
    preprocessing: Preprocessing  # its training views are rendered here, the rest happens in the compiled step
    size: int | None = None  # side of the views in pixels; None: the preprocessing's own
    threads: int = 2  # decoding threads of each process
    processes: int = 0  # decoding processes; 0: this process decodes

    def __post_init__(self):
        self._share, self._order = self.share or Share(), ExampleOrder(self.split.size, self.seed)
        # Every decoding thread holds a piece; all pieces together are about two batches at most.
        workers = self.threads * max(1, self.processes)
        self._pieces = min(self.batch_size // self._share.num_hosts, math.ceil(workers / 2))

    def batches(self, start: int) -> Generator[Batch]:
        """As `ResidentFeed.batches`; DataError: an example cannot be read; ChildProcessError: a process was killed."""
        make = functools.partial(self._make_piece, start)
        with contextlib.closing(_stream(make, _ENDLESS, self.threads, self.processes)) as made:
            while True:
                pieces = list(itertools.islice(made, self._pieces))
                yield pieces[0] if len(pieces) == 1 else Batch(*map(np.concatenate, zip(*pieces, strict=True)))

    def _make_piece(self, start: int, number: int) -> Batch:
        """Makes one of the equal pieces of this host's part of a batch; its number alone says which."""
        batch, piece = divmod(number, self._pieces)
        own = self._share.of(start + batch * self.batch_size, self.batch_size)
        place = Share(piece, self._pieces).of(*own)
        epochs, places = self._order.locate(*place)
        generators = map(self._order.create_generator, epochs.tolist(), places.tolist())
        examples = self._order.batch(*place)
        images, labels = render_examples(self.split, self.preprocessing, self.size, examples, generators)
        return Batch(images, labels, epochs, places)


def evaluation_batches(
    split: Split | Records,
    batch_size: int,
    preprocessing: Preprocessing | None,
    size: int | None = None,
    threads: int = 2,
    share: Share | None = None,
) -> Generator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields this host's part of a split, every example once, in batches.

    A batch is uint8[B, H, W, C] images, int32[B] labels, and bool[B], false for padding. Raises DataError for an
    example that cannot be read; names it.
    """
    first, num_examples = (share or Share()).of(0, split.size)

    def make(number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        start = number * batch_size
        count = min(batch_size, num_examples - start)
        examples = first + start + np.arange(count)
        images, labels = render_examples(split, preprocessing, size, examples, itertools.repeat(None, count))
        missing = batch_size - count
        images = np.pad(images, [(0, missing), (0, 0), (0, 0), (0, 0)])
        return images, np.pad(labels, (0, missing)), np.arange(batch_size) < count

    count = math.ceil(num_examples / batch_size)
    if not count or (isinstance(split, Split) and (preprocessing is None or preprocessing.takes_whole_images)):
        return (make(number) for number in range(count))  # nothing to decode
    return _stream(make, count, threads)


def load_split(split: Split | Records, threads: int) -> Split:
    """Loads a split into memory; raises DataError for an example that cannot be read or has another shape."""
    if isinstance(split, Split):
        return split
    images = np.empty((split.size, *whole_image_shape(split)), np.uint8)
    labels, start = np.empty(split.size, np.int32), 0
    for pixels, classes, present in evaluation_batches(split, _LOADED_AT_ONCE, None, threads=threads):
        stop = start + present.sum()
        images[start:stop], labels[start:stop] = pixels[present], classes[present]
        start = stop
    return Split(images, labels, split)


def _stream(make: Callable[[int], Any], count: int, threads: int, processes: int = 0) -> Generator[Any]:
    """Yields make(0), make(1), ... in order, made ahead of their use; closing the iterator ends the workers."""
    import grain  # here, because the import takes a second, and images in memory do without it

    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(threads, _READ_AHEAD))
    dataset = grain.MapDataset.range(count).map(make).to_iter_dataset(options)
    if processes:
        if not flags.FLAGS.is_parsed():  # Grain reads a flag of its own, which fails unless flags were parsed
            flags.FLAGS.mark_as_parsed()
        options = grain.MultiprocessingOptions(processes, per_worker_buffer_size=_READ_AHEAD)
        dataset = dataset.mp_prefetch(options, follow_parent)
    iterator = iter(dataset)
    try:
        with deaf_to_signals():  # the processes start here
            first = next(iterator)
        yield first
        yield from iterator
    except RuntimeError as error:
        if not str(error).startswith("Worker process was terminated"):
            raise
        remedy = "perhaps for lack of memory: try a smaller data.decode_processes"
        raise ChildProcessError(f"a process that decodes images was killed, {remedy}") from error
    finally:
        iterator.close()
