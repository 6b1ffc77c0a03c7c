"""One large tensor in pieces, so that a piece is encoded or decoded while another is on the wire."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxtern.compression.buckets import Flat
from jaxtern.compression.schedule import Plan, after_exchange, exchange_span
from jaxtern.compression.wire import Received

_AHEAD = 2  # pieces: one on its way, one ready to follow it


def average_in_pieces(
    plan: Plan,
    number: int,
    flat: Flat,
    scales: jax.Array,
    own_key: jax.Array,
    key: jax.Array,
    before: Received | None,
) -> tuple[Flat, Received | None]:
    """The mean of a bucket that is one tensor, by a chain of steps on the memory of its gradient.

    Each piece is encoded from that memory, and its mean is decoded into it: piece i + 2 is encoded when piece i has
    arrived and i + 1 is on its way, and then piece i is decoded. Where the codec does not decode in place, the means
    are put together behind.

    Args:
      plan: of the update.
      number: of the bucket.
      flat: this worker's gradients.
      scales: shared by all workers.
      own_key: of this worker's noise.
      key: of the noise of "two_way".
      before: what the exchange of the bucket before left.

    Returns:
      The mean, and what the last exchange left.
    """
    pieces, floats, chain = plan.pieces(number), flat.floats[None], _Chain(plan, number, flat, scales, own_key)
    words, means = [chain.encode(piece, ()) for piece in pieces[:_AHEAD]], []
    received = before
    for index, piece in enumerate(pieces):
        is_last = index + 1 == len(pieces)
        own = after_exchange(words[index], received)
        received = exchange_span(
            plan, number, own, floats if is_last else floats[:, :0], piece[1:], key, start=piece[0]
        )
        if index + _AHEAD < len(pieces):
            words.append(chain.encode(pieces[index + _AHEAD], (received.words,)))
        means.append(chain.decode(piece, received.words, received.num_added, received.num_workers))
    mean = chain.memory.reshape(-1) if chain.is_in_place else jnp.concatenate(means)
    return Flat(mean, flat.floats if received is None else received.floats), received


@dataclasses.dataclass
class _Chain:
    """The memory that steps hand on to one another, at first the gradient."""

    plan: Plan
    number: int
    flat: Flat
    scales: jax.Array
    key: jax.Array

    def __post_init__(self):
        (place,) = self.plan.layout.buckets[self.number].compressed
        self.memory = self.flat.compressed.reshape(self.plan.layout.shapes[place])  # reshaped in a chain, XLA copies it
        self.is_in_place = self.plan.codec.is_in_place(self.flat.compressed.size)

    def encode(self, piece: tuple[int, int], after: Sequence[jax.Array]) -> jax.Array:
        """uint32[1, W] words of a piece, when `after` is there."""
        start, size = piece
        words, self.memory = self.plan.codec.encode_piece(
            self.memory,
            self._scales_of(piece),
            self.key,
            (size,),
            self.plan.num_added(self.number),
            start=start,
            position=self.plan.layout.buckets[self.number].position + start,
            after=after,
        )
        return words[None]

    def decode(self, piece: tuple[int, int], words: jax.Array, num_added: int, num_workers: int) -> jax.Array:
        """The mean of a piece, or the memory with the mean in it."""
        start, size = piece
        arguments = words, self._scales_of(piece), (size,), num_added, num_workers
        if not self.is_in_place:
            return self.plan.codec.decode(*arguments)
        self.memory = self.plan.codec.decode(*arguments, into=self.memory, start=start)
        return self.memory

    def _scales_of(self, piece: tuple[int, int]) -> jax.Array:
        """One for all pieces, or those of a piece's blocks."""
        start, size = piece
        count = self.plan.codec.num_scales
        first = count((start,)) if self.scales.size > 1 else 0
        return self.scales[first : first + count((size,))]
