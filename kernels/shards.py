"""Sums or averages the words of many workers for one shard, in the middle of an exchange."""

import jax
import jax.numpy as jnp

from . import noise, radix as radix_lib
from .dispatch import pick_implementation, require_levels, require_shape
from .native.calls import call
from .ternary_decode import sum_digits
from .tuning import DEFAULTS

MAX_WORKERS = 2**15 - 1  # of a mean, so that 16 bits of noise times workers stay below 2^31


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


def shard_mean(
    words: jax.Array, key: jax.Array, position: jax.Array, *, levels: int = 1, implementation: str = "auto"
) -> jax.Array:
    """Averages the levels of N workers and rounds the mean stochastically to a level.

    With S the sum of N digits and r uniform in {0, ..., N - 1}, the digit is floor((S + r) / N). Its expectation is
    S / N, so the mean is unbiased and again takes the digits of one worker. r is N times 16 random bits, shifted right
    by 16, so the bias is at most 2^-16 of a level, and zero if N is a power of two.

    Args:
      words: uint32[N, W], each worker's words of the shard, of radix 2L + 1 and in whole tiles.
      key: uint32[2], from `derive_key`, the same for all shards.
      position: uint32 scalar, the place of the shard's first element in the stream of noise, a multiple of 512.
      levels: L.
      implementation: "auto", "reference", "native" or "mosaic".

    Returns:
      uint32[W] of radix 2L + 1, for `ternary_decode` as the words of one worker.

    Raises:
      ValueError: if a shape, dtype or the levels do not fit, or there are more than 32767 workers.
    """
    if words.ndim != 2 or not 1 <= words.shape[0] <= MAX_WORKERS:
        raise ValueError(f"words.shape={words.shape}: must be [workers, words] of 1 to {MAX_WORKERS} workers")
    num_workers, width = words.shape
    radix = 2 * levels + 1
    require_levels(levels, radix, num_workers=1)
    if 2 * levels * num_workers >= 2**24:
        raise ValueError(f"levels={levels!r}: the sum of {num_workers} workers' levels must stay below 2^24")
    require_shape("words", words, (num_workers, width // radix_lib.RUN * radix_lib.RUN), jnp.uint32)
    require_shape("key", key, (2,), jnp.uint32)
    require_shape("position", position, (), jnp.uint32)
    picked = pick_implementation("shard_mean", implementation, words.size)
    if picked == "native":
        return call("shard_mean", [(words.shape[1:], jnp.uint32)], [words, key, position], radix=radix)[0]
    if picked == "mosaic":
        from .mosaic.shards import shard_mean_mgpu

        return shard_mean_mgpu(words, key, position, levels, DEFAULTS["shard_mean"])
    return _mean_reference(words, key, position, radix)


def _mean_reference(words: jax.Array, key: jax.Array, position: jax.Array, radix: int) -> jax.Array:
    num_workers, depth = words.shape[0], radix_lib.digits_per_word(radix)
    sums = sum_digits(words, radix, zero=0).astype(jnp.uint32)  # [tiles, D, RUN]
    places = jnp.arange(sums.size, dtype=jnp.uint32).reshape(sums.shape)
    drawn = noise.random_bits(key, places + position) * jnp.uint32(num_workers) >> noise.BITS
    digits = (sums + drawn) // jnp.uint32(num_workers)
    return radix_lib.pack_planes([digits[:, k] for k in range(depth)], radix).reshape(-1)
