"""Encode and decode of a span of tensors that lie one behind the other, each in memory of its own.

They are `ternary_encode` and `ternary_decode` without the copies of a bucket: the tensors are read, and replaced by
their mean, where they lie.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from .concatenate import concatenate
from .dispatch import pick_implementation, require_levels, require_shape, require_tensors
from .dither import Dither, complete
from .native.calls import decode_span_native, encode_span_native
from .radix import num_words
from .segments import Segments, split
from .ternary_decode import as_numbers, require_words
from .ternary_decode_reference import sum_levels, worth
from .ternary_encode import require_offset, steps_of
from .ternary_encode_reference import ternary_encode_reference


def encode_span(
    tensors: Sequence[jax.Array],
    scales: jax.Array,
    key: jax.Array,
    segments: Segments,
    *,
    start: int,
    size: int,
    radix: int = 3,
    levels: int = 1,
    offset: int = 0,
    after: Sequence[jax.Array] = (),
    implementation: str = "auto",
) -> tuple[jax.Array, list[jax.Array]]:
    """`ternary_encode` of some elements of a bucket, which hands its tensors on.

    The next span can then be encoded from what is handed on, and a mean decoded into it, one after the other and
    without a copy.

    Args:
      tensors: float32 of any shapes, in row-major order.
      scales: float32[num_scales], of all tensors.
      key: as in `ternary_encode`.
      segments: layout of all tensors.
      start: the first element of the span.
      size: elements of the span.
      radix, levels: as in `ternary_encode`.
      offset: position of the span's first element in the stream of noise, a multiple of 512.
      after: arrays that are to be computed first; "native" keeps to it.
      implementation: "auto", "reference" or "native"; on GPUs XLA's code is used.

    Returns:
      uint32 words of the span, as if it were a bucket of its own; and the tensors, the same values as before.

    Raises:
      ValueError: if a shape, dtype, the span, the radix, the levels or the implementation do not fit.
    """
    require_tensors(tensors, segments, start, size)
    require_shape("scales", scales, (segments.num_scales,), jnp.float32)
    key = complete(key)
    require_levels(levels, radix, num_workers=1)
    require_offset(offset, size)
    steps = steps_of(scales, levels)
    if pick_implementation("ternary_encode", implementation, segments.num_elements) == "native" and size:
        return encode_span_native(tensors, steps, key, segments, radix, levels, offset, start, size, after)
    scaled = segments.spread(concatenate(tensors), steps)
    span = lax.slice(scaled, (start,), (start + size,))
    words = ternary_encode_reference(span, jnp.ones((1,)), key, Segments((size,)), radix, levels, offset)
    return words, list(tensors)


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
    total: jax.Array | None = None,
    after: Sequence[jax.Array] = (),
    implementation: str = "auto",
) -> list[jax.Array]:
    """`ternary_decode` into some elements of a bucket.

    Args:
      words: uint32[rows, W] of the span, as `encode_span` makes them.
      scales: float32[num_scales], of all tensors.
      segments: layout of all tensors.
      into: float32 of any shapes, in row-major order. No copy is made where nobody else needs them: arguments that are
        donated, or what another call returned.
      start: the first element of the span.
      size: elements of the span.
      num_workers, radix, levels, dither: as in `ternary_decode`.
      total: uint32[1, W], the sum modulo 2^32 of the one row of words and of a second one, which then belongs to them.
      after: as in `encode_span`.
      implementation: as in `encode_span`.

    Returns:
      The tensors with the mean in place of the span's elements.

    Raises:
      ValueError: if a shape, dtype, the span, the radix, the levels, the workers or the implementation do not fit.
    """
    require_tensors(into, segments, start, size)
    if total is None:
        require_words(words, Segments((size,)), num_workers, radix, levels)
    else:
        _require_two(words, total, size, num_workers, radix, levels)
    require_shape("scales", scales, (segments.num_scales,), jnp.float32)
    zero, units, dither = as_numbers(scales, num_workers, levels, dither)
    if pick_implementation("ternary_decode", implementation, segments.num_elements) == "native" and size:
        return decode_span_native(words, total, units, segments, into, zero, radix, start, size, after, dither)
    words = words if total is None else jnp.concatenate([words, total - words])
    digits = sum_levels(words, radix, zero, dither)[:size]
    whole = jnp.zeros((segments.num_elements,)).at[start : start + size].set(digits)
    mean = worth(segments, whole, units)
    place = jnp.arange(segments.num_elements)
    flat = jnp.where((place >= start) & (place < start + size), mean, concatenate(into))
    return [part.reshape(own.shape) for part, own in zip(split(flat, segments.sizes), into, strict=True)]


def _require_two(words: jax.Array, total: jax.Array, size: int, num_workers: int, radix: int, levels: int) -> None:
    shape = (1, num_words(size, radix))
    require_shape("words", words, shape, jnp.uint32)
    require_shape("total", total, shape, jnp.uint32)
    if num_workers % 2:
        raise ValueError(f"num_workers={num_workers}: must be even, as a total stands for two rows")
    require_levels(levels, radix, num_workers // 2)
