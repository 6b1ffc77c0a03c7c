"""Decodes the words of one or many workers to the float mean."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import radix as radix_lib
from .barriers import concatenate
from .dispatch import pick_implementation, require_levels, require_shape, require_tensors
from .dither import Dither
from .native.calls import ternary_decode_native
from .radix import RUN
from .rounding import settle
from .segments import Segments, split
from .ternary_encode import noise_planes
from .tuning import DEFAULTS

UNROLLED_ROWS = 8  # the most rows that are added without a loop


def ternary_decode(
    words: jax.Array,
    scales: jax.Array,
    segments: Segments,
    *,
    num_workers: int,
    radix: int = 3,
    levels: int = 1,
    dither: Dither | None = None,
    tile_scales: jax.Array | None = None,
    implementation: str = "auto",
) -> jax.Array:
    """Decodes the mean gradient: s (sum of digits - N L - dither) / (N L).

    A row of `words` holds the words of one worker, or the sum of the words of several (radix 2LN + 1); all rows
    together hold `num_workers` workers. The sum is exact in integers, so the mean has the same bits for any such rows.

    Args:
      words: uint32[rows, segments.num_words(radix)].
      scales: float32[num_scales], with which the workers encoded. A segment decodes to NaN if its scale is not finite.
      segments: layout of the bucket.
      num_workers: N, a multiple of the rows.
      radix: R of the words.
      levels: L.
      dither: the dither in the digits, to be subtracted.
      tile_scales: float32[W / 128], by which each tile's means are multiplied; None: by 1.
      implementation: "auto", "reference", "native" or "mosaic".

    Returns:
      float32[n].

    Raises:
      ValueError: if a shape, dtype, the radix, the levels, the workers or the implementation do not fit.
    """
    numbers = segments.num_elements, num_workers, radix, levels
    zero, units = _prepare(words, scales, segments, *numbers, dither, tile_scales)
    picked = pick_implementation("ternary_decode", implementation, max(words.size, segments.num_elements))
    if picked == "native":
        return ternary_decode_native(words, units, segments, zero, radix, dither, tile_scales)[0]
    if picked == "mosaic":
        from .mosaic.ternary_decode import ternary_decode_mgpu

        arguments = words, units, segments, zero, radix, dither, tile_scales
        return ternary_decode_mgpu(*arguments, DEFAULTS["ternary_decode"])
    digits = _sum_levels(words, radix, zero, dither)[: segments.num_elements]
    return _scale(digits, units, segments, tile_scales, radix, 0)


def decode_span(
    words: jax.Array,
    scales: jax.Array,
    segments: Segments,
    into: Sequence[jax.Array],
    *,
    start: int,
    size: int,
    num_workers: int,
    radix: int = 3,
    levels: int = 1,
    dither: Dither | None = None,
    tile_scales: jax.Array | None = None,
    total: jax.Array | None = None,
    after: Sequence[jax.Array] = (),
    implementation: str = "auto",
) -> list[jax.Array]:
    """`ternary_decode` into a span of the elements of a bucket whose tensors are separate arrays.

    Args:
      words: uint32[rows, W] of the span, as from `encode_span`.
      scales: float32[num_scales], of all tensors.
      segments, start, size, after, implementation: as in `encode_span`.
      into: the tensors, float32 of any shapes, in row-major order. They are not copied if nothing else needs them.
      num_workers, radix, levels, dither, tile_scales: as in `ternary_decode`; the first tile begins with the span.
      total: uint32[1, W]; then `words` has one row, and a second one is total - words modulo 2^32.

    Returns:
      The tensors with the mean in place of the span's elements.

    Raises:
      ValueError: if a shape, dtype, the span, the radix, the levels, the workers or the implementation do not fit.
    """
    require_tensors(into, segments, start, size)
    numbers = size, num_workers, radix, levels
    zero, units = _prepare(words, scales, segments, *numbers, dither, tile_scales, total)
    if pick_implementation("ternary_decode", implementation, size) == "native":
        options = into, (start, size), total, after
        return ternary_decode_native(words, units, segments, zero, radix, dither, tile_scales, *options)
    words = words if total is None else jnp.concatenate([words, total - words])
    digits = _sum_levels(words, radix, zero, dither)[:size]
    flat = concatenate(into).at[start : start + size].set(_scale(digits, units, segments, tile_scales, radix, start))
    return [part.reshape(own.shape) for part, own in zip(split(flat, segments.sizes), into, strict=True)]


def _prepare(
    words: jax.Array,
    scales: jax.Array,
    segments: Segments,
    size: int,
    num_workers: int,
    radix: int,
    levels: int,
    dither: Dither | None,
    tile_scales: jax.Array | None,
    total: jax.Array | None = None,
) -> tuple[int, jax.Array]:
    """Checks the arguments that both functions share; returns the sum of zero levels, and the value of a digit."""
    require_levels(levels, radix, num_workers=1)
    rows = 2 if total is not None else words.shape[0] if words.ndim == 2 else 0
    if rows < 1 or num_workers % rows:
        raise ValueError(f"words.shape={words.shape}: must be [rows, words], rows dividing num_workers={num_workers}")
    require_levels(levels, radix, num_workers // rows)
    width = radix_lib.num_words(size, radix)
    require_shape("words", words, (rows if total is None else 1, width), jnp.uint32)
    if total is not None:
        require_shape("total", total, (1, width), jnp.uint32)
    require_shape("scales", scales, (segments.num_scales,), jnp.float32)
    if dither and dither.count != num_workers:
        raise ValueError(f"dither.count={dither.count}: must be num_workers={num_workers}")
    if tile_scales is not None:
        require_shape("tile_scales", tile_scales, (width // RUN,), jnp.float32)
    return num_workers * levels, units_of(scales, levels * num_workers)


def units_of(scales: jax.Array, num_levels: int) -> jax.Array:
    """The value of a digit, s (1 / (N L)); NaN where s is not finite. XLA divides in this way unless it knows s."""
    return jnp.where(jnp.isfinite(scales), scales, jnp.nan) * (np.float32(1) / np.float32(num_levels))


def _scale(
    digits: jax.Array, units: jax.Array, segments: Segments, tile_scales: jax.Array | None, radix: int, start: int
) -> jax.Array:
    """Multiplies the digits of a span of the bucket, from `start` on, by their units and tile scales."""
    end, tile = start + digits.size, radix_lib.digits_per_word(radix) * RUN

    def spread(own: jax.Array) -> jax.Array:
        if own.size == segments.num_elements:
            return segments.spread(own, units)
        whole = jnp.zeros((segments.num_elements,), jnp.float32).at[start:end].set(own)
        return segments.spread(whole, units)[start:end]

    if tile_scales is None:
        return settle(spread(digits))
    return settle(digits * spread(jnp.repeat(tile_scales, tile)[: digits.size]))


def _sum_levels(words: jax.Array, radix: int, zero: int, dither: Dither | None) -> jax.Array:
    """float32, flat: the sum of the rows' digits less `zero`, and less the dither."""
    total = sum_digits(words, radix, zero)
    if dither is not None:
        drawn = noise_planes(dither.bits, *total.shape[:1], 0, total.shape[1], dither.offset)
        total = total - dither.of(jnp.stack(drawn, axis=1))
    return total.reshape(-1)


def sum_digits(words: jax.Array, radix: int, zero: int) -> jax.Array:
    """Sums the digits of uint32[rows, W], less `zero`: float32[tiles, D, RUN], exact below 2^24."""

    def add_row(row: int | jax.Array, total: jax.Array) -> jax.Array:
        return total + radix_lib.unpack_planes(lax.dynamic_index_in_dim(words, row, keepdims=False), radix)

    words = words.reshape(words.shape[0], -1, RUN)
    rows, tiles, _ = words.shape
    total = jnp.full((tiles, radix_lib.digits_per_word(radix), RUN), -float(zero), jnp.float32)
    unrolled = rows if rows <= UNROLLED_ROWS else 1  # one, so that the loop's carry varies over axes as the words do
    for row in range(unrolled):
        total = add_row(row, total)
    return lax.fori_loop(unrolled, rows, add_row, total) if unrolled < rows else total
