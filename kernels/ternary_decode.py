"""Words of one or many workers to the float mean."""

import jax
import jax.numpy as jnp
import numpy as np

from .dispatch import pick_implementation, require_levels, require_shape, tuned, why_not_float32
from .native.calls import ternary_decode_native
from .segments import Segments
from .ternary_decode_reference import ternary_decode_reference

OUTPUT_DTYPES = tuple(jnp.dtype(each) for each in (jnp.float32, jnp.bfloat16, jnp.float16))


def ternary_decode(
    words: jax.Array,
    scales: jax.Array,
    segments: Segments,
    *,
    num_workers: int,
    radix: int = 3,
    levels: int = 1,
    dtype: jax.typing.DTypeLike = jnp.float32,
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
      dtype: of the mean; float32, bfloat16 or float16. "native" knows only float32, for others "auto" takes the
        reference on a CPU.
      implementation: "auto", "reference", "native" or "mosaic".

    Returns:
      dtype[n].

    Raises:
      ValueError: if a shape, dtype, the radix, the levels, the workers or the implementation do not fit.
    """
    require_words(words, segments, num_workers, radix, levels)
    require_shape("scales", scales, (segments.num_scales,), jnp.float32)
    dtype = jnp.dtype(dtype)
    if dtype not in OUTPUT_DTYPES:
        raise ValueError(f"dtype={dtype}: must be one of {', '.join(str(each) for each in OUTPUT_DTYPES)}")
    zero, units = num_workers * levels, units_of(scales, num_workers * levels)
    not_native = why_not_float32("dtype", dtype)
    picked = pick_implementation("ternary_decode", implementation, max(words.size, segments.num_elements), not_native)
    if picked == "native" and words.size:
        return ternary_decode_native(words, units, segments, zero, radix)
    if picked == "mosaic" and words.size:
        from .mosaic.ternary_decode import ternary_decode_mgpu

        return ternary_decode_mgpu(words, units, segments, zero, radix, dtype, tuned("ternary_decode"))
    return ternary_decode_reference(words, units, segments, zero, radix, dtype)


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
