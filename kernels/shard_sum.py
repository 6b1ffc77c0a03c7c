"""The middle of the scatter exchange: words of many workers to the words of their sum, without a float."""

import jax
import jax.numpy as jnp

from . import radix as radix_lib
from .dispatch import pick_implementation, require_levels, require_shape
from .native.calls import shard_sum_native
from .ternary_decode import sum_digits


def shard_sum(
    words: jax.Array, num_elements: int, *, levels: int = 1, radix: int | None = None, implementation: str = "auto"
) -> jax.Array:
    """Sums the digits of N workers' words and packs the sums.

    Args:
      words: uint32[N, num_words(num_elements, 2L + 1)], a shard of each worker's words; behind the last element stand
        zero levels, as `ternary_encode` leaves them.
      num_elements: n, of the shard.
      levels: L.
      radix: R of the sums; None: 2LN + 1, the smallest that holds them.
      implementation: "auto", "reference", "native" or "mosaic".

    Returns:
      uint32[num_words(n, R)], for `ternary_decode` with all N workers in its one row.

    Raises:
      ValueError: if a shape, dtype, the levels, the radix or the implementation do not fit.
    """
    if words.ndim != 2 or not words.shape[0]:
        raise ValueError(f"words.shape={words.shape}: must be [workers, words]")
    num_workers = words.shape[0]
    own_radix = 2 * levels + 1
    radix = 2 * levels * num_workers + 1 if radix is None else radix
    require_levels(levels, radix, num_workers)
    require_shape("words", words, (num_workers, radix_lib.num_words(num_elements, own_radix)), jnp.uint32)
    picked = pick_implementation("shard_sum", implementation, max(words.size, num_elements))
    if picked == "native":
        return shard_sum_native(words, num_elements, levels, radix)
    if picked == "mosaic":
        from .mosaic.shard_sum import shard_sum_mgpu

        return shard_sum_mgpu(words, num_elements, levels, radix)
    return _reference(words, num_elements, levels, radix)


def _reference(words: jax.Array, num_elements: int, levels: int, radix: int) -> jax.Array:
    zero, depth = levels * words.shape[0], radix_lib.digits_per_word(radix)
    sums = sum_digits(words, 2 * levels + 1, zero=0).reshape(-1, radix_lib.RUN)
    missing = radix_lib.num_words(num_elements, radix) // radix_lib.RUN * depth - sums.shape[0]
    # Fewer tiles of sums may hold all runs that there are, without those that the last tile of words lacks.
    sums = sums[:missing] if missing < 0 else jnp.pad(sums, [(0, missing), (0, 0)], constant_values=zero)
    tiles = sums.reshape(-1, depth, radix_lib.RUN)
    return radix_lib.pack_planes([tiles[:, k].astype(jnp.uint32) for k in range(depth)], radix).reshape(-1)
