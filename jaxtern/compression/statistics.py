"""Measures in a step what compression does to gradients."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxtern.compression import collectives
from jaxtern.compression.collectives import Axes
from jaxtern.compression.reducer import Group, Reduced, Tensors
from jaxtern.compression.wrappers import require_sent


class Statistics(NamedTuple):
    """Statistics of an update, float32 scalars that are the same on every worker.

    Attributes:
      zero_fraction: share of elements sent as zero, mean over workers.
      error: squared length of (gradient - sent) over that of the gradient, 0 if that is zero, mean over workers.
      cosine: cosine of the angle between the mean and the float mean.
    """

    zero_fraction: jax.Array
    error: jax.Array
    cosine: jax.Array


def measure(workers: list[Tensors], reduced: Reduced, group: Group, axes: Axes) -> Statistics:
    """Statistics of an update, NaN if it has no elements; raises ValueError if the reducer does not give `sent`.

    Args:
      workers: tensors of each worker on this device.
      reduced: result of reducing them.
      group: group of the workers.
      axes: axes of the workers and of their devices.
    """
    if not any(group.layout.sizes):
        return Statistics(*[jnp.float32(jnp.nan)] * 3)
    sent = [_flat(own) for own in require_sent(reduced, group, "statistics=True")]
    gradients = [collectives.pmean(_flat(own), axes.fast) for own in workers]
    zeros = [jnp.mean((own == 0).astype(jnp.float32)) for own in sent]
    pairs = [(jnp.sum((g - s) ** 2), jnp.sum(g * g)) for g, s in zip(gradients, sent, strict=True)]
    errors = [jnp.where(energy == 0, 0.0, lost / energy) for lost, energy in pairs]
    float_mean, zero, error = group.pmean(list(zip(gradients, zeros, errors, strict=True)))
    mean = _flat(reduced.mean)
    norms = jnp.linalg.norm(mean) * jnp.linalg.norm(float_mean)
    return Statistics(zero, error, jnp.vdot(mean, float_mean) / norms)


def _flat(tensors: Tensors) -> jax.Array:
    return jnp.concatenate([tensor.reshape(-1).astype(jnp.float32) for tensor in tensors])
