"""What compression does to a gradient, measured in the step."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxtern.compression import exchange
from jaxtern.compression.exchange import AxisNames


class Statistics(NamedTuple):
    """Of the compressed tensors in one update; float32 scalars, the same on every worker.

    Attributes:
      zero_fraction: share of elements sent as zero, mean over workers.
      scale: mean of the shared scales.
      cosine: cosine of the angle between the compressed mean and the float mean.
    """

    zero_fraction: jax.Array
    scale: jax.Array
    cosine: jax.Array


def measure(gradient: jax.Array, sent: jax.Array, mean: jax.Array, scales: jax.Array, names: AxisNames) -> Statistics:
    """Statistics of one update.

    Args:
      gradient: float32[n], this worker's gradient.
      sent: float32[n], what it sent of it, decoded.
      mean: float32[n], the mean of what all sent.
      scales: float32[num_scales], shared.
      names: axes of the workers.
    """
    if not gradient.size:
        return Statistics(*(jnp.full((), jnp.nan, jnp.float32) for _ in Statistics._fields))
    zeros = jnp.mean((sent == 0).astype(jnp.float32))
    float_mean, zero_fraction = exchange.float_mean((gradient, zeros), names)
    norms = jnp.linalg.norm(mean) * jnp.linalg.norm(float_mean)
    return Statistics(zero_fraction, jnp.mean(scales), jnp.vdot(mean, float_mean) / norms)
