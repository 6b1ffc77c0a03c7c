"""Gradient, scales and key to radix words."""

import jax
import jax.numpy as jnp

from .dispatch import pick_implementation, require_floating, require_levels, require_shape
from .segments import Segments
from .ternary_encode_reference import ternary_encode_reference


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

    q = sign(g) floor(min(|g|/s, 1) L + u) with u uniform in [0, 1), so E[q] = L clip(g/s, -1, 1); the digit is q + L.
    With L = 1 that is TernGrad's ternarize (Wen et al. 2017, eq. 2-4): P(q != 0) = |g|/s. u has 24 random bits up to
    127 levels and 16 above, so the bias is below 2^-16 of the scale. Where the scale is below 2^-100 (zero, too) every
    digit is zero; where it is not finite the digits are valid and mean nothing, and `ternary_decode` returns NaN.

    Args:
      gradient: float[n], a bucket; float32, bfloat16 or float16.
      scales: float32[num_scales], shared by all workers.
      key: uint32[2], from `derive_key`.
      segments: layout of the bucket.
      radix: R of the words, at least 2L + 1; 2LN + 1 where the words of N workers will be added.
      levels: L, 1 to 32767.
      offset: position of the bucket's first element in the stream of noise.
      implementation: "auto" or "reference".

    Returns:
      uint32[segments.num_words(radix)].

    Raises:
      ValueError: if a shape, dtype, the radix or the levels do not fit.
    """
    require_floating(gradient, segments)
    require_shape("scales", scales, (segments.num_scales,), jnp.float32)
    require_shape("key", key, (2,), jnp.uint32)
    require_levels(levels, radix, num_workers=1)
    if not 0 <= offset <= 2**32 - segments.num_elements:
        raise ValueError(f"offset={offset}: {segments.num_elements} elements from there must end below 2^32")
    pick_implementation("ternary_encode", implementation)
    return ternary_encode_reference(gradient, scales, key, segments, radix, levels, offset)
