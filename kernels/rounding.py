"""Rounding that no compiler can fuse away.

A compiler may contract a product and a following addition into one operation (FMA), which does not round the product;
whether it does depends on the code around. To get the same bits in every program, products here are exact, or followed
by an operation on their bits.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_MAGIC = 1.5 * 2**23  # floats near it are whole numbers, consecutive in their bits
_MAGIC_LEVELS = 64  # the largest number of levels for which fixed-point numbers are small enough for it


def to_12_bits(x: jax.Array) -> jax.Array:
    """Rounds float32 to 12 significant bits; the product of two such numbers is exact."""
    return _keep(x, add=0x800, mask=0xFFFFF000)


def settle(x: jax.Array) -> jax.Array:
    """Clears the last bit of float32, which forces `x` to be rounded first; the relative error is below 2^-22."""
    return _keep(x, add=0, mask=0xFFFFFFFE)


def _keep(x: jax.Array, add: int, mask: int) -> jax.Array:
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    return lax.bitcast_convert_type((bits + jnp.uint32(add)) & jnp.uint32(mask), jnp.float32)


def to_digits(scaled: jax.Array, noise: jax.Array, levels: int) -> jax.Array:
    """Rounds stochastically in fixed point: the carry of fraction + noise rounds up.

    Args:
      scaled: float32, g / s * L * 2^16; clipped to +- L 2^16.
      noise: uint32 below 2^16.
      levels: L.

    Returns:
      uint32 digits in [0, 2L]: floor(g / s L + L + noise / 2^16). A NaN is treated as the lowest number.
    """
    limit = np.float32(levels << 16)
    scaled = jnp.where(scaled > -limit, scaled, -limit)
    scaled = jnp.where(scaled < limit, scaled, limit)
    if levels <= _MAGIC_LEVELS:  # an addition costs less than a conversion
        bits = lax.bitcast_convert_type(scaled + np.float32(_MAGIC), jnp.uint32)
        fixed = bits - np.float32(_MAGIC).view(np.uint32)
    else:
        fixed = lax.bitcast_convert_type(jnp.round(scaled).astype(jnp.int32), jnp.uint32)
    return (fixed + np.uint32(levels << 16) + noise) >> 16
