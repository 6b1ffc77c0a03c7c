"""Encode as one Mosaic GPU kernel: every element is read once, every word written once.

An item is the fewest tiles whose runs fill whole groups of noise. Where an item lies under one scale, all its runs are
unrolled and share the groups' random bits. Where scales change in it, or the bucket ends, its runs go through a loop
that looks scales up place by place and draws every run's bits anew: slower, but few items are such.
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
from ..segments import Segments, fill_up
from ..tuning import Tuning
from . import mgpu


class _Job(NamedTuple):
    """Arrays in device memory, the key as four numbers, and what is known before the kernel runs."""

    gradient: Any
    steps: Any
    key: tuple[jax.Array, ...]
    bounds: Any
    words: Any
    radix: int
    levels: int
    first_group: int  # of noise
    depth: int  # runs in a tile
    runs: int
    tiles: int
    tiles_per_item: int


@partial(jax.jit, static_argnums=range(3, 9))  # lowered once, however many workers of a device encode
def ternary_encode_mgpu(
    gradient: jax.Array, steps: jax.Array, key: jax.Array, segments: Segments, radix: int, levels: int, offset: int,
    tuning: Tuning, interpret: Any = None,
) -> jax.Array:  # fmt: skip
    """`ternary_encode`, its arguments checked; steps turn g into fixed point."""
    depth, tiles = radix_lib.digits_per_word(radix), segments.num_words(radix) // RUN
    tiles_per_item = noise.LANES // math.gcd(depth, noise.LANES)
    known = (radix, levels, offset // noise.LANES, depth, segments.num_runs, tiles, tiles_per_item)
    bounds, owners = mgpu.segment_tables(segments, tiles_per_item * depth)

    def ternary_encode(item, gradient, steps, key, bounds, owners, words) -> None:
        key = tuple(key[i] for i in range(4))  # read once, before anything is stored
        job = _Job(gradient, steps, key, bounds, words, *known)
        ways = [partial(way, job, item) for way in (_encode_under_one_scale, _encode_run_by_run)]
        mgpu.branch_by_owner(owners[item], *ways)

    operands = [fill_up(gradient, RUN), steps, key, jnp.asarray(bounds), jnp.asarray(owners)]
    return mgpu.launch(ternary_encode, operands, [(tiles * RUN, np.uint32)], owners.size, tuning, interpret)[0]


def _encode_under_one_scale(job: _Job, item: jax.Array, segment: jax.Array) -> None:
    step = job.steps[segment]
    runs = job.tiles_per_item * job.depth
    gradient = mgpu.window(job.gradient, item * (runs * RUN), runs)
    words = mgpu.window(job.words, item * (job.tiles_per_item * RUN), job.tiles_per_item)
    group = _group(item * runs, job)
    for tile in range(job.tiles_per_item):
        first = tile * job.depth
        # All are loaded before anything is stored: the compiler moves no load across a store.
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
    """The groups of noise that a run belongs to, each place's own."""
    first = (run // noise.LANES * RUN).astype(jnp.uint32) + jnp.uint32(job.first_group)
    return mgpu.places(jnp.uint32) + first
