"""Moments in plain jnp."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .rounding import settle, to_12_bits
from .segments import Segments, split

_FAN_IN = 16  # slices that one loop adds; more only lengthens compilation
_LOOP_WIDTH = 2**14  # wider sums are folded in loops of _FAN_IN slices, the rest in halves


def moments_reference(gradient: jax.Array, segments: Segments) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`moments` of a float32 bucket: max_abs, mean, variance."""
    parts = [_block_moments(tensor, segments) for tensor in split(gradient, segments.sizes) if tensor.size]
    if not parts:
        empty = jnp.zeros((0,), jnp.float32)
        return empty, empty, empty
    max_abs, mean, variance = (jnp.concatenate(column) for column in zip(*parts, strict=True))
    return max_abs, mean, variance


def _block_moments(tensor: jax.Array, segments: Segments) -> tuple[jax.Array, jax.Array, jax.Array]:
    """max_abs, mean and variance of each block of one tensor; float32[rows] each.

    Deviations are from the middle one of each block's first, middle and last elements, so that the one-pass variance is
    sound where the mean is large, also if one of the three lies far from the rest.
    """
    raw, tensor = tensor, settle(tensor)  # it may be a product, which a subtraction must not be fused with
    width = segments.block_size or tensor.size
    rows = -(-tensor.size // width)
    missing = rows * width - tensor.size
    counts = np.full((rows,), width)
    counts[-1] -= missing
    first_places = np.arange(rows) * width
    centres = _middle(*(tensor[first_places + place] for place in (0 * counts, counts // 2, counts - 1)))
    # A short last block is filled up with its own centre, whose deviation is zero.
    blocks = jnp.concatenate([tensor, jnp.broadcast_to(centres[-1], (missing,))]).reshape(rows, width)
    count = counts.astype(np.float32)

    centre = centres[:, None]
    pieces = _slices(blocks) if width > _LOOP_WIDTH else [blocks]
    deviations = [to_12_bits(piece - centre) for piece in pieces]
    first = settle(_sum_in_fixed_order(deviations) / count)
    second = settle(_sum_in_fixed_order([deviation * deviation for deviation in deviations]) / count)
    high = to_12_bits(first)
    low = first - high
    variance = second - high * high - 2 * high * low - low * low
    return _max_abs(raw, missing, rows), centres + first, jnp.maximum(variance, 0.0)


def _max_abs(tensor: jax.Array, missing: int, rows: int) -> jax.Array:
    """max|x| of every block through its bits, which rise with the value, NaN on top: XLA's max may drop a NaN."""
    bits = lax.bitcast_convert_type(tensor, jnp.int32) & jnp.int32(0x7FFFFFFF)
    largest = jnp.max(jnp.pad(bits, (0, missing)).reshape(rows, -1), axis=1)
    return lax.bitcast_convert_type(largest, jnp.float32)


def _middle(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    return jnp.maximum(jnp.minimum(a, b), jnp.minimum(jnp.maximum(a, b), c))


def _slices(x: jax.Array) -> list[jax.Array]:
    """The last axis in _FAN_IN slices of equal width; the last ones are shorter, or empty."""
    width = -(-x.shape[-1] // _FAN_IN)
    return [x[..., i * width : (i + 1) * width] for i in range(_FAN_IN)]


def _sum_in_fixed_order(parts: list[jax.Array]) -> jax.Array:
    """The sum over the last axes of all parts, in an order that depends on their lengths alone."""
    x = _fold(parts)
    while x.shape[-1] > _LOOP_WIDTH:
        x = _fold(_slices(x))
    x = _fill(x, 1 << (x.shape[-1] - 1).bit_length())
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return x[..., 0]


def _fold(parts: list[jax.Array]) -> jax.Array:
    """Adds a power of two of arrays, halves onto halves, as wide as the first."""
    parts = [_fill(part, parts[0].shape[-1]) for part in parts]
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [a + b for a, b in zip(parts[:half], parts[half:], strict=True)]
    return parts[0]


def _fill(x: jax.Array, width: int) -> jax.Array:
    """Zeros behind the last axis, up to `width`."""
    return x if x.shape[-1] == width else jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])])
