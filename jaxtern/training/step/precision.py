"""Loss scaling: gradients of half precision, which would vanish, made larger by a factor that yields to overflows."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

_PATIENCE = 2000  # steps without an overflow, after which the factor doubles
LEAST, _MOST = 1.0, 2.0**24


class LossScale(NamedTuple):
    """A factor and how long it has held.

    Attributes:
      factor: float32 scalar, a power of two times the first one.
      good_steps: int32 scalar, steps without an overflow since it changed.
    """

    factor: jax.Array
    good_steps: jax.Array


def adjust_scale(scale: LossScale, overflowed: jax.Array) -> LossScale:
    """Half after an overflow, but not below 1; double after 2,000 steps without (Micikevicius et al. 2018).

    Args:
      scale: of the step.
      overflowed: bool scalar, whether any worker's gradients did.
    """
    good_steps = scale.good_steps + 1
    grows = good_steps >= _PATIENCE
    good = LossScale(
        jnp.where(grows, jnp.minimum(scale.factor * 2, _MOST), scale.factor), jnp.where(grows, 0, good_steps)
    )
    bad = LossScale(jnp.maximum(scale.factor / 2, LEAST), jnp.zeros_like(good_steps))
    return jax.tree.map(lambda x, y: jnp.where(overflowed, x, y), bad, good)
