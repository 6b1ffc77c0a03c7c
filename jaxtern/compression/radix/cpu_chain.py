"""On CPUs: the memory of the tensors themselves, out of which pieces are encoded and into which means are decoded."""

from collections.abc import Sequence

import jax

from jaxtern.compression.radix.exchanges import Received
from jaxtern.compression.radix.pipeline import Piece, Plan
from jaxtern.compression.reducer import Group, Tensors
from jaxtern.kernels.segments import split


class Memory:
    """The tensors of one worker, which hold gradients at first and means in the end; no bucket is ever joined.

    Attributes:
      sent: None; who asks for it takes `pipeline.Buckets`.
    """

    sent = None

    def __init__(self, plan: Plan, tensors: Tensors, group: Group):
        """Shares the scales of all buckets, by one collective."""
        self._tensors = dict(enumerate(tensors))
        self._plan, self._group, (self._bits,) = plan, group, plan.quantizer.bits(group)
        ordered = [tensors[place] for bucket in plan.buckets for place in bucket.places]
        sizes = [bucket.sizes for bucket in plan.buckets]
        measured = plan.quantizer.measure(ordered, sum(sizes, ()))
        shared = group.maximum([measured.scales])
        counts = tuple(plan.quantizer.num_scales(own) for own in sizes)
        self._scales = split(shared, counts)
        self._own_scales = split(plan.quantizer.own_scales(shared, measured), counts)

    @property
    def tensors(self) -> Tensors:
        """float32, in their order."""
        return list(self._tensors.values())

    def encode(self, piece: Piece, after: Sequence[jax.Array]) -> jax.Array:
        places, scales, start = self._touched(piece, self._own_scales)
        words, tensors = self._plan.quantizer.encode_span(
            [self._tensors[place] for place in places],
            scales,
            self._bits,
            (start, piece.size),
            self._plan.exchanges[piece.number].num_added(self._group.size),
            position=self._plan.buckets[piece.number].position + piece.start,
            after=after,
        )
        self._tensors |= zip(places, tensors, strict=True)
        return words[None]

    def decode(self, piece: Piece, received: Received, after: Sequence[jax.Array]) -> None:
        places, scales, start = self._touched(piece, self._scales)
        position = self._plan.buckets[piece.number].position + piece.start
        tensors = self._plan.quantizer.decode_span(
            received.words,
            received.total,
            scales,
            [self._tensors[place] for place in places],
            (start, piece.size),
            received.num_added,
            received.num_workers,
            self._plan.quantizer.dither(self._group, position),
            after=after,
        )
        self._tensors |= zip(places, tensors, strict=True)

    def _touched(self, piece: Piece, scales: list[jax.Array]) -> tuple[tuple[int, ...], jax.Array, int]:
        """The tensors in which a piece lies, their scales, and where it begins in the first of them."""
        bucket, count = self._plan.buckets[piece.number], self._plan.quantizer.num_scales
        first, before = 0, 0
        while before + bucket.sizes[first] <= piece.start:
            before += bucket.sizes[first]
            first += 1
        last, end = first, before
        while end < piece.start + piece.size:
            end += bucket.sizes[last]
            last += 1
        start = count(bucket.sizes[:first])
        touched = scales[piece.number][start : start + count(bucket.sizes[first:last])]
        return bucket.places[first:last], touched, piece.start - before
