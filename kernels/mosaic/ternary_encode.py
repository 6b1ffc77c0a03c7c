"""Encode as one Mosaic GPU kernel, which reads every element and writes every word once.

An item is the fewest tiles whose runs fill whole groups of noise. If it has one scale, all its runs are unrolled and
share the groups' random bits. If scales change in it, or the bucket ends, a slower loop over its runs looks up scales
place by place and draws bits for every run; few items are like that.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from .. import dither, noise, radix as radix_lib
from ..radix import RUN
from ..rounding import to_digits
from ..segments import Segments
from . import mgpu


class _Job(NamedTuple):
    """Arrays in device memory, the key as four numbers, and constants."""

    gradient: Any
    steps: Any
    key: tuple[jax.Array, ...]
    bounds: Any
    words: Any
    first_group: jax.Array  # of noise
    radix: int
    levels: int
    depth: int  # runs in a tile
    runs: int
    tiles: int
    tiles_per_item: int


def ternary_encode_mgpu(
    gradient: jax.Array,
    steps: jax.Array,
    key: jax.Array,
    segments: Segments,
    radix: int,
    levels: int,
    offset: int | jax.Array,
    warpgroups: int,
    interpret: Any = None,
) -> jax.Array:
    """`ternary_encode`, for checked arguments; `steps` are from `steps_of`."""
    depth = radix_lib.digits_per_word(radix)
    tiles_per_item = noise.LANES // math.gcd(depth, noise.LANES)
    elements, tables = mgpu.segment_operands(segments, steps, tiles_per_item * depth)
    width = radix_lib.num_words(elements, radix)
    constants = radix, levels, depth, elements // RUN, width // RUN, tiles_per_item
    operands = [mgpu.fill(gradient, elements), dither.with_group(key, offset), *tables]
    outputs = (((width,), np.uint32),)
    words = mgpu.launch(_ternary_encode, (constants,), operands, outputs, tables[-1].size, warpgroups, interpret)[0]
    return words[: segments.num_words(radix)]


def _ternary_encode(constants, item, gradient, key, steps, bounds, owners, words) -> None:
    *key, first_group = (key[i] for i in range(5))  # read once, before anything is stored
    job = _Job(gradient, steps, tuple(key), bounds, words, first_group, *constants)
    ways = [partial(way, job, item) for way in (_encode_under_one_scale, _encode_run_by_run)]
    mgpu.branch_by_owner(owners[item], *ways)


def _encode_under_one_scale(job: _Job, item: jax.Array, segment: jax.Array) -> None:
    step = job.steps[segment]
    runs = job.tiles_per_item * job.depth
    gradient = mgpu.window(job.gradient, item * (runs * RUN), runs)
    words = mgpu.window(job.words, item * (job.tiles_per_item * RUN), job.tiles_per_item)
    group = _group(item * runs, job)
    for tile in range(job.tiles_per_item):
        first = tile * job.depth
        # Loads everything before storing anything, as the compiler moves no load across a store.
        loaded = [mgpu.load(gradient, (first + k) * RUN).astype(jnp.float32) for k in range(job.depth)]
        planes = []
        for run, x in enumerate(loaded, first):
            if run % noise.LANES == 0:
                halves = noise.draw(job.key[:2], group + jnp.uint32(run // noise.LANES * RUN))
            bits = dither.shifted(noise.take(halves, run % noise.LANES), *job.key[2:])
            planes.append(to_digits(x * step, bits, job.levels))
        mgpu.store(words, tile * RUN, radix_lib.pack_planes(planes, job.radix))


def _encode_run_by_run(job: _Job, item: jax.Array, segment: jax.Array) -> None:
    def add_run(k: jax.Array, carry: tuple, tile: jax.Array) -> tuple:
        segment, words, weight = carry
        run = tile * job.depth + k
        segment, step = mgpu.factors_of_run(segment, run, job.bounds, job.steps)
        is_there = mgpu.filled(run, jnp.int32) < job.runs
        start = jnp.minimum(run, job.runs - 1) * RUN
        x = jnp.where(is_there, mgpu.load(job.gradient, start).astype(jnp.float32), 0.0)
        drawn = noise.take(noise.draw(job.key[:2], _group(run, job)), mgpu.filled(run % noise.LANES, jnp.uint32))
        digits = to_digits(x * step, dither.shifted(drawn, *job.key[2:]), job.levels)
        return segment, words + digits * weight, weight * jnp.uint32(job.radix)

    def encode_tile(i: jax.Array, segment: jax.Array) -> jax.Array:
        tile = item * job.tiles_per_item + i
        start = (segment, mgpu.filled(0, jnp.uint32), jnp.uint32(1))
        segment, words, _ = lax.fori_loop(0, job.depth, lambda k, carry: add_run(k, carry, tile), start)
        pl.when(tile < job.tiles)(lambda: mgpu.store(job.words, tile * RUN, words))
        return segment

    lax.fori_loop(0, job.tiles_per_item, encode_tile, segment)


def _group(run: jax.Array, job: _Job) -> jax.Array:
    """The group of noise of each place of a run."""
    first = (run // noise.LANES * RUN).astype(jnp.uint32) + job.first_group
    return mgpu.places(jnp.uint32) + first
