"""Signs: one bit for each element, and one scale for each tensor."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxtern.compression.network.links import Traffic, all_gather, all_to_all
from jaxtern.compression.reducer import Group, Layout, Reduced, Reducer, State, Tensors, stateless, sum_in_order
from jaxtern.compression.wrappers import error_feedback
from jaxtern.kernels.segments import fill_up

_BITS = 32  # elements of a word

Signs = tuple[jax.Array, jax.Array]  # words of a tensor's signs, and their scale


def sign(two_way: bool = False, feedback: bool = True) -> Reducer:
    """Sends the sign of each element, and the mean magnitude of each tensor.

        sent_w = sign(p_w) mean|p_w|,  mean = sum over workers of sent_w / N;  sign(0) = 1

    One way, each worker receives all signs and scales. Two ways, each worker averages a shard and sends back its signs
    and mean magnitude, with error feedback of its own:

        d = mean of sent + e,  mean = sign(d) mean|d|,  e' = d - mean        for a shard

    Args:
      two_way: whether the mean, too, is sent as signs: below 2 bits an element for any N, instead of N - 1.
      feedback: whether to wrap it in `error_feedback`. Without it, signs do not converge in general.

    Returns:
      A reducer; two-way, its local state is the error of the worker's shard.

    Reference:
      Karimireddy et al., Error Feedback Fixes SignSGD, ICML 2019; Zheng, Huang and Kwok, Communication-Efficient
      Distributed Blockwise Momentum SGD with Error-Feedback, NeurIPS 2019, algorithm 2 (dist-EF-SGD).
    """
    reducer = _two_way() if two_way else _one_way()
    return error_feedback(reducer) if feedback else reducer


def _one_way() -> Reducer:
    def reduce(workers: list[Tensors], state: State, group: Group) -> Reduced:
        layout, signs = group.layout, [_pack(own, group.layout) for own in workers]
        rows = zip(group.gather(signs), layout.sizes, layout.shapes, strict=True)
        mean = [
            _from_planes(_add_planes(words, scales), size).reshape(shape) / group.size
            for (words, scales), size, shape in rows
        ]
        return Reduced(mean, state, [_unpack(own, layout) for own in signs])

    def traffic(layout: Layout, num_workers: int) -> Traffic:
        words = sum(num_sign_words(size) for size in layout.sizes) + len(layout.sizes)
        return all_gather(words, num_workers)._replace(ways=("gather",))

    return Reducer(stateless, reduce, traffic)


def _two_way() -> Reducer:
    def init(layout: Layout, num_workers: int) -> State:
        widths = [_shard_words(size, num_workers) for size in layout.sizes]
        return State(local=[jnp.zeros((_BITS, width), jnp.float32) for width in widths])

    def reduce(workers: list[Tensors], state: State, group: Group) -> Reduced:
        layout, signs, n = group.layout, [_pack(own, group.layout) for own in workers], group.size
        cut = [[(fill_up(words, n).reshape(n, -1), jnp.broadcast_to(s, (n,))) for words, s in own] for own in signs]
        received = group.scatter(cut)
        served = [
            [_serve(*each, index) for each in zip(tensors, errors, layout.sizes, strict=True)]
            for tensors, errors, index in zip(received, state.local, group.indices(), strict=True)
        ]
        answers, errors = ([[each[part] for each in own] for own in served] for part in (0, 1))
        mean = []
        for (words, scale), size, shape in zip(group.gather(answers), layout.sizes, layout.shapes, strict=True):
            joined = unpack_planes(words) * scale[:, None, None]
            mean.append(_from_planes(jnp.moveaxis(joined, 0, 1).reshape(_BITS, -1), size).reshape(shape))
        return Reduced(mean, State(local=errors), [_unpack(own, layout) for own in signs])

    def traffic(layout: Layout, num_workers: int) -> Traffic:
        back = sum(_shard_words(size, num_workers) + 1 for size in layout.sizes)
        there = all_to_all(num_workers * back, num_workers)
        return (there + all_gather(back, num_workers))._replace(ways=("two_way",))

    return Reducer(init, reduce, traffic, _resize_errors)


def _pack(tensors: Tensors, layout: Layout) -> list[Signs]:
    """The signs and mean magnitude of each tensor; a NaN makes the scale, and so the mean, NaN."""
    layout.require_int32(layout.sizes)
    planes = [fill_up(x.reshape(-1), _BITS).reshape(_BITS, -1) for x in tensors]
    words = [pack_planes(~(plane < 0)) for plane in planes]  # element k W + j is bit k of word j
    scales = [sum_in_order(jnp.abs(x.astype(jnp.float32))) / max(x.size, 1) for x in tensors]
    return list(zip(words, scales, strict=True))


def _unpack(signs: Sequence[Signs], layout: Layout) -> Tensors:
    """The tensors that these signs stand for."""
    parts = zip(signs, layout.sizes, layout.shapes, strict=True)
    return [scale * _from_planes(unpack_planes(words), size).reshape(shape) for (words, scale), size, shape in parts]


def _serve(received: Signs, error: jax.Array, size: int, index: jax.Array) -> tuple[Signs, jax.Array]:
    """Averages one worker's shard of a tensor; returns the signs that go back, and the new error.

    Args:
      received: all workers' words of the shard, uint32[N, w], and their scales, float32[N].
      error: float32[32, w].
      size: elements of the tensor.
      index: number of the worker and its shard.
    """
    owed = _add_planes(*received) / received[1].size + error
    plane, column = (lax.broadcasted_iota(jnp.int32, owed.shape, axis) for axis in (0, 1))
    column = column + index * owed.shape[1]
    is_there = (column < num_sign_words(size)) & (plane * num_sign_words(size) + column < size)
    owed = jnp.where(is_there, owed, 0.0)
    share = jnp.maximum(jnp.sum(is_there, dtype=jnp.int32), 1).astype(jnp.float32)
    words, scale = pack_planes(owed >= 0), sum_in_order(jnp.abs(owed)) / share
    return (words, scale), jnp.where(is_there, owed - unpack_planes(words) * scale, 0.0)


def _resize_errors(local: Any, layout: Layout, num_workers: int) -> Any:
    """Cuts the errors into the shards of M workers."""

    def cut(leaf: np.ndarray, size: int) -> np.ndarray:
        whole = np.moveaxis(leaf, 0, 1).reshape(_BITS, -1)[:, : num_sign_words(size)]
        width = _shard_words(size, num_workers)
        filled = np.pad(whole, [(0, 0), (0, width * num_workers - whole.shape[1])])
        return np.moveaxis(filled.reshape(_BITS, num_workers, width), 1, 0)

    return [cut(leaf, size) for leaf, size in zip(local, layout.sizes, strict=True)]


def num_sign_words(size: int) -> int:
    """Words for `size` signs."""
    return -(-size // _BITS)


def _shard_words(size: int, num_shards: int) -> int:
    return -(-num_sign_words(size) // num_shards)


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
    """Adds the signs uint32[N, W] times float32[N] to float32[32, W], in the order of the workers."""

    def add(total: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        return total + unpack_planes(row[0]) * row[1], None

    # Zeros like the scales vary over the same axes, as a loop's carry must.
    return lax.scan(add, jnp.zeros_like(scales, shape=(_BITS, rows.shape[1])), (rows, scales))[0]
