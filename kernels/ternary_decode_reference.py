"""Decode in plain jnp."""

import jax
import jax.numpy as jnp
from jax import lax

from . import radix as radix_lib
from .dither import Dither
from .radix import RUN
from .rounding import settle
from .segments import Segments
from .ternary_encode_reference import noise_planes

_UNROLLED_ROWS = 8  # rows that one loop over the elements adds


def ternary_decode_reference(
    words: jax.Array, units: jax.Array, segments: Segments, zero: int, radix: int, dither: Dither | None
) -> jax.Array:
    """`ternary_decode`, its arguments checked; units are what a digit is worth, `zero` is the sum of zero levels."""
    return worth(segments, sum_levels(words, radix, zero, dither)[: segments.num_elements], units)


def sum_levels(words: jax.Array, radix: int, zero: int, dither: Dither | None) -> jax.Array:
    """float32, flat: the sum of the rows' digits less `zero`, and less the dither."""
    total = sum_digits(words, radix, zero)
    if dither is not None:
        drawn = noise_planes(dither.bits, *total.shape[:1], 0, total.shape[1], dither.offset)
        total = total * dither.times - dither.of(jnp.stack(drawn, axis=1))
    return total.reshape(-1)


def worth(segments: Segments, digits: jax.Array, units: jax.Array) -> jax.Array:
    """float32[n] digits to what they are worth."""
    return settle(segments.spread(digits, units))


def sum_digits(words: jax.Array, radix: int, zero: int) -> jax.Array:
    """uint32[rows, W] to float32[tiles, D, RUN]: the sum of the rows' digits less `zero`, exact below 2^24."""

    def add_row(row: int | jax.Array, total: jax.Array) -> jax.Array:
        return total + radix_lib.unpack_planes(lax.dynamic_index_in_dim(words, row, keepdims=False), radix)

    words = words.reshape(words.shape[0], -1, RUN)
    rows, tiles, _ = words.shape
    total = jnp.full((tiles, radix_lib.digits_per_word(radix), RUN), -float(zero), jnp.float32)
    unrolled = rows if rows <= _UNROLLED_ROWS else 1  # a first row, so that what a loop carries varies as the words do
    for row in range(unrolled):
        total = add_row(row, total)
    return lax.fori_loop(unrolled, rows, add_row, total) if unrolled < rows else total
