"""The order in which a run sees its examples: reshuffled every epoch, each example once an epoch.

Order is a pure function of (seed, epoch): a run of any number of workers sees the same examples at the same step, and
a resumed run needs only the number of examples seen so far.
"""

import numpy as np

_VIEW_STREAM = 1  # of the generators keyed by (seed, epoch); the order of the epoch is drawn from stream 0


class ExampleOrder:
    """An endless sequence of examples: the permutation of epoch 0, then of epoch 1, and so on; batches may span two."""

    def __init__(self, num_examples: int, seed: int):
        if num_examples < 1:
            raise ValueError(f"num_examples={num_examples}: there must be at least 1")
        self._num_examples = num_examples
        self._seed = seed
        self._cached = -1, np.empty(0, np.int32)  # one tuple, as threads share it

    def batch(self, start: int, size: int) -> np.ndarray:
        """int32[size]: the examples from place `start` of the sequence on."""
        pieces, stop = [], start + size
        while start < stop:
            epoch, offset = divmod(start, self._num_examples)
            piece = self._permuted(epoch)[offset : offset + stop - start]
            pieces.append(piece)
            start += len(piece)
        return np.concatenate(pieces)

    def locate(self, start: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        """int32[size] twice: the epochs of the same places, and where in them those are."""
        epochs, places = np.divmod(np.arange(start, start + size), self._num_examples)
        return epochs.astype(np.int32), places.astype(np.int32)

    def create_generator(self, epoch: int, place: int) -> np.random.Generator:
        """Draws the choices for one example; its counter meets neither another's nor the shuffle's, from 0 on."""
        return np.random.Generator(np.random.Philox(key=[self._seed, epoch], counter=[0, place, 0, _VIEW_STREAM]))

    def _permuted(self, epoch: int) -> np.ndarray:
        cached, permutation = self._cached
        if epoch != cached:
            generator = np.random.Generator(np.random.Philox(key=[self._seed, epoch]))
            permutation = generator.permutation(self._num_examples).astype(np.int32)
            self._cached = epoch, permutation
        return permutation
