"""Loss scaling: a factor keeps float16 gradients from vanishing, and shrinks when they overflow."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

_PATIENCE = 2000  # steps without an overflow, after which the factor doubles
LEAST, _MOST = 1.0, 2.0**24


class LossScale(NamedTuple):
    """The factor, and how long it has held."""

    factor: jax.Array  # float32 scalar
    good_steps: jax.Array  # int32 scalar, steps without an overflow since the factor changed


def adjust_scale(scale: LossScale, overflowed: jax.Array) -> LossScale:
    """Halves the factor after an overflow, to 1 at least; doubles it after 2,000 steps without one.

    Micikevicius et al., Mixed Precision Training, 2018. `overflowed` is a bool scalar: whether any worker's gradients
    overflowed.
    """
    good_steps = scale.good_steps + 1
    grows = good_steps >= _PATIENCE
    factor = jnp.where(grows, jnp.minimum(scale.factor * 2, _MOST), scale.factor)
    good = LossScale(factor, jnp.where(grows, 0, good_steps))
    bad = LossScale(jnp.maximum(scale.factor / 2, LEAST), jnp.zeros_like(good_steps))
    return jax.tree.map(lambda x, y: jnp.where(overflowed, x, y), bad, good)
