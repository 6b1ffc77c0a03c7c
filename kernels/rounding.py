"""Rounding that no compiler can fuse away.

Compilers contract a product and an addition behind it into one operation (FMA) that skips the product's rounding, or do
not, as the code around happens to be fused. Where the same values must give the same bits in every program, products
are made exact, or closed off by an operation on their bits.
"""

import jax
import jax.numpy as jnp
from jax import lax


def to_12_bits(x: jax.Array) -> jax.Array:
    """Rounds float32 to 12 significant bits; the product of two such numbers is exact."""
    return _keep(x, add=0x800, mask=0xFFFFF000)


def settle(x: jax.Array) -> jax.Array:
    """Clears the last bit of float32, so that `x` is rounded before anything is added to it; an error below 2^-22."""
    return _keep(x, add=0, mask=0xFFFFFFFE)


def _keep(x: jax.Array, add: int, mask: int) -> jax.Array:
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    return lax.bitcast_convert_type((bits + jnp.uint32(add)) & jnp.uint32(mask), jnp.float32)
