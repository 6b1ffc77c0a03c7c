"""The two halves of an update: local gradients to what every worker sends, and what arrives to the mean."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxtern.compression import buckets, cost, exchange as collectives, statistics, wire
from jaxtern.compression.buckets import Flat, Layout
from jaxtern.compression.codecs import Codec, Ternary
from jaxtern.compression.cost import Network
from jaxtern.compression.wire import Axes
from jaxtern.kernels import derive_key

MEAN_WORKER = 2**32 - 1  # whose noise rounds the means of "two_way": no worker has this number
_PIECES_AHEAD = 2  # one on its way, one ready to follow it


class Plan(NamedTuple):
    """What is known when an update is traced.

    Attributes:
      layout: of the gradients.
      codec: of those that are compressed.
      exchanges: of each bucket; none where nothing is compressed ("float").
      axes: where the workers lie.
      num_workers: N.
      local_workers: V, those of one device.
      piece_size: elements; a tensor with more travels in pieces, if its codec can decode them in place. None: whole.
    """

    layout: Layout
    codec: Codec
    exchanges: tuple[str, ...]
    axes: Axes
    num_workers: int
    local_workers: int
    piece_size: int | None

    def num_added(self, number: int) -> int:
        """Workers whose words are added on the wire, in bucket `number`."""
        return self.num_workers if self.exchanges[number] == "sum" else 1

    def pieces(self, number: int) -> list[tuple[int, int]]:
        """First element and elements of each piece of bucket `number`."""
        sizes = self.layout.sizes(self.layout.buckets[number].compressed)
        size, total = None, sum(sizes)
        if self.piece_size is not None and self.local_workers == len(sizes) == 1 and total > self.piece_size:
            devices = collectives.count_workers(self.axes.workers) * collectives.count_workers(self.axes.fast)
            size = self.codec.piece_size(self.piece_size, devices, self.num_workers)
        size = size or max(total, 1)
        return [(start, min(size, total - start)) for start in range(0, total, size)] or [(0, 0)]


class Pending(NamedTuple):
    """What was sent in an update.

    Attributes:
      local: each worker's own, with a leading axis of the workers of a device: of every bucket (words, floats), uint32
        [V, W] and float32[V, m]; where nothing is compressed, the mean of their gradients.
      shared: float32[num_scales] of every bucket, the same on every worker.

    Arrays without elements are None, as checkpoints cannot hold them.
    """

    local: Any
    shared: Any


def plan_update(
    layout: Layout,
    codec: Codec,
    exchange: str,
    axes: Axes,
    network: Network,
    local_workers: int,
    piece_size: int | None,
) -> Plan:
    """Chooses each bucket's exchange.

    Raises:
      ValueError: for an exchange that cannot add so many workers.
    """
    num_workers = collectives.count_workers(axes.workers) * local_workers
    if exchange == "float":
        return Plan(layout, codec, (), axes, num_workers, local_workers, piece_size)
    devices = collectives.count_workers(axes.fast)
    exchanges = tuple(
        choose_exchange(
            exchange, codec, layout.sizes(b.compressed), layout.sizes(b.floats), num_workers, network, devices
        )
        for b in layout.buckets
    )
    return Plan(layout, codec, exchanges, axes, num_workers, local_workers, piece_size)


def resolve(codec: Codec | str, exchange: str) -> tuple[Codec, str]:
    """The codec and exchange that the arguments name; either may say "float".

    Raises:
      ValueError: for any other name.
    """
    if exchange not in ("auto", *cost.EXCHANGES):
        raise ValueError(f"exchange={exchange!r}: must be one of auto, {', '.join(cost.EXCHANGES)}")
    if isinstance(codec, str):
        if codec not in ("ternary", "float"):
            raise ValueError(f"codec={codec!r}: must be ternary, float, or a Codec")
        return Ternary(), "float" if codec == "float" else exchange
    if not hasattr(codec, "encode"):
        raise ValueError(f"codec={codec!r}: must be ternary, float, or a Codec")
    return codec, exchange


def choose_exchange(
    exchange: str,
    codec: Codec,
    compressed: tuple[int, ...],
    floats: tuple[int, ...],
    num_workers: int,
    network: Network,
    devices_per_worker: int = 1,
) -> str:
    """What "auto" means for a bucket of tensors of these sizes.

    Raises:
      ValueError: for "sum" and "scatter" where the words of so many workers cannot be added.
    """
    if exchange == "auto":
        return cost.cheapest_exchange(codec, compressed, floats, num_workers, network, devices_per_worker)
    if exchange in ("sum", "scatter") and not codec.can_add(num_workers):
        raise ValueError(
            f"exchange={exchange!r}: the words of {num_workers} workers of {codec} do not add; take 'gather'"
        )
    return exchange


def average(plan: Plan, workers: Sequence[Any], seed: int, count: jax.Array) -> Any:
    """The mean of gradients; large buckets travel in pieces, so that one is decoded while the next is on its way.

    Args:
      plan: of the update.
      workers: gradients of each worker on this device.
      seed: of the noise.
      count: updates before this one.
    """
    if not plan.exchanges:
        return receive(plan, send(plan, workers, seed, count), seed, count)
    keys, key = _keys(plan, workers, seed, count), derive_key(seed, count, MEAN_WORKER)
    means = []
    for number, flats in enumerate(_flatten(plan, workers)):
        if len(plan.pieces(number)) > 1:
            means.append(_average_in_pieces(plan, number, flats[0], keys[0], key))
        else:
            local, scales = _send_bucket(plan, number, flats, keys)
            means.append(_receive_bucket(plan, number, local, scales, key))
    return buckets.unflatten(means, plan.layout)


def send(plan: Plan, workers: Sequence[Any], seed: int, count: jax.Array) -> Pending:
    """Scales, their maximum over the workers, and words of every bucket: what is to be exchanged."""
    if not plan.exchanges:
        if len(workers) > 1:
            workers = [jax.tree.map(lambda *leaves: functools.reduce(jnp.add, leaves) / len(leaves), *workers)]
        return Pending(jax.tree.map(lambda leaf: leaf[None], workers[0]), ())
    keys = _keys(plan, workers, seed, count)
    sent = [_send_bucket(plan, number, flats, keys) for number, flats in enumerate(_flatten(plan, workers))]
    local, shared = zip(*sent, strict=True)
    return Pending(local, shared)


def receive(plan: Plan, pending: Pending, seed: int, count: jax.Array) -> Any:
    """Exchanges what was sent, in this update or the one before, and decodes the mean."""
    if not plan.exchanges:
        local = jax.tree.map(lambda leaf: leaf[0], pending.local)
        return collectives.float_mean(local, plan.axes.fast + plan.axes.workers)
    key = derive_key(seed, count, MEAN_WORKER)
    flats = [
        _receive_bucket(plan, number, local, scales, key)
        for number, (local, scales) in enumerate(zip(pending.local, pending.shared, strict=True))
    ]
    return buckets.unflatten(flats, plan.layout)


def _keys(plan: Plan, workers: Sequence[Any], seed: int, count: jax.Array) -> list[jax.Array]:
    """Of the noise of each worker here."""
    first = collectives.worker_index(plan.axes.workers) * len(workers)
    return [derive_key(seed, count, first + index) for index in range(len(workers))]


def _flatten(plan: Plan, workers: Sequence[Any]) -> list[list[Flat]]:
    """Every bucket of every worker here, averaged over the fast axes."""
    flats = [buckets.flatten(tree, plan.layout) for tree in workers]
    if plan.axes.fast:
        flats = [[Flat(*collectives.float_mean(tuple(flat), plan.axes.fast)) for flat in own] for own in flats]
    return [list(of_workers) for of_workers in zip(*flats, strict=True)]


def _shared_scales(plan: Plan, flats: Sequence[Flat], sizes: tuple[int, ...]) -> jax.Array:
    scales = functools.reduce(jnp.maximum, [plan.codec.local_scales(flat.compressed, sizes) for flat in flats])
    return collectives.maximum(scales, plan.axes.workers) if scales.size else scales


def _send_bucket(
    plan: Plan, number: int, flats: Sequence[Flat], keys: Sequence[jax.Array]
) -> tuple[tuple[jax.Array | None, jax.Array | None], jax.Array | None]:
    bucket = plan.layout.buckets[number]
    sizes, added = plan.layout.sizes(bucket.compressed), plan.num_added(number)
    scales = _shared_scales(plan, flats, sizes)
    words = [
        plan.codec.encode(flat.compressed, scales, key, sizes, added, position=bucket.position)
        for flat, key in zip(flats, keys, strict=True)
    ]
    floats = jnp.stack([flat.floats for flat in flats])
    return (_or_none(jnp.stack(words)), _or_none(floats)), _or_none(scales)


def _receive_bucket(
    plan: Plan,
    number: int,
    local: tuple[jax.Array | None, jax.Array | None],
    scales: jax.Array | None,
    key: jax.Array,
) -> Flat:
    bucket, (words, floats) = plan.layout.buckets[number], local
    sizes = plan.layout.sizes(bucket.compressed)
    words = jnp.zeros((plan.local_workers, 0), jnp.uint32) if words is None else words
    floats = jnp.zeros((plan.local_workers, 0), jnp.float32) if floats is None else floats
    scales = jnp.zeros((0,), jnp.float32) if scales is None else scales
    received = _exchange(plan, number, words, floats, sizes, key, 0)
    mean = plan.codec.decode(received.words, scales, sizes, received.num_added, received.num_workers)
    return Flat(mean, received.floats)


def _average_in_pieces(plan: Plan, number: int, flat: Flat, own_key: jax.Array, key: jax.Array) -> Flat:
    """A chain of steps on the memory of the gradient: each piece is encoded from it, and its mean decoded into it.

    Piece i + 2 is encoded when piece i has arrived and i + 1 is on its way, and then piece i is decoded.
    """
    (place,), _, position = plan.layout.buckets[number]
    pieces, scales = plan.pieces(number), _shared_scales(plan, [flat], plan.layout.sizes((place,)))
    floats, words = flat.floats[None], []
    memory = flat.compressed.reshape(plan.layout.shapes[place])  # as it was: XLA copies what is reshaped in a chain

    def own_scales(start: int, count: int) -> jax.Array:
        first = plan.codec.num_scales((start,)) if scales.size > 1 else 0
        return scales[first : first + plan.codec.num_scales((count,))]

    def encode(index: int, after: Sequence[jax.Array]) -> jax.Array:
        start, count = pieces[index]
        made, rest = plan.codec.encode_piece(
            memory,
            own_scales(start, count),
            own_key,
            (count,),
            plan.num_added(number),
            start=start,
            position=position + start,
            after=after,
        )
        words.append(made[None])
        return rest

    for index in range(min(_PIECES_AHEAD, len(pieces))):
        memory = encode(index, ())
    for index, (start, count) in enumerate(pieces):
        is_last = index + 1 == len(pieces)
        received = _exchange(plan, number, words[index], floats if is_last else floats[:, :0], (count,), key, start)
        if index + _PIECES_AHEAD < len(pieces):
            memory = encode(index + _PIECES_AHEAD, (received.words,))
        made = received.num_added, received.num_workers
        memory = plan.codec.decode(received.words, own_scales(start, count), (count,), *made, into=memory, start=start)
        floats = received.floats[None] if is_last else floats
    return Flat(memory.reshape(-1), floats[0])


def _exchange(
    plan: Plan, number: int, words: jax.Array, floats: jax.Array, sizes: tuple[int, ...], key: jax.Array, start: int
) -> wire.Received:
    """Of a bucket, or of its piece from element `start` on."""
    position = plan.layout.buckets[number].position + start
    return wire.exchange_bucket(plan.exchanges[number], plan.codec, words, floats, sizes, plan.axes, key, position)


def _or_none(array: jax.Array) -> jax.Array | None:
    return array if array.size else None


def nothing_sent(plan: Plan, params: Any) -> Pending:
    """What an update of zero gradients sends, with which a delayed mean begins."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    return send(plan, [zeros] * plan.local_workers, 0, jnp.zeros((), jnp.int32))


def measure(plan: Plan, workers: Sequence[Any], sent: Pending, mean: Any) -> statistics.Statistics:
    """The statistics of an update."""
    if not plan.exchanges:
        return statistics.unknown()
    flats = _flatten(plan, workers)
    gradients = [jnp.concatenate([of_bucket[v].compressed for of_bucket in flats]) for v in range(len(workers))]
    decoded = [
        jnp.concatenate([_decode_own(plan, number, sent, v) for number in range(len(flats))])
        for v in range(len(workers))
    ]
    means = jnp.concatenate([flat.compressed for flat in buckets.flatten(mean, plan.layout)])
    scales = jnp.concatenate([jnp.zeros((0,), jnp.float32), *(own for own in sent.shared if own is not None)])
    return statistics.measure(gradients, decoded, means, scales, plan.axes.workers)


def _decode_own(plan: Plan, number: int, sent: Pending, worker: int) -> jax.Array:
    """What one worker here sent of a bucket, as floats."""
    sizes, scales = plan.layout.sizes(plan.layout.buckets[number].compressed), sent.shared[number]
    if scales is None:
        return jnp.zeros((0,), jnp.float32)
    return plan.codec.decode(sent.local[number][0][worker][None], scales, sizes, plan.num_added(number), num_workers=1)
