"""Signs: one bit an element, and one scale a tensor."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxtern.compression import collectives
from jaxtern.compression.network.links import Traffic, all_gather, all_to_all
from jaxtern.compression.reducer import (
    Group,
    Layout,
    Reduced,
    Reducer,
    State,
    Tensors,
    carry_nothing,
    stateless,
    sum_in_order,
)
from jaxtern.compression.wrappers import error_feedback

_BITS = 32  # elements of a word


def sign(two_way: bool = False, feedback: bool = True) -> Reducer:
    """The sign of every element times the mean magnitude of its tensor.

        sent_w = sign(p_w) mean|p_w|,  mean = sum over workers of sent_w / N;  sign(0) = 1

    One way, every worker receives all signs and scales. Two ways, each device averages a shard and sends back its signs
    and its mean magnitude, with an error of its own, of which nothing is lost either:

        d = mean of sent + e,  mean = sign(d) mean|d|,  e' = d - mean        of a shard

    Args:
      two_way: whether the mean, too, is sent as signs: below 2 bits an element whatever N, in place of N - 1.
      feedback: whether to wrap it in `error_feedback`. Without it signs do not converge in general.

    Returns:
      A reducer; two-way its local state is the error of the worker's shard.

    Reference:
      Karimireddy et al., Error Feedback Fixes SignSGD, ICML 2019; Zheng, Huang and Kwok, Communication-Efficient
      Distributed Blockwise Momentum SGD with Error-Feedback, NeurIPS 2019, algorithm 2 (dist-EF-SGD).
    """
    reducer = _two_way() if two_way else _one_way()
    return error_feedback(reducer) if feedback else reducer


def _one_way() -> Reducer:
    def reduce(workers: list[Tensors], state: State, group: Group) -> Reduced:
        sizes, shapes = group.layout.sizes, group.layout.shapes
        scales = [mean_magnitudes(own) for own in workers]
        words = [[pack_signs(tensor.reshape(-1)) for tensor in own] for own in workers]
        rows, all_scales = group.gather(list(zip(words, scales, strict=True)))
        mean = [
            _add_signs(own, all_scales[:, i], sizes[i]).reshape(shapes[i]) / group.size for i, own in enumerate(rows)
        ]
        sent = [
            [scale[i] * unpack_signs(own, sizes[i]).reshape(shapes[i]) for i, own in enumerate(packed)]
            for packed, scale in zip(words, scales, strict=True)
        ]
        return Reduced(mean, carry_nothing(group), sent)

    def traffic(layout: Layout, num_workers: int) -> Traffic:
        words = sum(num_sign_words(size) for size in layout.sizes) + len(layout.sizes)
        return all_gather(words, num_workers)._replace(ways=("gather",))

    return Reducer(stateless, reduce, traffic)


def _two_way() -> Reducer:
    def init(layout: Layout, num_workers: int) -> State:
        widths = [_shard_words(size, num_workers) for size in layout.sizes]
        return State(local=[jnp.zeros((_BITS, width), jnp.float32) for width in widths])

    def reduce(workers: list[Tensors], state: State, group: Group) -> Reduced:
        sizes, shapes, count = group.layout.sizes, group.layout.shapes, group.size
        scales = [mean_magnitudes(own) for own in workers]
        words = [[pack_signs(tensor.reshape(-1)) for tensor in own] for own in workers]
        shards = [_cut(own, scale, count) for own, scale in zip(words, scales, strict=True)]
        answers, errors = [], []
        for rows, error, index in zip(group.scatter(shards), state.local, group.indices(), strict=True):
            answer, left = _serve(rows, error, index, sizes)
            answers.append(answer)
            errors.append(left)
        mean = []
        for (back, scale), size, shape in zip(group.gather(answers), sizes, shapes, strict=True):
            joined = unpack_planes(back) * scale[:, None, None]
            mean.append(_from_planes(jnp.moveaxis(joined, 0, 1).reshape(_BITS, -1), size).reshape(shape))
        sent = [
            [scale[i] * unpack_signs(own, sizes[i]).reshape(shapes[i]) for i, own in enumerate(packed)]
            for packed, scale in zip(words, scales, strict=True)
        ]
        return Reduced(mean, State(local=errors), sent)

    def traffic(layout: Layout, num_workers: int) -> Traffic:
        back = sum(_shard_words(size, num_workers) + 1 for size in layout.sizes)
        there = all_to_all(num_workers * back, num_workers)
        return (there + all_gather(back, num_workers))._replace(ways=("two_way",))

    return Reducer(init, reduce, traffic, _resize_errors)


def _serve(
    rows: jax.Array, errors: Sequence[jax.Array], index: jax.Array, sizes: Sequence[int]
) -> tuple[list[tuple[jax.Array, jax.Array]], list[jax.Array]]:
    """One worker's shard of every tensor: the signs and scales that go back, and the errors that stay.

    Args:
      rows: uint32[N, W], all workers' words of the shards, tensor after tensor, and behind them their scales.
      errors: float32[32, w] of each tensor.
      index: number of the worker, and so of its shards.
      sizes: elements of the tensors.
    """
    count, answers, left, start = rows.shape[0], [], [], 0
    scales = lax.bitcast_convert_type(rows[:, rows.shape[1] - len(sizes) :], jnp.float32)
    for place, (size, error) in enumerate(zip(sizes, errors, strict=True)):
        width = error.shape[1]
        total = _add_planes(rows[:, start : start + width], scales[:, place])
        owed = total / count + error
        plane, column = (lax.broadcasted_iota(jnp.int32, owed.shape, axis) for axis in (0, 1))
        column = column + index * width
        is_there = (column < num_sign_words(size)) & (plane * num_sign_words(size) + column < size)
        owed = jnp.where(is_there, owed, 0.0)
        share = jnp.maximum(jnp.sum(is_there.astype(jnp.float32)), 1)
        scale = mean_magnitudes([owed])[0] * (owed.size / share)
        words = pack_planes(owed >= 0)
        answers.append((words, scale))
        left.append(jnp.where(is_there, owed - unpack_planes(words) * scale, 0.0))
        start += width
    return answers, left


def _cut(words: Sequence[jax.Array], scales: jax.Array, num_shards: int) -> jax.Array:
    """The message to each shard's worker: uint32[N, W], words of every tensor and all scales."""
    parts = [collectives.fill(own, num_shards).reshape(num_shards, -1) for own in words]
    bits = lax.bitcast_convert_type(scales, jnp.uint32)
    return jnp.concatenate([*parts, jnp.broadcast_to(bits, (num_shards, bits.size))], axis=1)


def _resize_errors(local: Any, layout: Layout, num_workers: int) -> Any:
    """The same errors, cut into the shards of M workers."""

    def cut(leaf: np.ndarray, size: int) -> np.ndarray:
        whole = np.moveaxis(leaf, 0, 1).reshape(_BITS, -1)[:, : num_sign_words(size)]
        width = _shard_words(size, num_workers)
        filled = np.pad(whole, [(0, 0), (0, width * num_workers - whole.shape[1])])
        return np.moveaxis(filled.reshape(_BITS, num_workers, width), 1, 0)

    return [cut(leaf, size) for leaf, size in zip(local, layout.sizes, strict=True)]


def mean_magnitudes(tensors: Tensors) -> jax.Array:
    """float32[n]: mean |x| of each tensor; 0 of a tensor without elements."""
    return jnp.stack([sum_in_order(jnp.abs(own.astype(jnp.float32))) / max(own.size, 1) for own in tensors])


def num_sign_words(size: int) -> int:
    """Words of so many signs."""
    return -(-size // _BITS)


def _shard_words(size: int, num_shards: int) -> int:
    return -(-num_sign_words(size) // num_shards)


def pack_signs(flat: jax.Array) -> jax.Array:
    """Signs of float[n] to words: bit k of word j is 1 where element k W + j is not below zero.

    A NaN counts as not below zero; its scale is NaN, too, and so is the mean.
    """
    return pack_planes(~(_to_planes(flat) < 0))


def unpack_signs(words: jax.Array, size: int) -> jax.Array:
    """uint32[W] to float32[size] of 1 and -1."""
    return _from_planes(unpack_planes(words), size)


def _to_planes(flat: jax.Array) -> jax.Array:
    return collectives.fill(flat, _BITS * num_sign_words(flat.size) or 1).reshape(_BITS, -1)


def _from_planes(planes: jax.Array, size: int) -> jax.Array:
    return planes[:, : num_sign_words(size)].reshape(-1)[:size]


def pack_planes(is_positive: jax.Array) -> jax.Array:
    """bool[32, W] to uint32[W]."""
    weights = (np.uint32(1) << np.arange(_BITS, dtype=np.uint32))[:, None]
    return jnp.sum(jnp.where(is_positive, weights, np.uint32(0)), axis=0, dtype=jnp.uint32)


def unpack_planes(words: jax.Array) -> jax.Array:
    """uint32[..., W] to float32[..., 32, W] of 1 and -1."""
    shifts = np.arange(_BITS, dtype=np.uint32).reshape((1,) * (words.ndim - 1) + (_BITS, 1))
    bits = words[..., None, :] >> shifts & 1
    return bits.astype(jnp.float32) * 2 - 1


def _add_planes(rows: jax.Array, scales: jax.Array) -> jax.Array:
    """uint32[N, W] and float32[N] to float32[32, W], added in the order of the workers."""

    def add(total: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        return total + unpack_planes(row[0]) * row[1], None

    # Zeros like the scales vary over what other axes they do, as what a loop carries must.
    return lax.scan(add, jnp.zeros_like(scales, shape=(_BITS, rows.shape[1])), (rows, scales))[0]


def _add_signs(rows: jax.Array, scales: jax.Array, size: int) -> jax.Array:
    return _from_planes(_add_planes(rows, scales), size)
