"""The bits that a rounding adds to a fraction before it takes the carry: each worker's own, none, or a shared dither.

They are uint32[4], which kernels take in place of a key: two halves of a key, a mask of the bits that are drawn with
it, and what is added to those modulo 2^16. `uint32[2]`, a key alone, stands for 16 bits of each worker's own noise.

A dither is known to the receiver, who takes it off again: what is left is an error that is uniform, and independent of
the gradient (Roberts, Picture Coding Using Pseudo-Random Noise, 1962). All workers draw the same bits, and worker w of
N adds w / N, so that their errors cancel where their gradients are alike, and the sum of all dithers takes one draw:
with b the bits drawn, the sum over w of (b + floor(w 2^16 / N) mod 2^16), less N 2^15, is (N b mod 2^16) - centre(N).
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import noise
from .dispatch import require_shape

_ONE = 1 << noise.BITS  # a level, in fixed point


def nearest() -> jax.Array:
    """No random bits: rounding to the nearest."""
    return jnp.array([0, 0, 0, _ONE // 2], jnp.uint32)


def dithered(key: jax.Array, worker: jax.typing.ArrayLike, num_workers: int) -> jax.Array:
    """The dither of worker 0 to N - 1, by a key that all share; N below 2^15."""
    shift = (jnp.asarray(worker).astype(jnp.uint32) << noise.BITS) // jnp.uint32(num_workers)
    return jnp.concatenate([key, jnp.stack([jnp.uint32(_ONE - 1), shift])])


def complete(key: jax.Array) -> jax.Array:
    """uint32[2] or uint32[4] to uint32[4]; a ValueError for another shape or dtype."""
    if key.shape == (4,) and key.dtype == jnp.uint32:
        return key
    require_shape("key", key, (2,), jnp.uint32)
    return jnp.concatenate([key, jnp.array([_ONE - 1, 0], jnp.uint32)])


def shifted(bits: jax.Array, mask: jax.Array, shift: jax.Array) -> jax.Array:
    """The bits that are added to a fraction, of those that are drawn; uint32 below 2^16."""
    return (bits & mask) + shift & np.uint32(_ONE - 1)


class Dither(NamedTuple):
    """What a decoder takes off the sum of digits.

    Attributes:
      bits: uint32[4], a worker's own where its digits alone are decoded; worker 0's of the sum of all.
      count: 1, or N of the sum of N workers.
      offset: as in `ternary_encode`.
      times: how often a digit counts before the dither is taken off: N of the mean of N workers' digits.
    """

    bits: jax.Array
    count: int
    offset: int = 0
    times: int = 1

    @property
    def centre(self) -> int:
        """What the sum of the dithers is on average, of which only the part below one level is left."""
        return _ONE // 2 + (self.count - math.gcd(self.count, _ONE)) // 2 * (self.count > 1)

    def of(self, drawn: jax.Array) -> jax.Array:
        """float32, in levels: what the bits that were drawn have added to the sum of digits."""
        total = drawn * np.uint32(self.count) + self.bits[3] & np.uint32(_ONE - 1)
        return (lax.bitcast_convert_type(total, jnp.int32) - self.centre).astype(jnp.float32) * np.float32(1 / _ONE)
