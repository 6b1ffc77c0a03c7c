"""On CPUs, pieces are encoded from the tensors' own memory, and means decoded into it."""

from collections.abc import Sequence

import jax
import numpy as np

from jaxtern.compression.radix.buckets import Piece
from jaxtern.compression.radix.pipeline import Plan
from jaxtern.compression.radix.quantizer import Received
from jaxtern.compression.reducer import Group, Tensors, put
from jaxtern.kernels.segments import split


class Memory:
    """The tensors of one worker, which hold gradients at first and means in the end; buckets are not joined."""

    sent = None  # only `pipeline.Buckets` has it

    def __init__(self, plan: Plan, tensors: Tensors, group: Group):
        """Shares the scales of all buckets with one collective."""
        self.tensors: Tensors = list(tensors)  # float32, in the order of the layout
        self._plan, self._group, (self._bits,) = plan, group, plan.quantizer.bits(group)
        ordered = [tensors[place] for bucket in plan.buckets for place in bucket.places]
        sizes = [bucket.sizes for bucket in plan.buckets]
        measured = plan.quantizer.measure(ordered, sum(sizes, ()))
        shared = plan.quantizer.share_scales([measured], group)
        counts = tuple(plan.quantizer.num_scales(own) for own in sizes)
        self._scales = split(shared, counts)
        self._own_scales = split(plan.quantizer.own_scales(shared, measured), counts)

    def encode(self, piece: Piece, after: Sequence[jax.Array]) -> jax.Array:
        places, scales, span = self._touched(piece, self._own_scales)
        touched = [self.tensors[place] for place in places]
        added = self._plan.exchanges[piece.number].num_added(self._group.size)
        options = {"position": piece.position, "after": after}
        words, tensors = self._plan.quantizer.encode_span(touched, scales, self._bits, span, added, **options)
        put(self.tensors, places, tensors)
        return words[None]

    def decode(self, piece: Piece, received: Received, after: Sequence[jax.Array]) -> None:
        places, scales, span = self._touched(piece, self._scales)
        touched = [self.tensors[place] for place in places]
        dither = received.dither or self._plan.quantizer.dither(self._group, piece.position)
        means = self._plan.quantizer.decode_span(received, scales, touched, span, dither, after=after)
        put(self.tensors, places, means)

    def _touched(self, piece: Piece, scales: list[jax.Array]) -> tuple[tuple[int, ...], jax.Array, tuple[int, int]]:
        """The places of a piece's tensors, their scales, and the piece's (start, size) in them."""
        bucket, count = self._plan.buckets[piece.number], self._plan.quantizer.num_scales
        ends = np.cumsum(bucket.sizes)
        first = int(np.searchsorted(ends, piece.start, side="right"))
        last = int(np.searchsorted(ends, piece.start + piece.size)) + 1
        start = count(bucket.sizes[:first])
        touched = scales[piece.number][start : start + count(bucket.sizes[first:last])]
        return bucket.places[first:last], touched, (piece.start - sum(bucket.sizes[:first]), piece.size)
