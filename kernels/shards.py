"""Sums the words of many workers for one shard, in the middle of an exchange."""

import jax
import jax.numpy as jnp

from . import radix as radix_lib
from .dispatch import pick_implementation, require_levels, require_shape
from .native.calls import call
from .ternary_decode import sum_digits
from .tuning import DEFAULTS


def shard_sum(words: jax.Array, num_elements: int, *, levels: int = 1, implementation: str = "auto") -> jax.Array:
    """Sums the digits of N workers' words and packs the sums.

    Args:
      words: uint32[N, num_words(num_elements, 2L + 1)], each worker's words of the shard; places after the last element
        hold level zero, as from `ternary_encode`.
      num_elements: n, of the shard.
      levels: L.
      implementation: "auto", "reference", "native" or "mosaic".

    Returns:
      uint32[num_words(n, R)] of radix R = 2LN + 1, for `ternary_decode` as one row of all N workers.

    Raises:
      ValueError: if a shape, dtype, the levels, the number of workers or the implementation do not fit.
    """
    if words.ndim != 2 or not words.shape[0]:
        raise ValueError(f"words.shape={words.shape}: must be [workers, words]")
    num_workers = words.shape[0]
    radix = 2 * levels * num_workers + 1
    require_levels(levels, radix, num_workers)
    require_shape("words", words, (num_workers, radix_lib.num_words(num_elements, 2 * levels + 1)), jnp.uint32)
    picked = pick_implementation("shard_sum", implementation, max(words.size, num_elements))
    if picked == "native":
        numbers = {"radix": radix, "levels": levels, "elements": num_elements}
        return call("shard_sum", [((radix_lib.num_words(num_elements, radix),), jnp.uint32)], [words], **numbers)[0]
    if picked == "mosaic":
        from .mosaic.shards import shard_sum_mgpu

        return shard_sum_mgpu(words, num_elements, levels, radix, DEFAULTS["shard_sum"])
    return _sum_reference(words, num_elements, levels, radix)


def _sum_reference(words: jax.Array, num_elements: int, levels: int, radix: int) -> jax.Array:
    zero, depth = levels * words.shape[0], radix_lib.digits_per_word(radix)
    sums = sum_digits(words, 2 * levels + 1, zero=0).reshape(-1, radix_lib.RUN)
    missing = radix_lib.num_words(num_elements, radix) // radix_lib.RUN * depth - sums.shape[0]
    # The tiles of sums may hold fewer runs than the tiles of words, whose last runs may be empty.
    sums = sums[:missing] if missing < 0 else jnp.pad(sums, [(0, missing), (0, 0)], constant_values=zero)
    tiles = sums.reshape(-1, depth, radix_lib.RUN)
    return radix_lib.pack_planes([tiles[:, k].astype(jnp.uint32) for k in range(depth)], radix).reshape(-1)
