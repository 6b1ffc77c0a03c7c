"""Decode in plain jnp."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import radix as radix_lib
from .rounding import settle
from .segments import Segments, split

_UNROLLED_ROWS = 8  # rows that one loop over the elements adds


def ternary_decode_reference(
    words: jax.Array, scales: jax.Array, segments: Segments, num_workers: int, radix: int, levels: int
) -> jax.Array:
    """`ternary_decode`, its arguments checked."""
    units = jnp.where(jnp.isfinite(scales), scales, jnp.nan) / np.float32(num_workers * levels)
    tensors = zip(
        split(words, segments.word_counts(radix)), split(units, segments.scale_counts), segments.sizes, strict=True
    )
    parts = [
        settle(_sum_digits(tensor_words, radix, num_workers * levels)[:size] * segments.per_element(tensor_units, size))
        for tensor_words, tensor_units, size in tensors
        if size
    ]
    return jnp.concatenate(parts) if parts else jnp.zeros((0,), jnp.float32)


def _sum_digits(words: jax.Array, radix: int, zero: int) -> jax.Array:
    """uint32[rows, W] to float32[D W]: the sum of the rows' digits less `zero`, whole numbers below 2^24, so exact."""

    def add_row(row: int | jax.Array, total: jax.Array) -> jax.Array:
        return total + radix_lib.unpack_planes(lax.dynamic_index_in_dim(words, row), radix)[0]

    rows, width = words.shape
    total = jnp.full((radix_lib.digits_per_word(radix), width), -float(zero), jnp.float32)
    if rows > _UNROLLED_ROWS:
        return lax.fori_loop(0, rows, add_row, total).reshape(-1)
    for row in range(rows):
        total = add_row(row, total)
    return total.reshape(-1)
