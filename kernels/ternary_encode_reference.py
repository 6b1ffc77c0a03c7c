"""Encode in plain jnp."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import noise, radix as radix_lib
from .segments import Segments, split

MIN_SCALE = 2.0**-100
_UNROLLED_SIZE = 2**18  # from here on one loop over words pays for its longer compilation (6 times faster at 2^25)


def ternary_encode_reference(
    gradient: jax.Array, scales: jax.Array, key: jax.Array, segments: Segments, radix: int, levels: int, offset: int
) -> jax.Array:
    """`ternary_encode`, its arguments checked."""
    words, start = [], offset
    scales = split(scales, segments.scale_counts)
    for tensor, tensor_scales in zip(split(gradient, segments.sizes), scales, strict=True):
        if tensor.size:
            steps = segments.per_element(_steps_per_unit(tensor_scales, levels), tensor.size)
            words.append(_encode_tensor(tensor, steps, key, radix, levels, start))
        start += tensor.size
    return jnp.concatenate(words) if words else jnp.zeros((0,), jnp.uint32)


def _fraction_bits(levels: int) -> int:
    return 24 if levels <= 127 else 16


def _steps_per_unit(scales: jax.Array, levels: int) -> jax.Array:
    """What turns |g| into fixed-point levels: L 2^F / s, or 0 where the scale is too small to divide by."""
    return jnp.where(scales >= MIN_SCALE, np.float32(levels << _fraction_bits(levels)) / scales, 0.0)


def _encode_tensor(
    tensor: jax.Array, steps: jax.Array, key: jax.Array, radix: int, levels: int, start: int
) -> jax.Array:
    """Words of one tensor whose first element has noise position `start`."""
    depth, width = radix_lib.digits_per_word(radix), radix_lib.num_words(tensor.size, radix)
    position = lax.iota(jnp.uint32, width) + np.uint32(start)

    def plane(k: int) -> jax.Array:
        run = slice(min(k * width, tensor.size), min((k + 1) * width, tensor.size))
        length = run.stop - run.start
        run_steps = steps if steps.ndim == 0 else steps[run]
        digits = _digits(tensor[run], run_steps, key, position[:length] + np.uint32(k * width), levels)
        return jnp.pad(digits, (0, width - length), constant_values=levels)

    if tensor.size >= _UNROLLED_SIZE:
        return radix_lib.pack_planes([plane(k) for k in range(depth)], radix)
    position = lax.iota(jnp.uint32, tensor.size) + np.uint32(start)
    return radix_lib.pack(_digits(tensor, steps, key, position, levels), radix, fill=levels)


def _digits(x: jax.Array, steps: jax.Array, key: jax.Array, position: jax.Array, levels: int) -> jax.Array:
    """Stochastic rounding in fixed point: the carry of fraction + noise is the rounding."""
    bits = _fraction_bits(levels)
    magnitude = jnp.minimum(jnp.abs(x.astype(jnp.float32)) * steps, np.float32(levels << bits)).astype(jnp.uint32)
    level = (magnitude + (noise.random_bits(key, position) >> (32 - bits))) >> bits
    level = jnp.minimum(level, np.uint32(levels))  # a NaN converts to any integer; the digit must stay in range
    return jnp.where(x < 0, levels - level, levels + level)
