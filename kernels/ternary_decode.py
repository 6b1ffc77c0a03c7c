"""Words of one or many workers to the float mean."""

import jax
import jax.numpy as jnp
import numpy as np

from .dispatch import pick_implementation, require_levels, require_shape
from .dither import Dither
from .native.calls import ternary_decode_native
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
    dither: Dither | None = None,
    implementation: str = "auto",
) -> jax.Array:
    """The mean gradient: s (sum of digits - N L - dither) / (N L).

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
      dither: what the workers' dither has added to the digits; of a mean of N workers' digits, which comes with
        num_workers = 1, the dither of all N.
      implementation: "auto", "reference", "native" or "mosaic".

    Returns:
      float32[n].

    Raises:
      ValueError: if a shape, dtype, the radix, the levels, the workers or the implementation do not fit.
    """
    require_words(words, segments, num_workers, radix, levels)
    require_shape("scales", scales, (segments.num_scales,), jnp.float32)
    zero, units, dither = as_numbers(scales, num_workers, levels, dither)
    picked = pick_implementation("ternary_decode", implementation, max(words.size, segments.num_elements))
    if picked == "native" and words.size:
        return ternary_decode_native(words, units, segments, zero, radix, dither)
    if picked == "mosaic" and words.size:
        from .mosaic.ternary_decode import ternary_decode_mgpu

        return ternary_decode_mgpu(words, units, segments, zero, radix, dither)
    return ternary_decode_reference(words, units, segments, zero, radix, dither)


def as_numbers(
    scales: jax.Array, num_workers: int, levels: int, dither: Dither | None
) -> tuple[int, jax.Array, Dither | None]:
    """The sum of zero levels, what a digit is worth, and the dither with its `times`.

    Raises:
      ValueError: for the dither of a number of workers that those of the words do not divide.
    """
    count = dither.count if dither else num_workers
    if count % num_workers:
        raise ValueError(f"dither.count={count}: must be a multiple of num_workers={num_workers}")
    dither = dither and dither._replace(times=count // num_workers)
    return num_workers * levels, units_of(scales, levels * count), dither


def require_words(words: jax.Array, segments: Segments, num_workers: int, radix: int, levels: int) -> None:
    """Refuses what is not the words of `num_workers` workers, one or more of them a row."""
    require_levels(levels, radix, num_workers=1)
    rows = words.shape[0] if words.ndim == 2 else 0
    if rows < 1 or num_workers % rows:
        raise ValueError(f"words.shape={words.shape}: must be [rows, words], rows dividing num_workers={num_workers}")
    require_levels(levels, radix, num_workers // rows)
    require_shape("words", words, (rows, segments.num_words(radix)), jnp.uint32)


def units_of(scales: jax.Array, num_levels: int) -> jax.Array:
    """What a digit is worth: s / (N L); NaN where the scale is not finite."""
    return jnp.where(jnp.isfinite(scales), scales, jnp.nan) / np.float32(num_levels)
