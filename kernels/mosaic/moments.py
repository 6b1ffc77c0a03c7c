"""Chunks of moments as one Mosaic GPU kernel: every element is read once.

An item is one chunk of one segment. Its runs start where the segment starts, and a short last run is read so that it
ends where the segment ends; what it then holds of the run before is left out.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import moments_reference as common
from ..radix import RUN
from ..rounding import settle
from ..segments import Segments, fill_up
from ..tuning import Tuning
from . import mgpu


@functools.partial(jax.jit, static_argnums=(1, 2, 3))  # lowered once, however many workers of a device measure
def partials_mgpu(gradient: jax.Array, segments: Segments, tuning: Tuning, interpret: Any = None) -> common.Partials:
    """As `partials_reference`."""
    starts, ends, firsts = (jnp.asarray(table) for table in _chunk_tables(segments))

    def moments(chunk, gradient, starts, ends, firsts, max_abs, *sums_out) -> None:
        start, end, first = starts[chunk], ends[chunk], firsts[chunk]
        last = end - 1
        three = [gradient[place].astype(jnp.float32) for place in (start, common.middle_place(start, last), last)]
        centre = common.middle(*(settle(mgpu.filled(x, jnp.float32)) for x in three))
        elements = jnp.minimum(end - first, common.CHUNK)

        def run_values(run: jax.Array) -> tuple[jax.Array, jax.Array]:
            """Bits of the magnitudes, and deviations; zero where the segment has no element."""
            nominal = first + run * RUN
            begin = jnp.maximum(jnp.minimum(nominal, end - RUN), 0)
            x = mgpu.load(gradient, begin).astype(jnp.float32)
            place = mgpu.places(jnp.int32) + begin
            is_own = (place >= nominal) & (place < end)
            return jnp.where(is_own, common.magnitude_bits(x), 0), jnp.where(is_own, common.deviation(x, centre), 0.0)

        def add(carry: tuple, bits: list[jax.Array], deviations: list[jax.Array]) -> tuple:
            largest, (sums, other_sums), (squares, other_squares) = carry
            largest = functools.reduce(jnp.maximum, bits, largest)
            sums, squares = sums + common.add_runs(deviations), squares + common.add_runs([x * x for x in deviations])
            return largest, (other_sums, sums), (other_squares, squares)  # even and odd groups take turns

        def add_whole_group(group: jax.Array, carry: tuple) -> tuple:
            runs = mgpu.window(gradient, first + group * (common.FAN_IN * RUN), common.FAN_IN)
            xs = [mgpu.load(runs, i * RUN).astype(jnp.float32) for i in range(common.FAN_IN)]
            return add(carry, [common.magnitude_bits(x) for x in xs], [common.deviation(x, centre) for x in xs])

        def add_group(group: jax.Array, carry: tuple) -> tuple:
            bits, deviations = zip(*(run_values(group * common.FAN_IN + i) for i in range(common.FAN_IN)), strict=True)
            return add(carry, list(bits), list(deviations))

        zeros = mgpu.filled(0, jnp.float32)
        whole, groups = elements // (common.FAN_IN * RUN), (elements + common.FAN_IN * RUN - 1) // (common.FAN_IN * RUN)
        carry = lax.fori_loop(
            0, whole, add_whole_group, (common.magnitude_bits(centre), (zeros, zeros), (zeros, zeros))
        )
        largest, sums, squares = lax.fori_loop(whole, groups, add_group, carry)
        max_abs[chunk] = jnp.max(largest)
        for x, largest_out, total_out in zip((sums, squares), sums_out[::2], sums_out[1::2], strict=True):
            x = x[0] + x[1]
            largest = jnp.max(common.magnitude_bits(x))
            largest_out[chunk] = largest
            total_out[chunk] = jnp.sum(common.as_multiples(x, mgpu.filled(largest, jnp.int32), RUN))

    operands = [fill_up(gradient, RUN), starts, ends, firsts]  # filled up as encode needs it, so that one copy does
    outputs = [(starts.size, np.int32)] * 5
    max_abs, *sums = mgpu.launch(moments, operands, outputs, starts.size, tuning, interpret)
    first, second = (common.as_float(largest, total, RUN) for largest, total in zip(sums[::2], sums[1::2], strict=True))
    return lax.bitcast_convert_type(max_abs, jnp.float32), first, second


def _chunk_tables(segments: Segments) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First element and end of every chunk's segment, and first element of the chunk; int32[num_chunks] each."""
    bounds, counts = segments.bounds(), common.chunk_counts(segments)
    owner = np.repeat(np.arange(counts.size), counts)
    number = np.arange(owner.size) - np.repeat(np.cumsum(counts) - counts, counts)
    tables = bounds[owner], bounds[owner + 1], bounds[owner] + number * common.CHUNK
    return tuple(table.astype(np.int32) for table in tables)
