"""Encodes gradients to radix words, given scales and a key."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import dither, noise, radix as radix_lib
from .barriers import concatenate
from .dispatch import (
    pick_implementation,
    require_floating,
    require_levels,
    require_shape,
    require_tensors,
    why_not_float32,
)
from .native.calls import ternary_encode_native
from .radix import RUN
from .rounding import to_digits
from .segments import Segments
from .tuning import DEFAULTS

MIN_SCALE = 2.0**-100


def ternary_encode(
    gradient: jax.Array,
    scales: jax.Array,
    key: jax.Array,
    segments: Segments,
    *,
    radix: int = 3,
    levels: int = 1,
    offset: int | jax.Array = 0,
    implementation: str = "auto",
) -> jax.Array:
    """Clips to the scale, rounds stochastically to levels, packs the digits.

    The digit is floor(clip(g/s, -1, 1) L + L + u) with u uniform in [0, 1); less L, it is a level q in [-L, L] with
    E[q] = L clip(g/s, -1, 1). With L = 1 this is TernGrad's ternarize (Wen et al. 2017, eq. 2-4): P(q != 0) = |g|/s.
    u has 16 random bits and g/s L is rounded to 16 binary places, so the bias is at most 2^-17 of the scale. A scale
    below 2^-100 makes every level zero. For a scale that is not finite the digits are valid but meaningless, and
    `ternary_decode` returns NaN.

    Args:
      gradient: float[n], a bucket; float32, bfloat16 or float16.
      scales: float32[num_scales], shared by all workers.
      key: uint32[2], from `derive_key`; or uint32[4], for bits other than 16 random ones (see dither.py).
      segments: layout of the bucket.
      radix: R of the words, at least 2L + 1; 2LN + 1 if the words of N workers will be added.
      levels: L, 1 to 32767.
      offset: position of the bucket's first element in the stream of noise, a multiple of 512; an int, or a uint32
        scalar, which is not checked.
      implementation: "auto", "reference", "native" (float32 only) or "mosaic".

    Returns:
      uint32[segments.num_words(radix)].

    Raises:
      ValueError: if a shape, dtype, the radix, the levels or the implementation do not fit.
    """
    require_floating(gradient, segments)
    steps, key = _prepare(scales, key, segments, gradient.size, radix, levels, offset)
    arguments = steps, key, segments, radix, levels, offset
    not_native = why_not_float32("gradient.dtype", gradient.dtype)
    picked = pick_implementation("ternary_encode", implementation, gradient.size, not_native)
    if picked == "native":
        return ternary_encode_native([gradient], *arguments)[0]
    if picked == "mosaic":
        from .mosaic.ternary_encode import ternary_encode_mgpu

        return ternary_encode_mgpu(gradient, *arguments, DEFAULTS["ternary_encode"])
    return _reference(gradient, *arguments)


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
    """`ternary_encode` of a span of the elements of a bucket whose tensors are separate arrays.

    The returned tensors let the next span be encoded from them, or a mean be decoded into them, without a copy.

    Args:
      tensors: float32 of any shapes, in row-major order.
      scales: float32[num_scales], of all tensors.
      key, radix, levels: as in `ternary_encode`.
      segments: layout of all tensors.
      start, size: the first element of the span, and the number of its elements.
      offset: position of the span's first element in the stream of noise, a multiple of 512.
      after: arrays to be computed first; only "native" waits for them.
      implementation: "auto", "reference" or "native"; on GPUs XLA's code is used.

    Returns:
      uint32 words of the span, as if it were a bucket of its own; and the tensors, with unchanged values.

    Raises:
      ValueError: if a shape, dtype, the span, the radix, the levels or the implementation do not fit.
    """
    require_tensors(tensors, segments, start, size)
    steps, key = _prepare(scales, key, segments, size, radix, levels, offset)
    if pick_implementation("ternary_encode", implementation, size) == "native":
        options = segments, radix, levels, offset, (start, size), after
        words, *tensors = ternary_encode_native(tensors, steps, key, *options)
        return words, tensors
    scaled = segments.spread(concatenate(tensors), steps)[start : start + size]
    return _reference(scaled, jnp.ones((1,), jnp.float32), key, Segments((size,)), radix, levels, offset), list(tensors)


def _prepare(
    scales: jax.Array, key: jax.Array, segments: Segments, size: int, radix: int, levels: int, offset: Any
) -> tuple[jax.Array, jax.Array]:
    """Checks the arguments that both functions share; returns the steps and the complete key."""
    require_shape("scales", scales, (segments.num_scales,), jnp.float32)
    require_levels(levels, radix, num_workers=1)
    multiple = noise.LANES * RUN
    if isinstance(offset, int) and (offset % multiple or not 0 <= offset <= 2**32 - size):
        raise ValueError(f"offset={offset}: must be a multiple of {multiple} from which {size} elements end below 2^32")
    return steps_of(scales, levels), dither.complete(key)


def steps_of(scales: jax.Array, levels: int) -> jax.Array:
    """The factor that turns g into fixed-point levels: L 2^16 / s, or 0 if the scale is too small."""
    return jnp.where(scales >= MIN_SCALE, np.float32(levels << noise.BITS) / scales, 0.0)


def _reference(
    gradient: jax.Array, steps: jax.Array, key: jax.Array, segments: Segments, radix: int, levels: int, offset: Any
) -> jax.Array:
    """Encodes in plain jnp: all tiles but the last one or two in a loop that reads the gradient in place."""
    one_step = steps[0] if segments.num_scales == 1 else None  # a common factor fuses into the loop
    vector = gradient if one_step is not None else segments.spread(gradient.astype(jnp.float32), steps)
    depth = radix_lib.digits_per_word(radix)
    tile = depth * RUN

    def encode(vector: jax.Array, tiles: int, first_tile: int) -> jax.Array:
        def plane(k: int) -> jax.Array:
            run = vector[k * RUN : k * RUN + tiles * tile].reshape(tiles, tile)[:, :RUN].astype(jnp.float32)
            return run if one_step is None else run * one_step

        drawn = noise_planes(key, tiles, first_tile, depth, offset)
        planes = [to_digits(plane(k), dither.shifted(drawn[k], key[2], key[3]), levels) for k in range(depth)]
        return radix_lib.pack_planes(planes, radix).reshape(-1)

    tiles = segments.num_words(radix) // RUN
    in_place = max(vector.size - tile + RUN, 0) // tile  # the slice of the last plane must end within the gradient
    words = [encode(vector, in_place, 0)] if in_place else []
    if tiles > in_place:
        rest = vector[in_place * tile :]
        rest = jnp.pad(rest, (0, (tiles - in_place + 1) * tile - rest.size))
        words.append(encode(rest, tiles - in_place, in_place))
    return jnp.concatenate(words) if words else jnp.zeros((0,), jnp.uint32)


def noise_planes(key: jax.Array, tiles: int, first_tile: int, depth: int, offset: Any) -> list[jax.Array]:
    """The random bits of every plane of consecutive tiles, uint32[tiles, RUN] each; tiles may begin within a group."""
    first_run = (lax.broadcasted_iota(jnp.uint32, (tiles, 1), 0) + jnp.uint32(first_tile)) * jnp.uint32(depth)
    place = lax.broadcasted_iota(jnp.uint32, (1, RUN), 1) + jnp.uint32(offset // noise.LANES)
    first_group = first_run // noise.LANES * RUN + place
    if depth % noise.LANES == 0:
        halves = [noise.draw(key, first_group + jnp.uint32(i * RUN)) for i in range(depth // noise.LANES)]
        return [noise.take(halves[k // noise.LANES], k % noise.LANES) for k in range(depth)]
    skipped = first_run % noise.LANES
    groups = (depth + 2 * noise.LANES - 2) // noise.LANES
    halves = [noise.draw(key, first_group + jnp.uint32(i * RUN)) for i in range(groups)]

    def bits(k: int) -> jax.Array:
        i, lane = divmod(k, noise.LANES)
        lane = skipped + lane
        this, following = halves[i], halves[min(i + 1, groups - 1)]
        pair = [jnp.where(lane < noise.LANES, a, b) for a, b in zip(this, following, strict=True)]
        return noise.take((pair[0], pair[1]), lane % noise.LANES)

    return [bits(k) for k in range(depth)]
