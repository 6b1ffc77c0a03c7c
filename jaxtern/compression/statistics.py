"""What compression does to a gradient, measured in the step."""

from collections.abc import Sequence
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


def measure(
    gradients: Sequence[jax.Array], sent: Sequence[jax.Array], mean: jax.Array, scales: jax.Array, names: AxisNames
) -> Statistics:
    """Statistics of one update.

    Args:
      gradients: float32[n] each, of the workers here.
      sent: float32[n] each, what they sent of them, decoded.
      mean: float32[n], the mean of what all sent.
      scales: float32[num_scales], shared.
      names: axes of the workers.
    """
    if not mean.size:
        return unknown()
    zeros = sum(jnp.mean((vector == 0).astype(jnp.float32)) for vector in sent) / len(sent)
    float_mean, zero_fraction = exchange.float_mean((sum(gradients) / len(gradients), zeros), names)
    norms = jnp.linalg.norm(mean) * jnp.linalg.norm(float_mean)
    return Statistics(zero_fraction, jnp.mean(scales), jnp.vdot(mean, float_mean) / norms)


def unknown() -> Statistics:
    """Of an update in which nothing was compressed."""
    return Statistics(*(jnp.full((), jnp.nan, jnp.float32) for _ in Statistics._fields))
