"""Rounding that no compiler can fuse away.

Compilers contract a product and an addition behind it into one operation (FMA) that skips the product's rounding, or do
not, as the code around happens to be fused. Where the same values must give the same bits in every program, products
are made exact, or closed off by an operation on their bits.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_MAGIC = 1.5 * 2**23  # floats beside it are whole numbers, in the order of their bits
_MAGIC_LEVELS = 64  # up to so many levels the fixed-point numbers are small enough for it


def to_12_bits(x: jax.Array) -> jax.Array:
    """Rounds float32 to 12 significant bits; the product of two such numbers is exact."""
    return _keep(x, add=0x800, mask=0xFFFFF000)


def settle(x: jax.Array) -> jax.Array:
    """Clears the last bit of float32, so that `x` is rounded before anything is added to it; an error below 2^-22."""
    return _keep(x, add=0, mask=0xFFFFFFFE)


def _keep(x: jax.Array, add: int, mask: int) -> jax.Array:
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    return lax.bitcast_convert_type((bits + jnp.uint32(add)) & jnp.uint32(mask), jnp.float32)


def to_digits(scaled: jax.Array, noise: jax.Array, levels: int) -> jax.Array:
    """Stochastic rounding in fixed point: the carry of fraction + noise is the rounding.

    Args:
      scaled: float32, g / s * L * 2^16; beyond L 2^16 it is clipped.
      noise: uint32 below 2^16.
      levels: L.

    Returns:
      uint32 digits in [0, 2L]: floor(g / s L + L + noise / 2^16). A NaN becomes what the lowest number does.
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
