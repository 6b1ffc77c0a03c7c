"""Buckets in pieces, so that one piece is encoded or decoded while another is on the wire."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxtern.compression import exchange as collectives
from jaxtern.compression.buckets import Tensors
from jaxtern.compression.schedule import Plan, receive_span, send_span
from jaxtern.compression.wire import Received, Shards
from jaxtern.kernels import follow
from jaxtern.kernels.segments import split

_AHEAD = 2  # pieces: one on its way, one ready to follow it
_KEPT = 3  # pieces, whose memory nothing else is given


class _Piece(NamedTuple):
    """Elements from `start` on, `size` of them, of bucket `number`; and float32[1, m] that travel with them."""

    number: int
    start: int
    size: int
    floats: jax.Array
    is_last: bool


def average_in_pieces(plan: Plan, bucketed: Sequence[Tensors], own_key: jax.Array, key: jax.Array) -> list[Tensors]:
    """The means of all buckets, in the memory of their gradients.

    Each piece is encoded from that memory, and its mean is decoded into it. While piece i is on its way, i + 2 is
    encoded and i - 1 decoded; of an exchange of two collectives, the second follows the first one of the next piece, so
    that what is computed between them has that time. What a collective is made of is needed a few pieces longer: XLA
    would give its memory to something else, which would wait for the collective.

    Args:
      plan: of the update.
      bucketed: this worker's gradients.
      own_key: of this worker's noise.
      key: of the noise of "two_way".
    """
    pieces = _cut(plan, bucketed)
    memory, sent, received = _Memory(plan, bucketed, own_key), [], []
    words = [memory.encode(piece, ()) for piece in pieces[:_AHEAD]]
    before = words[1:]  # what the next collective follows
    for turn, piece in enumerate([*pieces, None]):
        if piece is not None:
            own = follow(words[turn], before)[None]
            sent.append(send_span(plan, piece.number, own, piece.floats, as_total=True))
            if turn + _AHEAD < len(pieces):
                words.append(memory.encode(pieces[turn + _AHEAD], before))
            before = [sent[turn].arrived]
        if turn > 0:
            last = pieces[turn - 1]
            received.append(receive_span(plan, last.number, sent[turn - 1], last.size, key, last.start, before[0]))
            memory.decode(last, received[-1], received[turn - 1 - _KEPT].kept if turn > _KEPT else ())
            if isinstance(sent[turn - 1], Shards):
                before = [received[-1].arrived]
    floats = [own.floats for piece, own in zip(pieces, received, strict=True) if piece.is_last]
    return [Tensors(tensors, own) for tensors, own in zip(memory.tensors, floats, strict=True)]


def _cut(plan: Plan, bucketed: Sequence[Tensors]) -> list[_Piece]:
    """All pieces, in their order; what stays float travels with the last one of its bucket."""
    pieces = []
    for number, bucket in enumerate(bucketed):
        for start, size in plan.pieces(number):
            is_last = start + size >= sum(plan.sizes(number))
            floats = bucket.floats if is_last else bucket.floats[:0]
            pieces.append(_Piece(number, start, size, floats[None], is_last))
    return pieces


def _share_scales(plan: Plan, bucketed: Sequence[Tensors]) -> list[jax.Array]:
    """The scales of every bucket, the same on all workers, by one collective."""
    sizes = [plan.sizes(number) for number in range(len(bucketed))]
    tensors = [tensor for bucket in bucketed for tensor in bucket.compressed]
    local = plan.codec.local_scales(tensors, sum(sizes, ()))
    shared = collectives.maximum(local, plan.axes.workers) if local.size else local
    return split(shared, tuple(plan.codec.num_scales(own) for own in sizes))


class _Memory:
    """The memory of all tensors: at first gradients, then means."""

    def __init__(self, plan: Plan, bucketed: Sequence[Tensors], key: jax.Array):
        self.tensors = [list(bucket.compressed) for bucket in bucketed]
        self._plan, self._key = plan, key
        self._scales = _share_scales(plan, bucketed)

    def encode(self, piece: _Piece, after: Sequence[jax.Array]) -> jax.Array:
        """uint32[W] words of a piece, when `after` is there."""
        if not piece.size:
            return jnp.zeros((0,), jnp.uint32)
        first, last, start = self._touched(piece)
        words, self.tensors[piece.number][first:last] = self._plan.codec.encode_span(
            self.tensors[piece.number][first:last],
            self._scales_of(piece.number, first, last),
            self._key,
            (start, piece.size),
            self._plan.num_added(piece.number),
            position=self._plan.layout.buckets[piece.number].position + piece.start,
            after=after,
        )
        return words

    def decode(self, piece: _Piece, received: Received, after: Sequence[jax.Array]) -> None:
        """Puts the mean of a piece in its place, when `after` is there."""
        if not piece.size:
            return
        first, last, start = self._touched(piece)
        self.tensors[piece.number][first:last] = self._plan.codec.decode_span(
            received.words,
            received.total,
            self._scales_of(piece.number, first, last),
            self.tensors[piece.number][first:last],
            (start, piece.size),
            received.num_added,
            received.num_workers,
            after=after,
        )

    def _touched(self, piece: _Piece) -> tuple[int, int, int]:
        """The tensors in which a piece lies, from `first` to before `last`, and where it begins in them."""
        sizes, before = self._plan.sizes(piece.number), 0
        first = 0
        while before + sizes[first] <= piece.start:
            before += sizes[first]
            first += 1
        last, end = first, before
        while end < piece.start + piece.size:
            end += sizes[last]
            last += 1
        return first, last, piece.start - before

    def _scales_of(self, number: int, first: int, last: int) -> jax.Array:
        sizes, count = self._plan.sizes(number), self._plan.codec.num_scales
        start = count(sizes[:first])
        return self._scales[number][start : start + count(sizes[first:last])]
