"""Deep Gradient Compression: top-k with momentum inside, so that what is sent late is not stale."""

from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxtern.compression.arguments import require_number
from jaxtern.compression.float_mean import float_mean
from jaxtern.compression.reducer import Group, Reduced, Reducer, State, Tensors, sum_in_order
from jaxtern.compression.top_k import top_k
from jaxtern.compression.wrappers import beside, error_feedback, partition, plus, zeros


def momentum_correction(
    reducer: Reducer, momentum: float = 0.9, clip_norm: float | None = None, nesterov: bool = False, masked: bool = True
) -> Reducer:
    """Gives each worker its own momentum, under `error_feedback` of a reducer that sends only a part.

        u = m u + clip(g),  v = v + u,  mean = reduce(v),  v = v - sent(v),  u = 0 where sent(v) != 0

    The result is the mean of the velocities, for an optimiser without momentum. With a reducer that sends everything,
    and without masking, it is exactly SGD with momentum. Tensors that are to stay float take the momentum, too.

    Args:
      reducer: a reducer without feedback of its own, which returns `Reduced.sent`.
      momentum: m, from 0 to below 1. It may be traced.
      clip_norm: c; a worker's gradients together are scaled down to a norm of at most c N^-1/2; None: not scaled.
      nesterov: whether v takes m u + g in place of u.
      masked: whether u, too, is zeroed where something was sent (momentum factor masking).

    Returns:
      A reducer whose local state is (u, (v, that of `reducer`)); u and v are float32 tensors in the layout's shapes.

    Raises:
      ValueError: for an argument out of its range.

    Reference:
      Lin et al., Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed Training, ICLR 2018,
      sections 3.1 to 3.3 and algorithm 4.
    """
    require_number("momentum", momentum, below=1.0)
    if clip_norm is not None:
        require_number("clip_norm", clip_norm)

    def correct(reducer: Reducer, clip_norm: float | None, masked: bool) -> Reducer:
        feedback = error_feedback(reducer)

        def reduce(workers: list[Tensors], before: list[Tensors], inner: State, group: Group) -> tuple[Reduced, Any]:
            velocities, moved = [], []
            for gradients, u in zip(workers, before, strict=True):
                gradients = [tensor.astype(jnp.float32) for tensor in gradients]
                if clip_norm is not None:
                    gradients = _clip(gradients, clip_norm / group.size**0.5, group)
                u = plus([group.product(old, momentum) for old in u], gradients)
                velocities.append(u)
                moved.append(plus([group.product(new, momentum) for new in u], gradients) if nesterov else u)
            reduced = feedback.reduce(moved, inner, group)
            if masked:
                pairs = [zip(*pair, strict=True) for pair in zip(velocities, reduced.sent or (), strict=True)]
                velocities = [[lax.select(part != 0, jnp.zeros_like(u), u) for u, part in pair] for pair in pairs]
            return reduced, velocities

        return beside(feedback, zeros, reduce)

    return correct(reducer, clip_norm, masked)._replace(floats=correct(float_mean(in_order=True), None, False))


def _clip(tensors: Tensors, most: Any, group: Group) -> Tensors:
    """Scales tensors down to a common norm of at most `most`."""
    norm = jnp.sqrt(sum((sum_in_order(group.product(tensor, tensor)) for tensor in tensors), jnp.float32(0)))
    factor = jnp.minimum(1.0, most / jnp.maximum(norm, 1e-30))
    return [group.product(tensor, factor) for tensor in tensors]


def dgc(
    density: float = 0.001,
    momentum: float = 0.9,
    clip_norm: float | None = None,
    nesterov: bool = False,
    value_dtype: str = "float32",
    sampled: bool = False,
) -> Reducer:
    """Deep Gradient Compression: `momentum_correction` of `top_k` without feedback.

    Tensors of one dimension, or none, stay float, with momentum but without masking, as in the authors' code. For a
    warm-up of the density, take a reducer for each density; all have the same state (as a recipe's `density_warmup`).

    Args:
      density: share of a tensor's elements that each worker sends, above 0 and at most 1.
      momentum: m of the velocities, from 0 to below 1. The optimiser behind must have none.
      clip_norm: c; a worker's gradients that are sent in part are together scaled down to a norm of at most c N^-1/2;
        None: not scaled.
      nesterov: whether the velocities are Nesterov's.
      value_dtype: of the values on the wire, "float32" or "bfloat16".
      sampled: whether to find the largest elements by a threshold estimated from samples (see `top_k`).
    """
    sparse = top_k(density, value_dtype, sampled, feedback=False)
    corrected = momentum_correction(sparse, momentum, clip_norm, nesterov)
    floats = corrected.floats or float_mean(in_order=True)
    return partition([(lambda _, shape: len(shape) < 2, floats)], corrected, may_be_empty=True)
