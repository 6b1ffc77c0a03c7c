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


class Plan(NamedTuple):
    """What is known when an update is traced.

    Attributes:
      layout: of the gradients.
      codec: of those that are compressed.
      exchanges: of each bucket; none where nothing is compressed ("float").
      axes: where the workers lie.
      num_workers: N.
      piece_size: elements; a tensor with more travels in pieces, if its codec can decode them in place. None: whole.
    """

    layout: Layout
    codec: Codec
    exchanges: tuple[str, ...]
    axes: Axes
    num_workers: int
    piece_size: int | None

    def num_added(self, number: int) -> int:
        """Workers whose words are added on the wire, in bucket `number`."""
        return self.num_workers if self.exchanges[number] == "sum" else 1

    def pieces(self, number: int) -> list[tuple[int, int]]:
        """First element and elements of each piece of bucket `number`."""
        sizes = self.layout.sizes(self.layout.buckets[number].compressed)
        size, total = None, sum(sizes)
        if self.piece_size is not None and len(sizes) == 1 and total > self.piece_size:
            devices = collectives.count_workers(self.axes.workers) * collectives.count_workers(self.axes.fast)
            size = self.codec.piece_size(self.piece_size, devices, self.num_workers)
        size = size or max(total, 1)
        return [(start, min(size, total - start)) for start in range(0, total, size)] or [(0, 0)]


class Pending(NamedTuple):
    """What was sent in an update.

    Attributes:
      local: each worker's own, with a leading axis of the workers of a device. A (words, floats) of every bucket: words
        a tuple of uint32[V, W], one of each piece; floats float32[V, m]. Where nothing is compressed, the gradients.
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
        return Plan(layout, codec, (), axes, num_workers, piece_size)
    devices = collectives.count_workers(axes.fast)
    exchanges = tuple(
        choose_exchange(
            exchange, codec, layout.sizes(b.compressed), layout.sizes(b.floats), num_workers, network, devices
        )
        for b in layout.buckets
    )
    return Plan(layout, codec, exchanges, axes, num_workers, piece_size)


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


class Spare(NamedTuple):
    """A float32 vector that nobody reads any more when `after` is computed: memory for a mean."""

    vector: jax.Array
    after: tuple[jax.Array, ...]


def send(plan: Plan, workers: Sequence[Any], seed: int, count: jax.Array) -> tuple[Pending, list[Spare]]:
    """Scales, their maximum over the workers, and words of every bucket.

    Args:
      plan: of the update.
      workers: gradients of each worker on this device.
      seed: of the noise.
      count: updates before this one.

    Returns:
      What is to be exchanged, and each bucket's compressed gradients, for their memory.
    """
    if not plan.exchanges:
        local = jax.tree.map(lambda *leaves: (functools.reduce(jnp.add, leaves) / len(leaves))[None], *workers)
        return Pending(local if len(workers) > 1 else jax.tree.map(lambda leaf: leaf[None], workers[0]), ()), []
    first = collectives.worker_index(plan.axes.workers) * len(workers)
    keys = [derive_key(seed, count, first + index) for index in range(len(workers))]
    flats = _flatten(plan, workers)
    sent = [_send_bucket(plan, number, of_workers, keys) for number, of_workers in enumerate(flats)]
    local, shared = zip(*sent, strict=True)
    spare = [Spare(flat[0].compressed, words) for flat, (words, _) in zip(flats, local, strict=True)]
    return Pending(local, shared), spare


def _flatten(plan: Plan, workers: Sequence[Any]) -> list[list[Flat]]:
    """Every bucket of every worker here, averaged over the fast axes."""
    flats = [buckets.flatten(tree, plan.layout) for tree in workers]
    if plan.axes.fast:
        flats = [[Flat(*collectives.float_mean(tuple(flat), plan.axes.fast)) for flat in own] for own in flats]
    return [list(of_workers) for of_workers in zip(*flats, strict=True)]


def _send_bucket(
    plan: Plan, number: int, flats: Sequence[Flat], keys: Sequence[jax.Array]
) -> tuple[tuple[tuple[jax.Array | None, ...], jax.Array | None], jax.Array | None]:
    bucket, codec = plan.layout.buckets[number], plan.codec
    sizes = plan.layout.sizes(bucket.compressed)
    scales = functools.reduce(jnp.maximum, [codec.local_scales(flat.compressed, sizes) for flat in flats])
    scales = collectives.maximum(scales, plan.axes.workers) if scales.size else scales
    pieces = plan.pieces(number)

    def words(start: int, size: int) -> jax.Array:
        options = {"start": start, "position": bucket.position + start}
        own_sizes, own_scales = _of_piece(codec, pieces, sizes, scales, start, size)
        return jnp.stack(
            [
                codec.encode(flat.compressed, own_scales, key, own_sizes, plan.num_added(number), **options)
                for flat, key in zip(flats, keys, strict=True)
            ]
        )

    all_words = tuple(_or_none(words(*piece)) for piece in pieces)
    return (all_words, _or_none(jnp.stack([flat.floats for flat in flats]))), _or_none(scales)


def _or_none(array: jax.Array) -> jax.Array | None:
    return array if array.size else None


def _of_piece(
    codec: Codec, pieces: list, sizes: tuple[int, ...], scales: jax.Array, start: int, size: int
) -> tuple[tuple[int, ...], jax.Array]:
    """Sizes and scales of a piece: of the whole bucket if it is one, else of a part of its only tensor."""
    if len(pieces) == 1:
        return sizes, scales
    first = codec.num_scales((start,)) if codec.num_scales(sizes) > 1 else 0
    return (size,), scales[first : first + codec.num_scales((size,))]


def receive(plan: Plan, pending: Pending, seed: int, count: jax.Array, spare: Sequence[Spare]) -> Any:
    """Exchanges what was sent and decodes the mean.

    Args:
      plan: of the update.
      pending: what `send` returned, in this update or the one before.
      seed: of the noise.
      count: updates before this one.
      spare: memory of each bucket's length.

    Returns:
      The tree of means.
    """
    if not plan.exchanges:
        local = jax.tree.map(lambda leaf: leaf[0], pending.local)
        return collectives.float_mean(local, plan.axes.fast + plan.axes.workers)
    key = derive_key(seed, count, MEAN_WORKER)
    flats = [
        _receive_bucket(plan, number, local, scales, key, spare[number])
        for number, (local, scales) in enumerate(zip(pending.local, pending.shared, strict=True))
    ]
    return buckets.unflatten(flats, plan.layout)


def _receive_bucket(
    plan: Plan,
    number: int,
    local: tuple[tuple[jax.Array | None, ...], jax.Array | None],
    scales: jax.Array | None,
    key: jax.Array,
    spare: Spare,
) -> Flat:
    """Piece after piece, so that one is decoded while the next is on its way; into the spare memory if several are."""
    bucket, pieces = plan.layout.buckets[number], plan.pieces(number)
    sizes, (words, floats) = plan.layout.sizes(bucket.compressed), local
    local_workers = plan.num_workers // collectives.count_workers(plan.axes.workers)
    scales = jnp.zeros((0,), jnp.float32) if scales is None else scales
    floats = jnp.zeros((local_workers, 0), jnp.float32) if floats is None else floats
    mean, float_mean = spare.vector, floats[0]
    for index, ((start, size), own) in enumerate(zip(pieces, words, strict=True)):
        own = jnp.zeros((local_workers, 0), jnp.uint32) if own is None else own
        is_last = index + 1 == len(pieces)
        own_sizes, own_scales = _of_piece(plan.codec, pieces, sizes, scales, start, size)
        received = wire.exchange_bucket(
            plan.exchanges[number],
            plan.codec,
            own,
            floats if is_last else floats[:, :0],
            own_sizes,
            plan.axes,
            key,
            bucket.position + start,
        )
        options = {} if len(pieces) == 1 else {"into": mean, "start": start, "after": spare.after if not index else ()}
        mean = plan.codec.decode(
            received.words, own_scales, own_sizes, received.num_added, received.num_workers, **options
        )
        float_mean = received.floats if is_last else float_mean
    return Flat(mean, float_mean)


def nothing_sent(plan: Plan, params: Any, local_workers: int) -> Pending:
    """What an update of zero gradients sends, with which a delayed mean begins."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    return send(plan, [zeros] * local_workers, 0, jnp.zeros((), jnp.int32))[0]


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
    sizes, pieces = plan.layout.sizes(plan.layout.buckets[number].compressed), plan.pieces(number)
    decoded = [jnp.zeros((0,), jnp.float32)]
    if sent.shared[number] is None:
        return decoded[0]
    for (start, size), words in zip(pieces, sent.local[number][0], strict=True):
        own_sizes, own_scales = _of_piece(plan.codec, pieces, sizes, sent.shared[number], start, size)
        added = plan.num_added(number)
        decoded.append(plan.codec.decode(words[worker][None], own_scales, own_sizes, added, num_workers=1))
    return jnp.concatenate(decoded)
