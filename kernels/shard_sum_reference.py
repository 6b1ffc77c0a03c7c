"""Shard sum in plain jnp."""

import jax
import jax.numpy as jnp

from . import radix as radix_lib
from .radix import RUN
from .ternary_decode_reference import sum_digits


def shard_sum_reference(words: jax.Array, num_elements: int, levels: int, radix: int) -> jax.Array:
    """`shard_sum`, its arguments checked."""
    zero, depth = levels * words.shape[0], radix_lib.digits_per_word(radix)
    sums = sum_digits(words, 2 * levels + 1, zero=0).reshape(-1, RUN)
    missing = radix_lib.num_words(num_elements, radix) // RUN * depth - sums.shape[0]
    # Fewer tiles of sums may hold all runs that there are, without those that the last tile of words lacks.
    sums = sums[:missing] if missing < 0 else jnp.pad(sums, [(0, missing), (0, 0)], constant_values=zero)
    tiles = sums.reshape(-1, depth, RUN)
    return radix_lib.pack_planes([tiles[:, k].astype(jnp.uint32) for k in range(depth)], radix).reshape(-1)
