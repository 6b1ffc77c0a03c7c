"""The pipeline of a reduction: one piece is encoded or decoded while another is on the wire."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxtern.compression import collectives
from jaxtern.compression.network.links import Network
from jaxtern.compression.radix.buckets import Bucket, Piece
from jaxtern.compression.radix.exchanges import Exchange
from jaxtern.compression.radix.quantizer import Quantizer, Received
from jaxtern.compression.reducer import Group, Tensors, put
from jaxtern.kernels import concatenate, follow
from jaxtern.kernels.segments import split

_AHEAD = 2  # pieces: one on its way, one ready to follow
_KEPT = 3  # pieces whose operands keep their memory


class Plan(NamedTuple):
    """Decisions made when a reduction is traced."""

    buckets: list[Bucket]  # tensors that travel together
    quantizer: Quantizer  # quantizer of all elements
    exchanges: list[Exchange]  # exchange of each bucket
    links: Network  # links between the workers
    piece_size: int | None = None  # elements of a piece, about; larger buckets travel in pieces. None: whole.
    is_in_place: bool = False  # whether means take the memory of the tensors


def run(plan: Plan, pieces: Sequence[Piece], store: Any, group: Group) -> None:
    """Exchanges all pieces, one after another, from and to `Buckets` or `cpu_chain.Memory`.

    While piece i is on its way, i + 2 is encoded and i - 1 decoded. In an exchange of two collectives, the second one
    follows the first one of the next piece, which leaves time to compute between them. The operands of collectives are
    kept for a few pieces, as XLA would give their memory to something that then waits for it.
    """
    sent: list[Received] = []
    received: list[Received] = []
    words = [store.encode(piece, ()) for piece in pieces[:_AHEAD]]
    # What the next collective follows; for whole buckets XLA orders the rest, and the first one waits for nothing.
    before: list[jax.Array] = words[1:] if plan.piece_size is not None else []
    for turn, piece in enumerate([*pieces, None]):
        if piece is not None:
            ready = follow(words[turn], collectives.that_vary_no_more(before, words[turn]))
            sent.append(plan.exchanges[piece.number].send(plan.quantizer, ready, group, plan.links))
            if turn + _AHEAD < len(pieces):
                words.append(store.encode(pieces[turn + _AHEAD], before))
            before = [sent[turn].arrived]
        if turn > 0:
            last = pieces[turn - 1]
            exchange = plan.exchanges[last.number]
            received.append(exchange.receive(plan.quantizer, sent[turn - 1], last, group, before[0]))
            store.decode(last, received[-1], received[turn - 1 - _KEPT].kept if turn > _KEPT else ())
            if exchange.has_two_collectives:
                before = [received[-1].arrived]


class Buckets:
    """Whole buckets, each joined to a vector for the kernels, on any device and with any number of workers."""

    def __init__(self, plan: Plan, workers: Sequence[Tensors], group: Group):
        """Takes float32 tensors."""
        self.tensors: list[jax.Array] = list(workers[0])  # means, once all are decoded
        # Each worker's own tensors as decoded; None if the group does not ask.
        self.sent: list[Tensors] | None = [list(own) for own in workers] if group.tracks else None
        self._plan, self._workers, self._group, self._bits = plan, workers, group, plan.quantizer.bits(group)
        self.scales: dict[int, jax.Array] = {}  # shared scales of each bucket that was encoded, by its number

    def encode(self, piece: Piece, after: Sequence[jax.Array]) -> jax.Array:
        """uint32[V, W] words of the workers here; XLA orders them, so `after` is ignored."""
        quantizer, (places, sizes, position) = self._plan.quantizer, self._plan.buckets[piece.number]
        flats = [concatenate([own[place] for place in places]) for own in self._workers]
        measured = [quantizer.measure(flat, sizes) for flat in flats]
        # One after the other, as XLA would join the maxima of all buckets, and the first would wait for the last.
        before = [lax.bitcast_convert_type(scales, jnp.uint32) for scales in [*self.scales.values()][-1:]]
        before = collectives.that_vary_no_more(before, measured[0].scales)
        scales = quantizer.share_scales(measured, self._group, before)
        self.scales[piece.number] = scales
        added = self._plan.exchanges[piece.number].num_added(self._group.size)
        own_scales = [quantizer.own_scales(scales, own) for own in measured]
        words = [
            quantizer.encode(*own, sizes, added, position=position)
            for own in zip(flats, own_scales, self._bits, strict=True)
        ]
        for sent, own, bits in zip(self.sent or (), words, self._bits, strict=False):
            dither = quantizer.dither(self._group, position, bits)
            decoded = quantizer.decode(Received(own[None], added, 1), scales, sizes, dither)
            put_flat(sent, places, split(decoded, sizes))
        return jnp.stack(words)

    def decode(self, piece: Piece, received: Received, after: Sequence[jax.Array]) -> None:
        """Decodes and keeps the mean of a piece."""
        quantizer, (places, sizes, position) = self._plan.quantizer, self._plan.buckets[piece.number]
        scales, dither = self.scales[piece.number], received.dither or quantizer.dither(self._group, position)
        if self._plan.is_in_place:
            into = [self.tensors[place] for place in places]
            means = quantizer.decode_span(received, scales, into, (0, piece.size), dither)
        else:
            means = split(quantizer.decode(received, scales, sizes, dither), sizes)
        put_flat(self.tensors, places, means)


def put_flat(tensors: Tensors, places: Sequence[int], parts: Sequence[jax.Array]) -> None:
    """Does the same as `put` for parts of any shape."""
    put(tensors, places, [part.reshape(tensors[at].shape) for at, part in zip(places, parts, strict=True)])


def cut(total: int, piece_size: int | None, quantizer: Quantizer, devices: int, workers: int) -> list[tuple[int, int]]:
    """(start, size) of a bucket's pieces, which are about equal; a single one if `piece_size` is None."""
    count = 1 if piece_size is None else max(1, round(total / piece_size))
    size = quantizer.piece_size(-(-total // count), devices, workers) if count > 1 else None
    size = size or max(total, 1)
    return [(start, min(size, total - start)) for start in range(0, total, size)]


def list_pieces(plan: Plan, group: Group) -> list[Piece]:
    """The pieces of all buckets that hold an element."""
    devices = collectives.count_workers(group.axes.workers + group.axes.fast)
    return [
        Piece(number, start, size, bucket.position + start, bucket.sizes)
        for number, bucket in enumerate(plan.buckets)
        for start, size in cut(bucket.size, plan.piece_size, plan.quantizer, devices, group.size)
    ]
