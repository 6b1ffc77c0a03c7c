"""Maximum, mean and variance of every segment of a bucket, from which scales are made."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .barriers import concatenate
from .dispatch import pick_implementation, require_floating, require_tensors, why_not_float32
from .moments_reference import Partials, centres_of, chunk_counts, magnitude_bits, partials_reference, sum_in_any_order
from .native.calls import moments_native
from .rounding import settle, to_12_bits
from .segments import Segments
from .tuning import DEFAULTS

_FOLD = 256  # chunks


class Moments(NamedTuple):
    """Moments of every segment; float32[num_scales] each."""

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
    """Computes max|g|, mean and population variance of every segment.

    The result depends only on the values, not on batching, fusion, the implementation or the number of devices: sums
    have a fixed order and products exact in float32, or are of integers. To make products exact, deviations are rounded
    to 12 significant bits, which changes the variance by less than 2^-11 of itself.

    Args:
      gradient: float[n], a bucket in float32, bfloat16 or float16; or its tensors, float32 of any shapes.
      segments: layout of the bucket.
      of_magnitudes: whether mean and variance are those of |g|.
      implementation: "auto", "reference", "native" or "mosaic".

    Returns:
      Moments. max_abs is not finite for a segment with a NaN or an infinity.

    Raises:
      ValueError: if the gradient does not fit the layout, or has another dtype.
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
    if segments.num_elements > 2**31 - 2**14:  # chunks are counted in int32
        raise ValueError(f"moments: {segments.num_elements} elements: must be below 2^31 where C does not run")
    gradient = concatenate(gradient) if is_split else gradient
    gradient = jnp.abs(gradient) if of_magnitudes else gradient
    if picked == "mosaic":
        from .mosaic.moments import partials_mgpu

        partials = partials_mgpu(gradient, segments, DEFAULTS["moments"])
    else:
        partials = partials_reference(gradient, segments)
    bounds = segments.bounds()
    return finish(partials, centres_of(gradient, bounds[:-1], bounds[1:]), segments)


def finish(partials: Partials, centres: jax.Array, segments: Segments) -> Moments:
    """Combines partials into moments: folds neighbouring chunks until each segment has one left."""
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
    # A compiler may or may not turn a division by constants into this product.
    inverse = np.float32(1) / np.diff(segments.bounds()).astype(np.float32)
    first, second = settle(first * inverse), settle(second * inverse)
    high = to_12_bits(first)
    low = first - high
    variance = second - high * high - 2 * high * low - low * low
    return Moments(max_abs, centres + first, jnp.maximum(variance, 0.0))


def _fold_table(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places of the chunks of each fold, int32[folds, up to _FOLD], -1 for none; and the folds of each segment."""
    width = min(_FOLD, int(counts.max()))
    folds = -(-counts // width)
    owner = np.repeat(np.arange(counts.size), folds)
    number = np.arange(folds.sum()) - np.repeat(np.cumsum(folds) - folds, folds)
    place = number[:, None] * width + np.arange(width)
    table = np.where(place < counts[owner, None], (np.cumsum(counts) - counts)[owner, None] + place, -1)
    return table.astype(np.int32), folds
