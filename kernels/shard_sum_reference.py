"""Shard sum in plain jnp."""

import jax
import jax.numpy as jnp

from . import radix as radix_lib
from .ternary_decode_reference import sum_digits


def shard_sum_reference(words: jax.Array, num_elements: int, levels: int, radix: int) -> jax.Array:
    """`shard_sum`, its arguments checked."""
    sums = sum_digits(words, 2 * levels + 1, zero=0).reshape(-1)[:num_elements].astype(jnp.uint32)
    return radix_lib.pack(sums, radix, fill=levels * words.shape[0])
