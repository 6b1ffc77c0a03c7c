"""Partial moments of chunks as one Mosaic GPU kernel, which reads every element once.

An item is one chunk of one segment. Runs are aligned to the segment's start. A short last run is read so that it ends
with the segment; the elements that it then shares with the run before are masked.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..moments_reference import (
    CHUNK,
    FAN_IN,
    Partials,
    add_runs,
    as_multiples,
    chunk_tables,
    deviation,
    from_multiples,
    magnitude_bits,
    middle,
    middle_place,
)
from ..radix import RUN
from ..rounding import settle
from ..segments import Segments
from . import mgpu


def partials_mgpu(gradient: jax.Array, segments: Segments, warpgroups: int, interpret: Any = None) -> Partials:
    """As `partials_reference`."""
    tables = chunk_tables(segments)
    elements, rows = mgpu.rooms(segments, tables[0].size)
    filler = 0, 1, 0  # beyond the last chunk, segments of one element, whose moments are dropped
    filled = [mgpu.fill(table, rows, value) for table, value in zip(tables, filler, strict=True)]
    operands, outputs = [mgpu.fill(gradient, elements), *filled], (((rows,), np.int32),) * 5
    found = mgpu.launch(_moments, (), operands, outputs, rows, warpgroups, interpret)
    max_abs, *sums = (each[: tables[0].size] for each in found)
    first, second = (from_multiples(largest, total, RUN) for largest, total in zip(sums[::2], sums[1::2], strict=True))
    return lax.bitcast_convert_type(max_abs, jnp.float32), first, second


def _moments(chunk, gradient, starts, ends, firsts, max_abs, *sums_out) -> None:
    start, end, first = starts[chunk], ends[chunk], firsts[chunk]
    last = end - 1
    three = [gradient[place].astype(jnp.float32) for place in (start, middle_place(start, last), last)]
    centre = middle(*(settle(mgpu.filled(x, jnp.float32)) for x in three))
    elements = jnp.minimum(end - first, CHUNK)

    def run_values(run: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Bits of the magnitudes, and deviations; zero outside the segment."""
        nominal = first + run * RUN
        begin = jnp.maximum(jnp.minimum(nominal, end - RUN), 0)
        x = mgpu.load(gradient, begin).astype(jnp.float32)
        place = mgpu.places(jnp.int32) + begin
        is_own = (place >= nominal) & (place < end)
        return jnp.where(is_own, magnitude_bits(x), 0), jnp.where(is_own, deviation(x, centre), 0.0)

    def add(carry: tuple, bits: list[jax.Array], deviations: list[jax.Array]) -> tuple:
        largest, (sums, other_sums), (squares, other_squares) = carry
        largest = functools.reduce(jnp.maximum, bits, largest)
        sums, squares = sums + add_runs(deviations), squares + add_runs([x * x for x in deviations])
        return largest, (other_sums, sums), (other_squares, squares)  # even and odd groups alternate

    def add_whole_group(group: jax.Array, carry: tuple) -> tuple:
        runs = mgpu.window(gradient, first + group * (FAN_IN * RUN), FAN_IN)
        xs = [mgpu.load(runs, i * RUN).astype(jnp.float32) for i in range(FAN_IN)]
        return add(carry, [magnitude_bits(x) for x in xs], [deviation(x, centre) for x in xs])

    def add_group(group: jax.Array, carry: tuple) -> tuple:
        bits, deviations = zip(*(run_values(group * FAN_IN + i) for i in range(FAN_IN)), strict=True)
        return add(carry, list(bits), list(deviations))

    zeros = mgpu.filled(0, jnp.float32)
    whole, groups = elements // (FAN_IN * RUN), (elements + FAN_IN * RUN - 1) // (FAN_IN * RUN)
    carry = lax.fori_loop(0, whole, add_whole_group, (magnitude_bits(centre), (zeros, zeros), (zeros, zeros)))
    largest, sums, squares = lax.fori_loop(whole, groups, add_group, carry)
    max_abs[chunk] = jnp.max(largest)
    for x, largest_out, total_out in zip((sums, squares), sums_out[::2], sums_out[1::2], strict=True):
        x = x[0] + x[1]
        largest = jnp.max(magnitude_bits(x))
        largest_out[chunk] = largest
        total_out[chunk] = jnp.sum(as_multiples(x, mgpu.filled(largest, jnp.int32), RUN))
