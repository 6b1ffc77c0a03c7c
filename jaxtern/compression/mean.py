"""The two halves of an update: local gradients to what every worker sends, and what arrives to the mean."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxtern.compression import buckets, exchange as collectives, statistics
from jaxtern.compression.buckets import Flat, Tensors
from jaxtern.compression.pieces import average_in_pieces
from jaxtern.compression.schedule import Plan, receive_span, send_span
from jaxtern.compression.wire import Received
from jaxtern.kernels import derive_key, follow
from jaxtern.kernels.segments import split

MEAN_WORKER = 2**32 - 1  # whose noise rounds the means of "two_way": no worker has this number


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


def average(plan: Plan, workers: Sequence[Any], seed: int, count: jax.Array) -> Any:
    """The mean of gradients; where they travel in a chain, one piece is decoded while the next is on its way.

    Args:
      plan: of the update.
      workers: gradients of each worker on this device.
      seed: of the noise.
      count: updates before this one.
    """
    if not plan.exchanges:
        return receive(plan, send(plan, workers, seed, count), seed, count)
    keys, key = _keys(plan, workers, seed, count), derive_key(seed, count, MEAN_WORKER)
    if plan.is_chained:
        bucketed = [average_fast(plan, own) for own in buckets.take(workers[0], plan.layout)]
        return buckets.give_back(average_in_pieces(plan, bucketed, keys[0], key), plan.layout)
    means, received = [], None
    places = [own.compressed for own in buckets.take(workers[0], plan.layout)] if plan.is_in_place else None
    for number, flats in enumerate(_flatten(plan, workers)):
        local, scales = _send_bucket(plan, number, flats, keys)
        into = places[number] if places else None
        mean, received = _receive_bucket(plan, number, local, scales, key, received, into)
        means.append(mean)
    return buckets.give_back(means, plan.layout)


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
    means = [
        _receive_bucket(plan, number, local, scales, key)[0]
        for number, (local, scales) in enumerate(zip(pending.local, pending.shared, strict=True))
    ]
    return buckets.give_back(means, plan.layout)


def _keys(plan: Plan, workers: Sequence[Any], seed: int, count: jax.Array) -> list[jax.Array]:
    """Of the noise of each worker here."""
    first = collectives.worker_index(plan.axes.workers) * len(workers)
    return [derive_key(seed, count, first + index) for index in range(len(workers))]


def _flatten(plan: Plan, workers: Sequence[Any]) -> list[list[Flat]]:
    """Every bucket of every worker here, averaged over the fast axes."""
    flats = [[average_fast(plan, flat) for flat in buckets.flatten(tree, plan.layout)] for tree in workers]
    return [list(of_workers) for of_workers in zip(*flats, strict=True)]


def average_fast(plan: Plan, own: Any) -> Any:
    """Gradients of one worker, averaged over the fast axes."""
    return collectives.float_mean(own, plan.axes.fast) if plan.axes.fast else own


def _share(plan: Plan, local: Sequence[jax.Array]) -> jax.Array:
    """The scales of all workers of those of each worker here."""
    scales = functools.reduce(jnp.maximum, local)
    return collectives.maximum(scales, plan.axes.workers) if scales.size else scales


def _send_bucket(
    plan: Plan, number: int, flats: Sequence[Flat], keys: Sequence[jax.Array]
) -> tuple[tuple[jax.Array | None, jax.Array | None], jax.Array | None]:
    bucket = plan.layout.buckets[number]
    sizes, added = plan.layout.sizes(bucket.compressed), plan.num_added(number)
    scales = _share(plan, [plan.codec.local_scales(flat.compressed, sizes) for flat in flats])
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
    before: Received | None = None,
    into: Sequence[jax.Array] | None = None,
) -> tuple[Tensors, Received]:
    """The mean of a bucket, and what its exchange left; it begins when that of the bucket before has ended.

    With `into`, tensors whose memory the means may take.
    """
    bucket, (words, floats) = plan.layout.buckets[number], local
    sizes = plan.layout.sizes(bucket.compressed)
    words = jnp.zeros((plan.local_workers, 0), jnp.uint32) if words is None else words
    floats = jnp.zeros((plan.local_workers, 0), jnp.float32) if floats is None else floats
    scales = jnp.zeros((0,), jnp.float32) if scales is None else scales
    words = words if before is None else follow(words, [before.words])
    sent = send_span(plan, number, words, floats)
    received = receive_span(plan, number, sent, sum(sizes), key, start=0, after=sent.arrived)
    counts = received.num_added, received.num_workers
    if into and received.words.size:
        mean = plan.codec.decode_span(received.words, None, scales, into, (0, sum(sizes)), *counts, after=())
    else:
        mean = split(plan.codec.decode(received.words, scales, sizes, *counts), sizes)
    return Tensors(mean, received.floats), received


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
