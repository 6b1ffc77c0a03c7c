"""Decode as one Mosaic GPU kernel, which reads every word and writes every element of the mean once.

An item is one tile. If it has one scale, all its planes take the same unit. If scales change in it, or the bucket ends,
units are looked up place by place.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from .. import noise, radix as radix_lib
from ..dither import Dither, with_group
from ..radix import RUN
from ..rounding import settle
from ..segments import Segments
from ..ternary_decode import UNROLLED_ROWS
from . import mgpu


def ternary_decode_mgpu(
    words: jax.Array,
    units: jax.Array,
    segments: Segments,
    zero: int,
    radix: int,
    dither: Dither | None,
    tile_scales: jax.Array | None,
    warpgroups: int,
    interpret: Any = None,
) -> jax.Array:
    """`ternary_decode`, for checked arguments; `units` are from `units_of`, `zero` is the sum of zero levels."""
    elements, tables = mgpu.segment_operands(segments, units, radix_lib.digits_per_word(radix))
    bits = with_group(dither.bits, dither.offset) if dither else jnp.zeros((5,), jnp.uint32)
    scales = () if tile_scales is None else (mgpu.fill(tile_scales, tables[-1].size),)
    filled = mgpu.fill(words, radix_lib.num_words(elements, radix))
    shared = dither and dither._replace(bits=None, offset=0)  # which are operands
    known = *filled.shape, elements // RUN, zero, radix, shared
    operands, outputs = [filled.reshape(-1), bits, *tables, *scales], (((elements,), np.float32),)
    mean = mgpu.launch(_ternary_decode, known, operands, outputs, tables[-1].size, warpgroups, interpret)[0]
    return mean[: segments.num_elements]


def _ternary_decode(rows, width, runs, zero, radix, dither, tile, words, bits, units, bounds, owners, *rest) -> None:
    totals, depth = sum_planes(words, rows, width, tile, radix), radix_lib.digits_per_word(radix)
    *scales, mean = rest
    tile_scales = [each[tile] for each in scales]
    first_run = tile * depth
    out = mgpu.window(mean, first_run * RUN, depth)
    added = dither and _dither_planes(dither._replace(bits=[bits[i] for i in range(5)]), first_run, depth)

    def store(k: int, unit: jax.Array) -> None:
        digits = totals[k].astype(jnp.int32) - zero
        levels = digits.astype(jnp.float32)
        if dither:
            levels -= added[k]
        for scale in tile_scales:
            unit *= scale
        mgpu.store(out, k * RUN, settle(levels * unit))

    def store_under_one_scale(segment: jax.Array) -> None:
        unit = units[segment]
        for k in range(depth):
            store(k, unit)

    def store_run_by_run(segment: jax.Array) -> None:
        for k in range(depth):
            segment, unit = mgpu.factors_of_run(segment, first_run + k, bounds, units)
            pl.when(first_run + k < runs)(functools.partial(store, k, unit))

    mgpu.branch_by_owner(owners[tile], store_under_one_scale, store_run_by_run)


def _dither_planes(dither: Dither, first_run: jax.Array, depth: int) -> list[jax.Array]:
    """The dither of each plane. `dither.bits` holds five numbers here, as from `with_group`.

    Four runs share a draw; unless D is a multiple of four, a tile may begin amid them.
    """
    phase = first_run % noise.LANES
    first = (first_run // noise.LANES * RUN).astype(jnp.uint32) + dither.bits[4]
    groups = [mgpu.places(jnp.uint32) + (first + np.uint32(i * RUN)) for i in range((depth - 1) // noise.LANES + 2)]
    draws = [noise.draw(dither.bits[:2], group) for group in groups]
    planes = []
    for k in range(depth):
        place, lane = divmod(k, noise.LANES)
        low, high = draws[place]
        if depth % noise.LANES:
            is_next = mgpu.filled(phase + lane, jnp.int32) >= noise.LANES
            low, high = (jnp.where(is_next, *pair) for pair in zip(draws[place + 1], draws[place], strict=True))
            lane = mgpu.filled((phase + lane) % noise.LANES, jnp.uint32)
        planes.append(dither.of(noise.take((low, high), lane)))
    return planes


def sum_planes(words: Any, rows: int, width: int, tile: jax.Array, radix: int) -> list[jax.Array]:
    """Adds the digits of a tile's planes over rows of flat words, uint32[RUN] each."""

    def digits(row: int | jax.Array) -> list[jax.Array]:
        word, found = mgpu.load(words, row * width + tile * RUN), []
        for _ in range(radix_lib.digits_per_word(radix) - 1):
            quotient = word // np.uint32(radix)  # a GPU divides by a constant with one multiplication
            found.append(word - quotient * np.uint32(radix))
            word = quotient
        return [*found, word]

    def add_row(row: jax.Array, totals: list[jax.Array]) -> list[jax.Array]:
        return [total + digit for total, digit in zip(totals, digits(row), strict=True)]

    totals = digits(0)
    if rows > UNROLLED_ROWS:
        return lax.fori_loop(1, rows, add_row, totals)
    for row in range(1, rows):
        totals = add_row(row, totals)
    return totals
