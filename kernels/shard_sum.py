"""The middle of the scatter exchange: words of many workers to the words of their sum, without a float."""

import jax
import jax.numpy as jnp

from . import radix as radix_lib
from .dispatch import pick_implementation, require_levels, require_shape, tuned
from .native.calls import shard_sum_native
from .shard_sum_reference import shard_sum_reference


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
    if not words.size:
        return jnp.zeros((0,), jnp.uint32)
    picked = pick_implementation("shard_sum", implementation, max(words.size, num_elements))
    if picked == "native":
        return shard_sum_native(words, num_elements, levels, radix)
    if picked == "mosaic":
        from .mosaic.shard_sum import shard_sum_mgpu

        return shard_sum_mgpu(words, num_elements, levels, radix, tuned("shard_sum"))
    return shard_sum_reference(words, num_elements, levels, radix)
