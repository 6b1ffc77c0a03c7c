"""Moments in plain jnp.

A segment is cut into chunks, a chunk into runs of `RUN` elements; a chunk is what one block of GPU threads sums. Runs
are added place by place in one fixed order, then the places of a run, and later the chunks of a segment, as integers,
which come out the same in any order. So the result depends on the values alone.
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

FAN_IN = 16  # runs that are added in halves; such groups are added one after the other, even and odd ones apart
CHUNK_RUNS = 128
CHUNK = CHUNK_RUNS * RUN

_LARGE = 2**20  # elements of a tensor that is read in place

Partials = tuple[jax.Array, jax.Array, jax.Array]


def partials_reference(gradient: jax.Array, segments: Segments) -> Partials:
    """max|g|, sum and sum of squares of the deviations of every chunk; float32[num_chunks] each.

    Deviations are from the middle one of each segment's first, middle and last elements, so that the one-pass variance
    is sound where the mean is large, also if one of the three lies far from the rest.
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
    """int64[num_scales]: chunks of every segment."""
    return -(-np.diff(segments.bounds()) // CHUNK)


def centres_of(gradient: jax.Array, segments: Segments) -> jax.Array:
    """float32[num_scales]: what each segment's deviations are from."""
    bounds = segments.bounds()
    first, last = bounds[:-1], bounds[1:] - 1
    return middle(*(settle(gradient[place].astype(jnp.float32)) for place in (first, middle_place(first, last), last)))


def middle_place(first: int, last: int) -> int:
    """The place of the middle element."""
    return first + (last - first + 1) // 2


def middle(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    """The middle one of three; not finite values may give any of them."""
    return jnp.maximum(jnp.minimum(a, b), jnp.minimum(jnp.maximum(a, b), c))


def deviation(x: jax.Array, centre: jax.Array) -> jax.Array:
    """x - centre to 12 bits, so that its square is exact."""
    return to_12_bits(settle(x) - centre)  # x may be a product, which a subtraction must not be fused with


def magnitude_bits(x: jax.Array) -> jax.Array:
    """The bits of |x| as int32, which rise with the value, NaN on top: a maximum of floats may drop a NaN."""
    return lax.bitcast_convert_type(x, jnp.int32) & jnp.int32(0x7FFFFFFF)


def add_runs(runs: list[jax.Array]) -> jax.Array:
    """Adds a power of two of runs, halves onto halves."""
    while len(runs) > 1:
        half = len(runs) // 2
        runs = [a + b for a, b in zip(runs[:half], runs[half:], strict=True)]
    return runs[0]


def _small_tensors(tensors: list[tuple[jax.Array, int]]) -> tuple[list[Partials], list[int]]:
    """Partials of tensors, given with the number of their first chunk, and the numbers of the chunks, in any order.

    All chunks of about one length go through one program: there may be hundreds of tensors.
    """
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
    """Partials of one segment's chunks; all but the last one or two are read in place, through slices of the whole."""
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
    """[..., m] to up to FAN_IN slices [..., groups, RUN]; what is missing is filled with centres, which add nothing."""
    runs = -(-chunk.shape[-1] // RUN)
    fan_in = min(FAN_IN, 1 << (runs - 1).bit_length())
    groups = _fill(chunk, centre, -(-runs // fan_in) * fan_in).reshape(*chunk.shape[:-1], -1, fan_in, RUN)
    return [groups[..., i, :] for i in range(fan_in)]


def _fill(chunk: jax.Array, centre: jax.Array, runs: int) -> jax.Array:
    """[..., m] to [..., runs * RUN] with centres; a short last run lies at the end of its places."""
    size = chunk.shape[-1]
    whole = size // RUN * RUN
    counts = -size % RUN, runs * RUN - size - -size % RUN
    if not any(counts):
        return chunk
    before, behind = (jnp.broadcast_to(centre[..., None].astype(chunk.dtype), (*chunk.shape[:-1], n)) for n in counts)
    return jnp.concatenate([chunk[..., :whole], before, chunk[..., whole:], behind], axis=-1)


def _chunks(slices: list[jax.Array], centre: jax.Array) -> Partials:
    """Partials of chunks, cut into up to FAN_IN slices float[rows, chunks, groups, RUN]; float32[rows, chunks].

    What is done to an element is done slice by slice: done to the whole, the compiler would write the whole out.
    """
    slices = [x.astype(jnp.float32) for x in slices]
    deviations = [deviation(x, centre[..., None, None]) for x in slices]

    largest = jnp.max(functools.reduce(jnp.maximum, [magnitude_bits(x) for x in slices]), axis=(-2, -1))
    largest = jnp.maximum(largest, magnitude_bits(centre))  # it may fill places here, though its own lies elsewhere
    return lax.bitcast_convert_type(largest, jnp.float32), _total(deviations), _total([x * x for x in deviations])


def _total(slices: list[jax.Array]) -> jax.Array:
    """The sum of each chunk: of the even groups and of the odd ones, then of the two, then of the places.

    A sum of two has one order only, so it may be XLA's; and what XLA reduces it computes once, though it is read twice.
    """
    sums = add_runs(slices)
    if sums.shape[2] == 1:
        return sum_in_any_order(sums[:, :, 0])
    sums = jnp.pad(sums, [(0, 0), (0, 0), (0, sums.shape[2] % 2), (0, 0)])
    even_and_odd = functools.reduce(operator.add, [sums[:, :, i : i + 2] for i in range(0, sums.shape[2], 2)])
    return sum_in_any_order(lax.reduce(even_and_odd, np.float32(0), lax.add, (2,)))


def sum_in_any_order(x: jax.Array, count: int | None = None) -> jax.Array:
    """The sum over the last axis, the same bits in any order: of whole multiples of a small part of the largest value.

    Of m values it is off by at most m^2 2^-30 of the largest: by 2^-16 for the places of a run. With `count`, as if
    there were so many values, the rest of them zero.
    """
    count = x.shape[-1] if count is None else count
    largest = jnp.max(magnitude_bits(x), axis=-1)
    return as_float(largest, jnp.sum(as_multiples(x, largest[..., None], count), axis=-1), count)


def as_multiples(x: jax.Array, largest: jax.Array, count: int) -> jax.Array:
    """int32 multiples of the unit; `largest` are the bits of the largest magnitude, which broadcast to x."""
    inverse = lax.bitcast_convert_type((254 - _exponent(largest, count)) << 23, jnp.float32)
    return jnp.round(x * inverse).astype(jnp.int32)


def as_float(largest: jax.Array, total: jax.Array, count: int) -> jax.Array:
    """What a sum of multiples stands for; the largest value itself where that is an infinity or a NaN."""
    unit = lax.bitcast_convert_type(_exponent(largest, count) << 23, jnp.float32)
    is_finite = largest < jnp.int32(0x7F800000)
    return jnp.where(is_finite, total.astype(jnp.float32) * unit, lax.bitcast_convert_type(largest, jnp.float32))


def _exponent(largest: jax.Array, count: int) -> jax.Array:
    """The exponent field of a unit of which `count` values up to the largest come to at most 2^30."""
    bits = 30 - (count - 1).bit_length()
    return jnp.maximum((largest >> 23) + jnp.int32(1 - bits), 1)
