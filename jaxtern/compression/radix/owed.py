"""`two_way` with error feedback: the owner of a shard keeps what its rounding leaves out, and adds it to the next mean.

The state of a worker is a float32 vector for each bucket: the errors of its shard, in whole tiles. They are those of
rotated tensors, in the tensors' own units.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtern.compression.radix.buckets import Bucket, Piece
from jaxtern.compression.radix.pipeline import Buckets, Plan, put_flat
from jaxtern.compression.radix.quantizer import Quantizer, Received
from jaxtern.compression.radix.scales import fit
from jaxtern.compression.reducer import Group
from jaxtern.kernels import rotate
from jaxtern.kernels.dither import Dither, nearest
from jaxtern.kernels.radix import RUN
from jaxtern.kernels.rounding import settle
from jaxtern.kernels.segments import fill_up, split

_MOST = 4.0  # units of error that are sent at once


def zeros(quantizer: Quantizer, buckets: Sequence[Bucket], num_workers: int) -> list[jax.Array]:
    """The first errors of one worker."""
    return [jnp.zeros((_num_places(quantizer, bucket.size, num_workers),), jnp.float32) for bucket in buckets]


def resize(local: Any, quantizer: Quantizer, buckets: Sequence[Bucket], num_workers: int) -> Any:
    """Cuts the errors of N workers, float32[N, places], into the shards of M."""

    def cut(leaf: np.ndarray, size: int) -> np.ndarray:
        places = _num_places(quantizer, size, num_workers)
        return np.pad(leaf.reshape(-1)[:size], (0, num_workers * places - size)).reshape(num_workers, places)

    return [cut(leaf, bucket.size) for leaf, bucket in zip(local, buckets, strict=True)]


def run(plan: Plan, pieces: Sequence[Piece], store: Buckets, errors: list[Any], group: Group) -> list[Any]:
    """Exchanges whole buckets from and to the store; takes and returns the errors of each worker on this device."""
    kept = [list(own) for own in errors]
    for piece in pieces:
        words, places = store.encode(piece, ()), plan.buckets[piece.number].places
        units = plan.quantizer.spread(store.scales[piece.number], piece.sizes)
        mean, left = _exchange(plan.quantizer, words, units, [own[piece.number] for own in errors], piece, group)
        for own, error in zip(kept, left, strict=True):
            own[piece.number] = error
        put_flat(store.tensors, places, split(mean, piece.sizes))
    return kept


def _exchange(
    quantizer: Quantizer, words: jax.Array, units: jax.Array, errors: list[jax.Array], piece: Piece, group: Group
) -> tuple[jax.Array, list[jax.Array]]:
    """Exchanges uint32[V, W] words of the workers here, of elements with the scales `units`.

    Returns:
      The float32[size] mean, and the new errors.
    """
    places, key, answers, left = errors[0].size, group.shared_key(), [], []
    rows = fill_up(words, group.size * quantizer.num_words(places, 1)).reshape(len(words), group.size, -1)
    shard_units = fill_up(units, group.size * places).reshape(group.size, -1)
    for shard, error, index in zip(group.scatter(list(rows)), errors, group.indices(), strict=True):
        dither = quantizer.dither(group, jnp.uint32(piece.position) + index.astype(jnp.uint32) * jnp.uint32(places))
        mean = _decode(quantizer, Received(shard, 1, group.size), dither)
        answer, kept = serve(quantizer, mean, error, shard_units[index], key)
        answers.append(answer)
        left.append(kept)
    back, scales = group.gather(answers)
    second = _decode(quantizer, Received(back.reshape(1, -1), 1, 1, tile_scales=scales.reshape(-1)))
    turned = rotate(list(second.reshape(group.size, -1)), key, is_inverse=True, implementation=quantizer.implementation)
    return settle(jnp.concatenate(turned)[: piece.size] * units), left


def serve(
    quantizer: Quantizer, mean: jax.Array, error: jax.Array, units: jax.Array, key: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
    """Adds a shard's error to its mean, rotates, and rounds to the nearest digits of the scales that fit best.

    This rotation is drawn anew in each step: with the tensors' fixed one, the same elements would be clipped for ever.

    Args:
      mean: float32[n], in units.
      error: float32[n], what was left out before.
      units: float32[n], scale of each element; NaN or 0 where nothing can be sent.
      key: key of the rotation.

    Returns:
      (uint32[W] words, float32[W / 128] scales), and the new error.
    """
    size, tile = (mean.size,), quantizer.num_places(RUN)
    can_send = units > 0
    # No more than _MOST units, or a tensor whose gradient has become small would drown the others of its block.
    owed = mean + jnp.where(can_send, jnp.clip(error / units, -_MOST, _MOST), 0.0)
    (turned,) = rotate([owed], key, implementation=quantizer.implementation)
    second = dataclasses.replace(quantizer, clip_sigmas=None, block_size=tile, rotation=True, rounding="nearest")
    measured = second.measure(turned, size)
    words = second.encode(turned, second.own_scales(measured.scales, measured), nearest(), size, 1)
    digits = _decode(second, Received(words[None], 1, 1))
    scales = fit(turned, digits, tile, quantizer.implementation)
    sent = settle(digits * jnp.repeat(scales, tile))
    (sent,) = rotate([sent], key, is_inverse=True, implementation=quantizer.implementation)
    return (words, scales), jnp.where(can_send, error + settle((mean - sent) * units), error)


def _decode(quantizer: Quantizer, received: Received, dither: Dither | None = None) -> jax.Array:
    """float32[n], the mean in units of the scales, of words without a gap at their end."""
    return quantizer.decode(received, None, (quantizer.num_places(received.words.shape[1]),), dither)


def _num_places(quantizer: Quantizer, size: int, num_workers: int) -> int:
    """Places of each worker's shard of a bucket of `size` elements."""
    return quantizer.num_places(quantizer.shard_words(quantizer.num_words(size, 1), num_workers, 1))
