"""What travels: the words and the float tensors of a bucket, from every worker to all, by one of the exchanges."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxtern.compression import cost, exchange as collectives
from jaxtern.compression.codecs import Codec
from jaxtern.compression.cost import Network
from jaxtern.compression.exchange import AxisNames
from jaxtern.kernels import follow


class Axes(NamedTuple):
    """Where the workers lie.

    Attributes:
      workers: axes over which they differ: the slow links.
      fast: axes over the devices of one worker, which all hold the same words; each exchanges its part of them.
    """

    workers: AxisNames
    fast: AxisNames = ()


class Received(NamedTuple):
    """What a bucket's exchange leaves, the same on every device.

    Attributes:
      words: uint32[rows, W].
      num_added: workers whose digits were added in a row, which fixes the radix.
      num_workers: workers for which all rows stand: N, or 1 where the words are those of the mean.
      floats: float32[m], the mean of the tensors that are not compressed.
      total: uint32[1, W] or None. If there is one, `words` holds only the row of this device's worker, and the other
        one's is the total less that, modulo 2^32.
      kept: what went into collectives.
    """

    words: jax.Array
    num_added: int
    num_workers: int
    floats: jax.Array
    total: jax.Array | None = None
    kept: tuple[jax.Array, ...] = ()

    @property
    def arrived(self) -> jax.Array:
        """What is there when the exchange has ended."""
        return self.words if self.total is None else self.total


class Shards(NamedTuple):
    """What the first of an exchange's two collectives leaves: all workers' words and floats of this device's shard.

    Attributes:
      rows: uint32[N, ...], words and behind them the bits of float tensors.
      num_words: columns that are words.
      num_floats: elements of the float tensors, of all shards.
      kept: as in `Received`.
    """

    rows: jax.Array
    num_words: int
    num_floats: int
    kept: tuple[jax.Array, ...]

    @property
    def arrived(self) -> jax.Array:
        """What is there when the collective has ended."""
        return self.rows


def send_bucket(
    exchange: str,
    codec: Codec,
    words: jax.Array,
    floats: jax.Array,
    axes: Axes,
    network: Network,
    *,
    as_total: bool = False,
) -> Received | Shards:
    """Sends a bucket by "gather", "sum", "scatter" or "two_way": their first collective.

    Args:
      exchange: its name.
      codec: that made the words.
      words: uint32[V, W] of the workers on this device, made for the addition of N workers where it is "sum".
      floats: float32[V, m] of the workers on this device.
      axes: where the workers lie.
      network: the links between them.
      as_total: whether two workers' words may be left as a total.

    Returns:
      Shards if it has a second collective, else all that the exchange leaves.
    """
    num_workers = collectives.count_workers(axes.workers) * words.shape[0]
    if exchange == "gather":
        return _gather(words, floats, axes, num_workers, as_total)
    if exchange == "sum":
        local = functools.reduce(jnp.add, list(words))[None]
        added = _through_fast(lambda own: collectives.add_words(own[0], axes.workers), local, axes)
        means = _float_mean(floats, axes, num_workers)
        return Received(added, num_workers, num_workers, means, kept=(local,))
    return _send_shards(exchange, codec, words, floats, axes, network, num_workers)


def receive_bucket(
    exchange: str,
    codec: Codec,
    sent: Received | Shards,
    size: int,
    axes: Axes,
    key: jax.Array,
    position: int,
    after: jax.Array,
) -> Received:
    """The second collective, if there is one.

    Args:
      exchange, codec, axes: as in `send_bucket`.
      sent: what that left: all, or `Shards`.
      size: elements whose words they are.
      key: uint32[2] of the noise of "two_way", the same on all devices.
      position: of the first element in that noise.
      after: uint32, which is there before the collective begins.
    """
    if isinstance(sent, Received):
        return sent
    return _return_shards(exchange, codec, sent, size, axes, key, position, after)


def _gather(words: jax.Array, floats: jax.Array, axes: Axes, num_workers: int, as_total: bool) -> Received:
    """All workers' words, and in the same collective their float tensors."""
    width = words.shape[-1]
    payload = jnp.concatenate([words, _as_words(floats)], axis=-1)
    if as_total and num_workers == 2 and words.shape[0] == 1 and not axes.fast and collectives.is_mutual(axes.workers):
        total = collectives.add_words(payload[0], axes.workers)
        rows = jnp.concatenate([payload, total - payload])[:, width:]  # the mean of two is the same in either order
        means = _mean_in_order(_as_floats(rows))
        return Received(payload[:, :width], 1, 2, means, total[:, :width], kept=(payload,))
    rows = _through_fast(lambda own: collectives.gather_words(own, axes.workers), payload, axes)
    means = _mean_in_order(_as_floats(rows[:, width:]))
    return Received(rows[:, :width], 1, num_workers, means, kept=(payload,))


def _send_shards(
    exchange: str, codec: Codec, words: jax.Array, floats: jax.Array, axes: Axes, network: Network, num_workers: int
) -> Shards:
    """To every device the words and float tensors of all workers, of one shard."""
    num_shards = collectives.count_workers(axes.workers) * collectives.count_workers(axes.fast)
    num_added = num_workers if exchange == "scatter" else 1
    width, num_floats = words.shape[-1], floats.shape[-1]
    shard = codec.shard_words(width, num_shards, num_added)
    float_shard = -(-num_floats // num_shards)
    parts = [_fill(words, num_shards * shard), _fill(_as_words(floats), num_shards * float_shard)]
    shards = [part.reshape(*part.shape[:-1], num_shards, -1) for part in parts]
    payload = jnp.concatenate(shards, axis=-1).reshape(words.shape[0], -1)
    own = _own_part(payload, axes)
    is_slow = cost.prefers_pairs(own.size // collectives.count_workers(axes.workers), network)
    rows = collectives.scatter_words(own, axes.workers, in_pairs=is_slow)
    return Shards(rows, shard, num_floats, kept=(payload, rows))


def _return_shards(
    exchange: str, codec: Codec, sent: Shards, size: int, axes: Axes, key: jax.Array, position: int, after: jax.Array
) -> Received:
    """Every device adds (or averages) the words and float tensors of its shard, and all gather the results."""
    num_workers, shard = sent.rows.shape[0], sent.num_words
    if exchange == "scatter":
        middle, num_added, stands_for = codec.add_shards(sent.rows[:, :shard]), num_workers, num_workers
    else:
        place = collectives.worker_index(axes.fast + axes.workers).astype(jnp.uint32)
        start = place * jnp.uint32(codec.num_places(shard)) + jnp.uint32(position)
        middle, num_added, stands_for = codec.average_shards(sent.rows[:, :shard], key, start), 1, 1
    mean = _as_words(_mean_in_order(_as_floats(sent.rows[:, shard:])))
    result = follow(jnp.concatenate([middle, mean]), [after])[None]
    joined = collectives.gather_words(result, axes.fast + axes.workers)
    words, floats = joined[:, : middle.size].reshape(1, -1), joined[:, middle.size :].reshape(-1)
    needed = codec.num_words((size,), num_added)
    means = _as_floats(floats[: sent.num_floats])
    return Received(words[:, :needed], num_added, stands_for, means, kept=(*sent.kept, result))


def _through_fast(send, words: jax.Array, axes: Axes) -> jax.Array:
    """Sends this device's part of [V, W] words, alike on the devices of the fast axes, and joins the parts' results."""
    if not axes.fast:
        return send(words)
    devices, width = collectives.count_workers(axes.fast), words.shape[-1]
    sent = send(_own_part(_fill(words, -(-width // devices) * devices), axes))
    joined = collectives.gather_words(sent.reshape(1, -1), axes.fast).reshape(devices, *sent.shape)
    return jnp.moveaxis(joined, 0, 1).reshape(sent.shape[0], -1)[:, :width]


def _own_part(words: jax.Array, axes: Axes) -> jax.Array:
    return collectives.own_slice(words, axes.fast) if axes.fast else words


def _float_mean(floats: jax.Array, axes: Axes, num_workers: int) -> jax.Array:
    """The mean of float tensors by themselves, in the order of the workers whatever the way."""
    words = _as_words(floats)
    if cost.gathers_floats(words.shape[-1], num_workers):
        rows = _through_fast(lambda own: collectives.gather_words(own, axes.workers), words, axes)
        return _mean_in_order(_as_floats(rows))
    places = axes.fast + axes.workers
    devices = collectives.count_workers(places)
    filled = _fill(words, -(-words.shape[-1] // devices) * devices)
    rows = collectives.scatter_words(_own_part(filled, axes), axes.workers)
    mean = _as_words(_mean_in_order(_as_floats(rows)))
    return _as_floats(collectives.gather_words(mean[None], places).reshape(-1)[: words.shape[-1]])


def _fill(words: jax.Array, width: int) -> jax.Array:
    """Zeros behind the last axis, up to `width`."""
    return jnp.pad(words, [(0, 0)] * (words.ndim - 1) + [(0, width - words.shape[-1])])


def _as_words(floats: jax.Array) -> jax.Array:
    """The bits of float32 as uint32: only integers are sure to be sent as they are."""
    return lax.bitcast_convert_type(floats, jnp.uint32)


def _as_floats(words: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(words, jnp.float32)


def _mean_in_order(rows: jax.Array) -> jax.Array:
    """float32[N, m] to the mean over N, added one worker after the other whatever the devices."""
    total, _ = lax.scan(lambda total, row: (total + row, None), jnp.zeros_like(rows[0]), rows)
    return total / rows.shape[0]
