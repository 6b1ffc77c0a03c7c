"""Words of one or many workers to the float mean."""

import jax
import jax.numpy as jnp

from .dispatch import pick_implementation, require_levels, require_shape
from .segments import Segments
from .ternary_decode_reference import ternary_decode_reference


def ternary_decode(
    words: jax.Array,
    scales: jax.Array,
    segments: Segments,
    *,
    num_workers: int,
    radix: int = 3,
    levels: int = 1,
    implementation: str = "auto",
) -> jax.Array:
    """The mean gradient: s (sum of digits - N L) / (N L).

    The rows of `words` are added; each row may hold the words of one worker, or the sum of the words of several (radix
    2LN + 1), as long as all rows together hold `num_workers` workers. The sum is exact in integers, so the mean is the
    same bits whatever the rows are.

    Args:
      words: uint32[rows, segments.num_words(radix)].
      scales: float32[num_scales], the ones that the workers encoded with. Not finite: the segment decodes to NaN.
      segments: layout of the bucket.
      num_workers: N, divisible by the rows.
      radix: R of the words.
      levels: L.
      implementation: "auto" or "reference".

    Returns:
      float32[n].

    Raises:
      ValueError: if a shape, dtype, the radix, the levels or the workers do not fit.
    """
    require_levels(levels, radix, num_workers=1)
    rows = words.shape[0] if words.ndim == 2 else 0
    if rows < 1 or num_workers % rows:
        raise ValueError(f"words.shape={words.shape}: must be [rows, words], rows dividing num_workers={num_workers}")
    require_levels(levels, radix, num_workers // rows)
    require_shape("words", words, (rows, segments.num_words(radix)), jnp.uint32)
    require_shape("scales", scales, (segments.num_scales,), jnp.float32)
    pick_implementation("ternary_decode", implementation)
    return ternary_decode_reference(words, scales, segments, num_workers, radix, levels)
