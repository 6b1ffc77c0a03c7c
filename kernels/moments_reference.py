"""Moments in plain jnp.

A segment is cut into chunks, which a block of GPU threads sums, and a chunk into runs of `RUN` elements. The runs of a
chunk are added place by place in a fixed order. Then the places of a run, and the chunks of a segment, are added as
integers, which give the same sum in any order. So the result depends only on the values.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .radix import RUN
from .rounding import settle, to_12_bits
from .segments import Segments, fill_up

FAN_IN = 16  # runs of a group, added in halves; groups are added in sequence, even and odd ones apart
CHUNK = 128 * RUN

_LENGTHS = np.array([2 * RUN, 8 * RUN, 32 * RUN, CHUNK - 1, CHUNK])  # elements; shorter chunks are filled up to them

Partials = tuple[jax.Array, jax.Array, jax.Array]


def partials_reference(gradient: jax.Array, segments: Segments) -> Partials:
    """max|g|, and sum and sum of squares of the deviations, of every chunk; float32[num_chunks] each.

    Deviations are from the median of the segment's first, middle and last elements. This keeps the one-pass variance
    accurate for a large mean, even if one of the three is an outlier. Chunks of about equal length share a program, as
    programs are slow to compile.
    """
    tables = chunk_tables(segments)
    if not tables[0].size:
        return (jnp.zeros((0,), jnp.float32),) * 3
    gradient = fill_up(gradient, RUN) if gradient.size < RUN else gradient
    kinds = np.searchsorted(_LENGTHS, np.minimum(tables[1] - tables[2], CHUNK))
    order = np.argsort(kinds, kind="stable")
    starts, ends, firsts = (table[order] for table in tables)
    centres = centres_of(gradient, starts, ends)
    parts = []
    for kind in np.unique(kinds):
        own = slice(*np.searchsorted(kinds[order], [kind, kind + 1]))
        width = -(-int(_LENGTHS[kind]) // RUN)
        parts.append(_add_runs(*_read(gradient, firsts[own], ends[own], width), centres[own, None, None]))
    back = np.argsort(order)
    largest, first, second = (jnp.concatenate(column)[back] for column in zip(*parts, strict=True))
    largest = jnp.maximum(jnp.max(largest, axis=1), magnitude_bits(centres)[back])
    return lax.bitcast_convert_type(largest, jnp.float32), sum_in_any_order(first), sum_in_any_order(second)


def chunk_tables(segments: Segments) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Start and end of every chunk's segment, and start of the chunk; int32[num_chunks] each."""
    bounds, counts = segments.bounds(), chunk_counts(segments)
    owner = np.repeat(np.arange(counts.size), counts)
    number = np.arange(owner.size) - np.repeat(np.cumsum(counts) - counts, counts)
    return tuple(table.astype(np.int32) for table in (bounds[owner], bounds[owner + 1], bounds[owner] + number * CHUNK))


def chunk_counts(segments: Segments) -> np.ndarray:
    """int64[num_scales]: the number of chunks of every segment."""
    return -(-np.diff(segments.bounds()) // CHUNK)


def centres_of(gradient: jax.Array, starts: np.ndarray, ends: np.ndarray) -> jax.Array:
    """float32: the centre of each segment with these bounds, from which its deviations are measured."""
    places = starts, middle_place(starts, ends - 1), ends - 1
    return middle(*(settle(gradient[place].astype(jnp.float32)) for place in places))


def middle_place(first: int, last: int) -> int:
    """The place of the middle element."""
    return first + (last - first + 1) // 2


def middle(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    """The median of three; any of them if one is not finite."""
    return jnp.maximum(jnp.minimum(a, b), jnp.minimum(jnp.maximum(a, b), c))


def deviation(x: jax.Array, centre: jax.Array) -> jax.Array:
    """x - centre, rounded to 12 bits, so that its square is exact."""
    return to_12_bits(settle(x) - centre)  # settles x, as a product must not be fused with the subtraction


def magnitude_bits(x: jax.Array) -> jax.Array:
    """The bits of |x| as int32, which increase with |x| and are largest for NaN; a maximum of floats may drop a NaN."""
    return lax.bitcast_convert_type(x, jnp.int32) & jnp.int32(0x7FFFFFFF)


def add_runs(runs: list[jax.Array]) -> jax.Array:
    """Adds a power of two of runs, halves onto halves."""
    while len(runs) > 1:
        half = len(runs) // 2
        runs = [a + b for a, b in zip(runs[:half], runs[half:], strict=True)]
    return runs[0]


def _read(gradient: jax.Array, firsts: np.ndarray, ends: np.ndarray, width: int) -> tuple[jax.Array, jax.Array]:
    """Chunks of up to `width` runs as [chunks, width, RUN], and which of these elements are their own.

    A short last run goes to the end of its places.
    """

    def slices(starts: Any, size: int) -> jax.Array:
        return jax.vmap(lambda start: lax.dynamic_slice(gradient, (start,), (size,)))(starts).reshape(-1, width, RUN)

    size = width * RUN
    if np.all(firsts + size <= ends):
        if np.all(np.diff(firsts) == size):  # neighbours
            return gradient[firsts[0] : firsts[-1] + size].reshape(-1, width, RUN), jnp.ones((), bool)
        return slices(firsts, size), jnp.ones((), bool)
    nominal, end = (firsts[:, None] + np.arange(width, dtype=np.int32) * RUN)[..., None], ends[:, None, None]
    begin = np.maximum(np.minimum(nominal, end - RUN), 0)
    place = jnp.arange(RUN)[None, None]
    return slices(begin.reshape(-1), RUN), (place >= nominal - begin) & (place < end - begin)


def _add_runs(x: jax.Array, is_own: jax.Array, centres: jax.Array) -> Partials:
    """Bits of the largest magnitude, and both sums, at every place of a run; [chunks, runs, RUN] to [chunks, RUN].

    It works slice by slice, as the compiler would write out the results of elementwise work on the whole. The barrier
    keeps what is to be compiled at once small.
    """
    groups = x.shape[0], -1, min(FAN_IN, x.shape[1]), RUN
    x, is_own = x.reshape(groups), jnp.broadcast_to(is_own, x.shape).reshape(groups)
    slices = [(x[:, :, i].astype(jnp.float32), is_own[:, :, i]) for i in range(groups[2])]
    bits = [jnp.where(own, magnitude_bits(x), 0) for x, own in slices]
    deviations = [jnp.where(own, deviation(x, centres), 0.0) for x, own in slices]
    sums = functools.reduce(jnp.maximum, bits), add_runs(deviations), add_runs([x * x for x in deviations])
    largest, first, second = lax.optimization_barrier(sums)
    return jnp.max(largest, axis=1), _add_groups(first), _add_groups(second)


def _add_groups(sums: jax.Array) -> jax.Array:
    """The sums of even and of odd groups, then of both; [chunks, groups, RUN] to [chunks, RUN]."""
    even, odd = (sum(sums[:, i] for i in range(first, sums.shape[1], 2)) for first in (0, 1))
    return even + odd


def sum_in_any_order(x: jax.Array, count: int | None = None) -> jax.Array:
    """The sum over the last axis, with the same bits in any order: adds multiples of a fraction of the largest value.

    For m values the error is at most m^2 2^-30 of the largest, 2^-16 for the places of a run. `count` stands for m, as
    if zeros were appended.
    """
    count = x.shape[-1] if count is None else count
    largest = jnp.max(magnitude_bits(x), axis=-1)
    return from_multiples(largest, jnp.sum(as_multiples(x, largest[..., None], count), axis=-1), count)


def as_multiples(x: jax.Array, largest: jax.Array, count: int) -> jax.Array:
    """x as int32 multiples of the unit; `largest`, the bits of the largest magnitude, broadcasts to x."""
    inverse = lax.bitcast_convert_type((254 - _exponent(largest, count)) << 23, jnp.float32)
    return jnp.round(x * inverse).astype(jnp.int32)


def from_multiples(largest: jax.Array, total: jax.Array, count: int) -> jax.Array:
    """The value of a sum of multiples; the largest value itself if that is an infinity or a NaN."""
    unit = lax.bitcast_convert_type(_exponent(largest, count) << 23, jnp.float32)
    is_finite = largest < jnp.int32(0x7F800000)
    return jnp.where(is_finite, total.astype(jnp.float32) * unit, lax.bitcast_convert_type(largest, jnp.float32))


def _exponent(largest: jax.Array, count: int) -> jax.Array:
    """The exponent field of the unit in which `count` values up to the largest sum to at most 2^30."""
    bits = 30 - (count - 1).bit_length()
    return jnp.maximum((largest >> 23) + jnp.int32(1 - bits), 1)
