"""Gradient, scales and key to radix words."""

import jax
import jax.numpy as jnp
import numpy as np

from . import dither, noise
from .dispatch import pick_implementation, require_floating, require_levels, require_shape, why_not_float32
from .native.calls import ternary_encode_native
from .segments import Segments
from .ternary_encode_reference import ternary_encode_reference

MIN_SCALE = 2.0**-100


def ternary_encode(
    gradient: jax.Array,
    scales: jax.Array,
    key: jax.Array,
    segments: Segments,
    *,
    radix: int = 3,
    levels: int = 1,
    offset: int = 0,
    implementation: str = "auto",
) -> jax.Array:
    """Clips to the scale, rounds stochastically to levels, packs the digits.

    The digit is floor(clip(g/s, -1, 1) L + L + u) with u uniform in [0, 1); less L, it is a level q in [-L, L] with
    E[q] = L clip(g/s, -1, 1). With L = 1 that is TernGrad's ternarize (Wen et al. 2017, eq. 2-4): P(q != 0) = |g|/s.
    u has 16 random bits and g/s L is rounded to 16 binary places, so the bias is at most 2^-17 of the scale. Where the
    scale is below 2^-100 (zero, too) every level is zero; where it is not finite the digits are valid and mean
    nothing, and `ternary_decode` returns NaN.

    Args:
      gradient: float[n], a bucket; float32, bfloat16 or float16.
      scales: float32[num_scales], shared by all workers.
      key: uint32[2], from `derive_key`; or uint32[4], other bits than 16 random ones (see dither.py).
      segments: layout of the bucket.
      radix: R of the words, at least 2L + 1; 2LN + 1 where the words of N workers will be added.
      levels: L, 1 to 32767.
      offset: position of the bucket's first element in the stream of noise, a multiple of 512.
      implementation: "auto", "reference", "native" or "mosaic". "native" knows only float32; for others "auto"
        takes the reference on a CPU.

    Returns:
      uint32[segments.num_words(radix)].

    Raises:
      ValueError: if a shape, dtype, the radix, the levels or the implementation do not fit.
    """
    require_floating(gradient, segments)
    require_shape("scales", scales, (segments.num_scales,), jnp.float32)
    key = dither.complete(key)
    require_levels(levels, radix, num_workers=1)
    require_offset(offset, segments.num_elements)
    steps, not_native = steps_of(scales, levels), why_not_float32("gradient.dtype", gradient.dtype)
    picked = pick_implementation("ternary_encode", implementation, gradient.size, not_native)
    if picked == "native" and segments.num_elements:
        return ternary_encode_native(gradient, steps, key, segments, radix, levels, offset)
    if picked == "mosaic" and gradient.size:
        from .mosaic.ternary_encode import ternary_encode_mgpu

        return ternary_encode_mgpu(gradient, steps, key, segments, radix, levels, offset)
    return ternary_encode_reference(gradient, steps, key, segments, radix, levels, offset)


def steps_of(scales: jax.Array, levels: int) -> jax.Array:
    """What turns g into fixed-point levels: L 2^16 / s, or 0 where the scale is too small to divide by."""
    return jnp.where(scales >= MIN_SCALE, np.float32(levels << noise.BITS) / scales, 0.0)


def require_offset(offset: int, size: int) -> None:
    """Refuses a position of so many elements that is not that of a group of noise."""
    multiple = noise.LANES * noise.RUN
    if offset % multiple or not 0 <= offset <= 2**32 - size:
        raise ValueError(f"offset={offset}: must be a multiple of {multiple} from which {size} elements end below 2^32")
