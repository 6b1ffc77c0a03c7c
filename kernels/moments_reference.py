"""Moments in plain jnp.

A segment is cut into chunks, which a block of GPU threads sums, and a chunk into runs of `RUN` elements. The runs of a
chunk are added place by place in a fixed order. Then the places of a run, and the chunks of a segment, are added as
integers, which give the same sum in any order. So the result depends only on the values.
"""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .radix import RUN
from .rounding import settle, to_12_bits
from .segments import Segments, split

FAN_IN = 16  # runs of a group, added in halves; groups are added in sequence, even and odd ones apart
CHUNK_RUNS = 128
CHUNK = CHUNK_RUNS * RUN

_LARGE = 2**20  # elements from which a tensor is read in place

Partials = tuple[jax.Array, jax.Array, jax.Array]


def partials_reference(gradient: jax.Array, segments: Segments) -> Partials:
    """max|g|, and sum and sum of squares of the deviations, of every chunk; float32[num_chunks] each.

    Deviations are from the median of the segment's first, middle and last elements. This keeps the one-pass variance
    accurate for a large mean, even if one of the three is an outlier.
    """
    tensors = [tensor for tensor in split(gradient, segments.sizes) if tensor.size]
    if not tensors:
        return (jnp.zeros((0,), jnp.float32),) * 3
    is_small = [segments.block_size is None and tensor.size < _LARGE for tensor in tensors]
    counts = [int(chunk_counts(Segments((tensor.size,), segments.block_size)).sum()) for tensor in tensors]
    firsts = np.cumsum(counts) - counts
    parts, numbers = _small_tensors([(t, first) for t, first, s in zip(tensors, firsts, is_small, strict=True) if s])
    for tensor, first, count, small in zip(tensors, firsts, counts, is_small, strict=True):
        if not small:
            parts += _tensor(tensor, segments)
            numbers += range(first, first + count)
    in_order = np.argsort(np.asarray(numbers))
    return tuple(jnp.concatenate(column)[in_order] for column in zip(*parts, strict=True))


def chunk_counts(segments: Segments) -> np.ndarray:
    """int64[num_scales]: the number of chunks of every segment."""
    return -(-np.diff(segments.bounds()) // CHUNK)


def centres_of(gradient: jax.Array, segments: Segments) -> jax.Array:
    """float32[num_scales]: the centre of each segment, from which its deviations are measured."""
    bounds = segments.bounds()
    first, last = bounds[:-1], bounds[1:] - 1
    return middle(*(settle(gradient[place].astype(jnp.float32)) for place in (first, middle_place(first, last), last)))


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


def _small_tensors(tensors: list[tuple[jax.Array, int]]) -> tuple[list[Partials], list[int]]:
    """Partials of small tensors and their chunks' numbers; chunks of about equal length share one program."""
    rows: dict[int, list[tuple[int, jax.Array, jax.Array]]] = {}  # number, runs and centre of chunks, by length
    for tensor, first in tensors:
        centre = centres_of(tensor, Segments((tensor.size,)))[0]
        for i, start in enumerate(range(0, tensor.size, CHUNK)):
            chunk = tensor[start : start + CHUNK]
            runs = 1 << (-(-chunk.size // RUN) - 1).bit_length()
            rows.setdefault(runs, []).append((first + i, _fill(chunk, centre, runs), centre))
    parts, numbers = [], []
    for members in rows.values():
        own, chunks, centres = zip(*members, strict=True)
        centre = jnp.stack(centres)[:, None]
        parts.append(_chunks(_as_slices(jnp.stack(chunks)[:, None], centre), centre))
        numbers += own
    return [tuple(column.reshape(-1) for column in part) for part in parts], numbers


def _tensor(tensor: jax.Array, segments: Segments) -> list[Partials]:
    """Partials of one tensor's chunks, in order."""
    own = Segments((tensor.size,), segments.block_size)
    centres = centres_of(tensor, own)
    width = segments.block_size or tensor.size
    if width >= tensor.size:
        return _segment(tensor, centres)
    blocks = tensor.size // width
    parts = [_blocks(tensor[: blocks * width].reshape(blocks, width), centres[:blocks])]
    if blocks * width < tensor.size:
        parts += _segment(tensor[blocks * width :], centres[blocks:])
    return parts


def _segment(segment: jax.Array, centre: jax.Array) -> list[Partials]:
    """Partials of one segment's chunks; all but the last one or two are read in place, by slices of the segment."""
    group = FAN_IN * RUN
    chunks = max(segment.size - group + RUN, 0) // CHUNK
    parts = []
    if chunks:
        slices = [segment[i : i + chunks * CHUNK].reshape(-1, group)[:, :RUN] for i in range(0, group, RUN)]
        columns = _chunks([x.reshape(1, chunks, -1, RUN) for x in slices], centre[:, None])
        parts.append(tuple(column.reshape(-1) for column in columns))
    if chunks * CHUNK < segment.size:
        parts.append(_blocks(segment[None, chunks * CHUNK :], centre))
    return parts


def _blocks(blocks: jax.Array, centres: jax.Array) -> Partials:
    """Partials of the chunks of float[rows, width] segments."""
    rows, width = blocks.shape
    whole = width // CHUNK * CHUNK
    cut = [blocks[:, :whole].reshape(rows, -1, CHUNK), blocks[:, None, whole:]]
    centre = centres[:, None]
    parts = [_chunks(_as_slices(chunks, centre), centre) for chunks in cut if chunks.size]
    return tuple(jnp.concatenate(column, axis=1).reshape(-1) for column in zip(*parts, strict=True))


def _as_slices(chunk: jax.Array, centre: jax.Array) -> list[jax.Array]:
    """Cuts [..., m] into up to FAN_IN slices [..., groups, RUN], filled up with centres, whose deviation is zero."""
    runs = -(-chunk.shape[-1] // RUN)
    fan_in = min(FAN_IN, 1 << (runs - 1).bit_length())
    groups = _fill(chunk, centre, -(-runs // fan_in) * fan_in).reshape(*chunk.shape[:-1], -1, fan_in, RUN)
    return [groups[..., i, :] for i in range(fan_in)]


def _fill(chunk: jax.Array, centre: jax.Array, runs: int) -> jax.Array:
    """Fills [..., m] up to [..., runs * RUN] with centres; a short last run goes to the end of its places."""
    size = chunk.shape[-1]
    whole = size // RUN * RUN
    counts = -size % RUN, runs * RUN - size - -size % RUN
    if not any(counts):
        return chunk
    before, behind = (jnp.broadcast_to(centre[..., None].astype(chunk.dtype), (*chunk.shape[:-1], n)) for n in counts)
    return jnp.concatenate([chunk[..., :whole], before, chunk[..., whole:], behind], axis=-1)


def _chunks(slices: list[jax.Array], centre: jax.Array) -> Partials:
    """Partials of chunks, cut into up to FAN_IN slices float[rows, chunks, groups, RUN]; float32[rows, chunks].

    It works slice by slice, as the compiler would write out the results of elementwise work on the whole.
    """
    slices = [x.astype(jnp.float32) for x in slices]
    deviations = [deviation(x, centre[..., None, None]) for x in slices]

    largest = jnp.max(functools.reduce(jnp.maximum, [magnitude_bits(x) for x in slices]), axis=(-2, -1))
    largest = jnp.maximum(largest, magnitude_bits(centre))  # in every chunk, as some are filled up with it
    return lax.bitcast_convert_type(largest, jnp.float32), _total(deviations), _total([x * x for x in deviations])


def _total(slices: list[jax.Array]) -> jax.Array:
    """The sum of each chunk: of the even and of the odd groups, then of both (in any order), then of the places."""
    sums = add_runs(slices)
    if sums.shape[2] == 1:
        return sum_in_any_order(sums[:, :, 0])
    sums = jnp.pad(sums, [(0, 0), (0, 0), (0, sums.shape[2] % 2), (0, 0)])
    even_and_odd = functools.reduce(operator.add, [sums[:, :, i : i + 2] for i in range(0, sums.shape[2], 2)])
    return sum_in_any_order(lax.reduce(even_and_odd, np.float32(0), lax.add, (2,)))


def sum_in_any_order(x: jax.Array, count: int | None = None) -> jax.Array:
    """The sum over the last axis, with the same bits in any order: adds multiples of a fraction of the largest value.

    For m values the error is at most m^2 2^-30 of the largest, 2^-16 for the places of a run. `count` stands for m, as
    if zeros were appended.
    """
    count = x.shape[-1] if count is None else count
    largest = jnp.max(magnitude_bits(x), axis=-1)
    return as_float(largest, jnp.sum(as_multiples(x, largest[..., None], count), axis=-1), count)


def as_multiples(x: jax.Array, largest: jax.Array, count: int) -> jax.Array:
    """x as int32 multiples of the unit; `largest`, the bits of the largest magnitude, broadcasts to x."""
    inverse = lax.bitcast_convert_type((254 - _exponent(largest, count)) << 23, jnp.float32)
    return jnp.round(x * inverse).astype(jnp.int32)


def as_float(largest: jax.Array, total: jax.Array, count: int) -> jax.Array:
    """The value of a sum of multiples; the largest value itself if that is an infinity or a NaN."""
    unit = lax.bitcast_convert_type(_exponent(largest, count) << 23, jnp.float32)
    is_finite = largest < jnp.int32(0x7F800000)
    return jnp.where(is_finite, total.astype(jnp.float32) * unit, lax.bitcast_convert_type(largest, jnp.float32))


def _exponent(largest: jax.Array, count: int) -> jax.Array:
    """The exponent field of the unit in which `count` values up to the largest sum to at most 2^30."""
    bits = 30 - (count - 1).bit_length()
    return jnp.maximum((largest >> 23) + jnp.int32(1 - bits), 1)
