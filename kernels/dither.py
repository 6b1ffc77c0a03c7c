"""The bits that rounding adds to a fraction: a worker's own noise, a constant, or a dither that receivers subtract.

Kernels take them as uint32[4] in place of a key: the two halves of a key, a mask for the bits drawn with it, and a
number added to those modulo 2^16. A key alone, uint32[2], stands for 16 bits of a worker's own noise.

Receivers know the dither and subtract it. The remaining error is uniform, and independent of the gradient (Roberts,
Picture Coding Using Pseudo-Random Noise, 1962). All workers draw the same bits b, and worker w of N adds w / N. So
errors cancel where gradients agree, and the sum of all dithers takes one draw: the sum over w of
(b + floor(w 2^16 / N) mod 2^16), less N 2^15, is (N b mod 2^16) - centre(N).
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from . import noise
from .dispatch import require_shape

_ONE = 1 << noise.BITS  # one level in fixed point


def nearest() -> jax.Array:
    """Bits without randomness, for rounding to the nearest; uint32[4]."""
    return jnp.array([0, 0, 0, _ONE // 2], jnp.uint32)


def dithered(key: jax.Array, worker: jax.typing.ArrayLike, num_workers: int) -> jax.Array:
    """The dither of a worker, 0 to N - 1, from a key that all workers share; uint32[4], N below 2^15."""
    shift = (jnp.asarray(worker).astype(jnp.uint32) << noise.BITS) // jnp.uint32(num_workers)
    return jnp.concatenate([key, jnp.stack([jnp.uint32(_ONE - 1), shift])])


def complete(key: jax.Array) -> jax.Array:
    """Completes uint32[2] to uint32[4], which it returns unchanged; raises ValueError for other shapes and dtypes."""
    if key.shape == (4,) and key.dtype == jnp.uint32:
        return key
    require_shape("key", key, (2,), jnp.uint32)
    return jnp.concatenate([key, jnp.array([_ONE - 1, 0], jnp.uint32)])


def with_group(bits: jax.Array, offset: int | jax.Array) -> jax.Array:
    """uint32[5]: complete bits, and the group of noise at which `offset`, in elements, begins."""
    return jnp.append(bits, jnp.uint32(offset // noise.LANES))


def shifted(bits: jax.Array, mask: jax.Array, shift: jax.Array) -> jax.Array:
    """Turns drawn bits into those added to a fraction; uint32 below 2^16."""
    return (bits & mask) + shift & np.uint32(_ONE - 1)


class Dither(NamedTuple):
    """The dither that a decoder subtracts from a sum of digits."""

    bits: jax.Array  # uint32[4], of the worker whose digits are decoded; worker 0's for a sum over all workers
    count: int  # 1, or N for the sum of N workers
    offset: int | jax.Array = 0  # as in `ternary_encode`

    @property
    def centre(self) -> int:
        """The average of the sum of the dithers, modulo one level."""
        return _ONE // 2 + (self.count - math.gcd(self.count, _ONE)) // 2 * (self.count > 1)

    def of(self, drawn: jax.Array) -> jax.Array:
        """float32, in levels: what the drawn bits added to the sum of digits."""
        total = drawn * np.uint32(self.count) + self.bits[3] & np.uint32(_ONE - 1)
        return (total.astype(jnp.int32) - self.centre).astype(jnp.float32) * np.float32(1 / _ONE)
