"""The order in which a run sees its examples: reshuffled every epoch, each example once an epoch.

The order is a pure function of (seed, epoch). So any number of workers see the same examples at the same step, and a
resumed run needs only the number of examples seen so far.
"""

import functools

import numpy as np

_VIEW_STREAM = 1  # Philox stream of the views of examples; stream 0 draws the order of the epoch


class ExampleOrder:
    """An endless sequence of examples: a permutation for epoch 0, then one for epoch 1; batches may span epochs."""

    def __init__(self, num_examples: int, seed: int):
        self._num_examples = num_examples
        self._seed = seed

    def batch(self, start: int, size: int) -> np.ndarray:
        """int32[size]: the examples at places `start` to `start + size` of the sequence."""
        epochs, places = self.locate(start, size)
        permute = functools.partial(_permute, self._num_examples, self._seed)
        return np.concatenate([permute(each)[places[epochs == each]] for each in np.unique(epochs).tolist()])

    def locate(self, start: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        """int32[size] twice: the epoch of each of these places, and its place in that epoch."""
        epochs, places = np.divmod(np.arange(start, start + size), self._num_examples)
        return epochs.astype(np.int32), places.astype(np.int32)

    def create_generator(self, epoch: int, place: int) -> np.random.Generator:
        """A generator of the random choices for one example; its counter overlaps with no other's."""
        return np.random.Generator(np.random.Philox(key=[self._seed, epoch], counter=[0, place, 0, _VIEW_STREAM]))


@functools.lru_cache(maxsize=2)  # a batch may span two epochs
def _permute(num_examples: int, seed: int, epoch: int) -> np.ndarray:
    generator = np.random.Generator(np.random.Philox(key=[seed, epoch]))
    return generator.permutation(num_examples).astype(np.int32)
