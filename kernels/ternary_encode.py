"""Gradient, scales and key to radix words."""

from collections.abc import Sequence
from typing import Literal, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import noise
from .dispatch import (
    pick_implementation,
    require_floating,
    require_levels,
    require_shape,
    tuned,
    why_not_float32,
)
from .native import encode_span_native, ternary_encode_native
from .segments import Segments
from .ternary_decode import units_of
from .ternary_encode_reference import residual_reference, ternary_encode_reference

MIN_SCALE = 2.0**-100


@overload
def ternary_encode(
    gradient: jax.Array,
    scales: jax.Array,
    key: jax.Array,
    segments: Segments,
    *,
    radix: int = 3,
    levels: int = 1,
    offset: int = 0,
    start: int | None = None,
    residual: Literal[False] = False,
    implementation: str = "auto",
) -> jax.Array: ...


@overload
def ternary_encode(
    gradient: jax.Array,
    scales: jax.Array,
    key: jax.Array,
    segments: Segments,
    *,
    radix: int = 3,
    levels: int = 1,
    offset: int = 0,
    start: int | None = None,
    residual: Literal[True],
    implementation: str = "auto",
) -> tuple[jax.Array, jax.Array]: ...


def ternary_encode(
    gradient: jax.Array,
    scales: jax.Array,
    key: jax.Array,
    segments: Segments,
    *,
    radix: int = 3,
    levels: int = 1,
    offset: int = 0,
    start: int | None = None,
    residual: bool = False,
    implementation: str = "auto",
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Clips to the scale, rounds stochastically to levels, packs the digits.

    The digit is floor(clip(g/s, -1, 1) L + L + u) with u uniform in [0, 1); less L, it is a level q in [-L, L] with
    E[q] = L clip(g/s, -1, 1). With L = 1 that is TernGrad's ternarize (Wen et al. 2017, eq. 2-4): P(q != 0) = |g|/s.
    u has 16 random bits and g/s L is rounded to 16 binary places, so the bias is at most 2^-17 of the scale. Where the
    scale is below 2^-100 (zero, too) every level is zero; where it is not finite the digits are valid and mean
    nothing, and `ternary_decode` returns NaN.

    Args:
      gradient: float[n], a bucket; float32, bfloat16 or float16. With `start`, a longer one.
      scales: float32[num_scales], shared by all workers.
      key: uint32[2], from `derive_key`.
      segments: layout of the bucket.
      radix: R of the words, at least 2L + 1; 2LN + 1 where the words of N workers will be added.
      levels: L, 1 to 32767.
      offset: position of the bucket's first element in the stream of noise, a multiple of 512.
      start: of the span of the gradient that is encoded, gradient[start : start + n], a multiple of 512; None: all of
        it. The offset is that of the span's first element.
      residual: also return what the words leave out, for error feedback.
      implementation: "auto", "reference", "native" or "mosaic". "native" knows only
        float32 without residual; for others "auto" takes the reference on a CPU.

    Returns:
      uint32[segments.num_words(radix)]; with `residual` also float32[n], the elements less what `ternary_decode`
      makes of these words alone.

    Raises:
      ValueError: if a shape, dtype, the radix, the levels or the implementation do not fit.
    """
    _require(gradient, scales, key, segments, radix, levels, offset, start)
    steps, units = steps_of(scales, levels), units_of(scales, levels)
    not_native = "it gives no residual" if residual else why_not_float32("gradient.dtype", gradient.dtype)
    picked = pick_implementation("ternary_encode", implementation, gradient.size, not_native)  # of all its spans alike
    if picked == "native" and segments.num_elements:
        return ternary_encode_native(gradient, steps, key, segments, radix, levels, offset, start or 0)
    if start is not None:
        gradient = lax.slice(gradient, (start,), (start + segments.num_elements,))
    if picked == "mosaic" and gradient.size:
        from .ternary_encode_mgpu import ternary_encode_mgpu

        options = (segments, radix, levels, offset, residual, tuned("ternary_encode"))
        return ternary_encode_mgpu(gradient, steps, units, key, *options)
    words = ternary_encode_reference(gradient, steps, key, segments, radix, levels, offset)
    return (words, residual_reference(gradient, words, units, segments, radix, levels)) if residual else words


def encode_span(
    gradient: jax.Array,
    scales: jax.Array,
    key: jax.Array,
    segments: Segments,
    *,
    start: int,
    radix: int = 3,
    levels: int = 1,
    offset: int = 0,
    after: Sequence[jax.Array] = (),
    implementation: str = "auto",
) -> tuple[jax.Array, jax.Array]:
    """`ternary_encode` of a span, which also hands the gradient on, so that the next span can be encoded from it, and a
    mean decoded into it (`ternary_decode`'s `into`), one after the other and without a copy of the whole.

    Args:
      gradient: as in `ternary_encode`, but of any shape, in row-major order.
      scales, key, segments, start, radix, levels, offset, implementation: as in `ternary_encode`.
      after: arrays that are to be computed first; "native" keeps to it.

    Returns:
      The words, and the gradient, the same values as before.
    """
    options = {"radix": radix, "levels": levels, "offset": offset, "start": start, "implementation": implementation}
    not_native = why_not_float32("gradient.dtype", gradient.dtype)
    picked = pick_implementation("ternary_encode", implementation, gradient.size, not_native)
    if picked != "native" or not segments.num_elements:
        return ternary_encode(gradient.reshape(-1), scales, key, segments, **options), gradient
    _require(
        jax.ShapeDtypeStruct((gradient.size,), gradient.dtype), scales, key, segments, radix, levels, offset, start
    )
    steps = steps_of(scales, levels)
    return encode_span_native(gradient, steps, key, segments, radix, levels, offset, start, after)


def _require(
    gradient: jax.Array | jax.ShapeDtypeStruct,
    scales: jax.Array,
    key: jax.Array,
    segments: Segments,
    radix: int,
    levels: int,
    offset: int,
    start: int | None,
) -> None:
    require_floating(gradient, segments, start)
    require_shape("scales", scales, (segments.num_scales,), jnp.float32)
    require_shape("key", key, (2,), jnp.uint32)
    require_levels(levels, radix, num_workers=1)
    _require_offset(offset, segments)


def steps_of(scales: jax.Array, levels: int) -> jax.Array:
    """What turns g into fixed-point levels: L 2^16 / s, or 0 where the scale is too small to divide by."""
    return jnp.where(scales >= MIN_SCALE, np.float32(levels << noise.BITS) / scales, 0.0)


def _require_offset(offset: int, segments: Segments) -> None:
    multiple = noise.LANES * noise.RUN
    if offset % multiple or not 0 <= offset <= 2**32 - segments.num_elements:
        raise ValueError(
            f"offset={offset}: must be a multiple of {multiple} from which {segments.num_elements} elements end below"
            " 2^32"
        )
