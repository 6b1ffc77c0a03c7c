"""Maximum, mean and variance of every segment of a bucket: what a scale is made of."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .barriers import concatenate
from .dispatch import pick_implementation, require_floating, require_tensors, tuned, why_not_float32
from .moments_reference import (
    Partials,
    centres_of,
    chunk_counts,
    magnitude_bits,
    partials_reference,
    sum_in_any_order,
)
from .native.calls import moments_native
from .rounding import settle, to_12_bits
from .segments import Segments

_FOLD = 256  # chunks


class Moments(NamedTuple):
    """Of every segment; float32[num_scales] each."""

    max_abs: jax.Array
    mean: jax.Array
    variance: jax.Array


def moments(
    gradient: jax.Array | Sequence[jax.Array],
    segments: Segments,
    *,
    of_magnitudes: bool = False,
    implementation: str = "auto",
) -> Moments:
    """max|g|, mean and population variance of every segment.

    The sums run in fixed orders with products that are exact in float32, or as integers, so the result depends on the
    values alone: not on batching, fusion, the implementation, or the number of devices. To make the products exact,
    deviations are rounded to 12 significant bits, which moves the variance by less than 2^-11 of itself.

    Args:
      gradient: float[n], a bucket; float32, bfloat16 or float16. Or its tensors, float32 of any shapes.
      segments: its layout.
      of_magnitudes: whether mean and variance are those of |g|.
      implementation: "auto", "reference", "native" or "mosaic".

    Returns:
      Moments. A segment that holds a NaN or an infinity has a max_abs that is not finite.

    Raises:
      ValueError: if the gradient is not a floating-point vector of the layout's length, or not its tensors.
    """
    is_split = isinstance(gradient, list | tuple)
    if is_split:
        require_tensors(gradient, segments)
    else:
        require_floating(gradient, segments)
    not_native = "" if is_split else why_not_float32("gradient.dtype", gradient.dtype)
    picked = pick_implementation("moments", implementation, segments.num_elements, not_native)
    if picked == "native":
        tensors = gradient if is_split else [gradient]
        return finish(*moments_native(tensors, segments, is_split, of_magnitudes), segments)
    gradient = concatenate(gradient) if is_split else gradient
    gradient = jnp.abs(gradient) if of_magnitudes else gradient
    if picked == "mosaic":
        from .mosaic.moments import partials_mgpu

        partials = partials_mgpu(gradient, segments, tuned("moments"))
    else:
        partials = partials_reference(gradient, segments)
    return finish(partials, centres_of(gradient, segments), segments)


def finish(partials: Partials, centres: jax.Array, segments: Segments) -> Moments:
    """Chunks to segments, a fold of neighbours at a time; few numbers, the large array is not read again.

    A segment's result does not depend on the others: each is folded as often as it needs, and in folds of one size.
    """
    max_abs, first, second = partials
    counts = chunk_counts(segments)
    while np.any(counts > 1):
        before = counts
        table, counts = _fold_table(before)
        is_done = np.repeat(before == 1, counts)
        present = table >= 0
        largest = jnp.max(jnp.where(present, magnitude_bits(max_abs)[table], 0), axis=1)
        max_abs = lax.bitcast_convert_type(largest, jnp.float32)
        first, second = (
            jnp.where(is_done, column[table[:, 0]], sum_in_any_order(jnp.where(present, column[table], 0.0), _FOLD))
            for column in (first, second)
        )
    # a compiler may turn a division by constants into this, or may not
    inverse = np.float32(1) / np.diff(segments.bounds()).astype(np.float32)
    first, second = settle(first * inverse), settle(second * inverse)
    high = to_12_bits(first)
    low = first - high
    variance = second - high * high - 2 * high * low - low * low
    return Moments(max_abs, centres + first, jnp.maximum(variance, 0.0))


def _fold_table(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which neighbours of one segment to fold: their places, int32[folds, up to _FOLD], -1 for none; and the folds."""
    width = min(_FOLD, int(counts.max()))
    folds = -(-counts // width)
    owner = np.repeat(np.arange(counts.size), folds)
    number = np.arange(folds.sum()) - np.repeat(np.cumsum(folds) - folds, folds)
    place = number[:, None] * width + np.arange(width)
    table = np.where(place < counts[owner, None], (np.cumsum(counts) - counts)[owner, None] + place, -1)
    return table.astype(np.int32), folds
