"""Encode as one Mosaic GPU kernel: every element is read once, every word written once.

An item is the fewest tiles whose runs fill whole groups of noise. Where an item lies under one scale, all its runs are
unrolled and share the groups' random bits. Where scales change in it, or the bucket ends, its runs go through a loop
that looks scales up place by place and draws every run's bits anew: slower, but few items are such.
"""

import math
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
from . import mgpu


class _Plan(NamedTuple):
    """What is known before the kernel runs."""

    radix: int
    levels: int
    first_group: int  # of noise
    depth: int  # runs in a tile
    runs: int
    tiles: int
    tiles_per_item: int


class _Refs(NamedTuple):
    """Arrays in device memory; the key as four numbers once it is read."""

    gradient: Any
    steps: Any
    key: Any
    bounds: Any
    owners: Any
    words: Any


def ternary_encode_mgpu(
    gradient: jax.Array,
    steps: jax.Array,
    key: jax.Array,
    segments: Segments,
    radix: int,
    levels: int,
    offset: int,
    interpret: Any = None,
) -> jax.Array:
    """`ternary_encode`, its arguments checked; steps turn g into fixed point."""
    depth, tiles = radix_lib.digits_per_word(radix), segments.num_words(radix) // RUN
    tiles_per_item = noise.LANES // math.gcd(depth, noise.LANES)
    plan = _Plan(radix, levels, offset // noise.LANES, depth, segments.num_runs, tiles, tiles_per_item)
    bounds, owners = mgpu.segment_tables(segments, tiles_per_item * depth)

    def ternary_encode(item: jax.Array, *arrays: Any) -> None:
        refs = _Refs(*arrays)
        refs = refs._replace(key=tuple(refs.key[i] for i in range(4)))  # read once, before anything is stored
        mgpu.branch_by_owner(
            refs.owners[item],
            lambda segment: _encode_under_one_scale(item, segment, refs, plan),
            lambda segment: _encode_run_by_run(item, segment, refs, plan),
        )

    operands = [fill_up(gradient, RUN), steps, key, jnp.asarray(bounds), jnp.asarray(owners)]
    return mgpu.launch(ternary_encode, operands, [(tiles * RUN, np.uint32)], owners.size, interpret=interpret)[0]


def _encode_under_one_scale(item: jax.Array, segment: jax.Array, refs: _Refs, plan: _Plan) -> None:
    step = refs.steps[segment]
    runs = plan.tiles_per_item * plan.depth
    gradient = mgpu.window(refs.gradient, item * (runs * RUN), runs)
    words = mgpu.window(refs.words, item * (plan.tiles_per_item * RUN), plan.tiles_per_item)
    group = _group(item * runs, plan)
    for tile in range(plan.tiles_per_item):
        first = tile * plan.depth
        # All are loaded before anything is stored: the compiler moves no load across a store.
        loaded = [mgpu.load(gradient, (first + k) * RUN).astype(jnp.float32) for k in range(plan.depth)]
        planes = []
        for run, x in enumerate(loaded, first):
            if run % noise.LANES == 0:
                halves = noise.draw(refs.key[:2], group + jnp.uint32(run // noise.LANES * RUN))
            bits = dither.shifted(noise.take(halves, run % noise.LANES), *refs.key[2:])
            planes.append(to_digits(x * step, bits, plan.levels))
        mgpu.store(words, tile * RUN, radix_lib.pack_planes(planes, plan.radix))


def _encode_run_by_run(item: jax.Array, segment: jax.Array, refs: _Refs, plan: _Plan) -> None:
    def add_run(k: jax.Array, carry: tuple, tile: jax.Array) -> tuple:
        segment, words, weight = carry
        run = tile * plan.depth + k
        segment, step = mgpu.factors_of_run(segment, run, refs.bounds, refs.steps)
        is_there = mgpu.filled(run, jnp.int32) < plan.runs
        start = jnp.minimum(run, plan.runs - 1) * RUN
        x = jnp.where(is_there, mgpu.load(refs.gradient, start).astype(jnp.float32), 0.0)
        drawn = noise.take(noise.draw(refs.key[:2], _group(run, plan)), mgpu.filled(run % noise.LANES, jnp.uint32))
        digits = to_digits(x * step, dither.shifted(drawn, *refs.key[2:]), plan.levels)
        return segment, words + digits * weight, weight * jnp.uint32(plan.radix)

    def encode_tile(i: jax.Array, segment: jax.Array) -> jax.Array:
        tile = item * plan.tiles_per_item + i
        start = (segment, mgpu.filled(0, jnp.uint32), jnp.uint32(1))
        segment, words, _ = lax.fori_loop(0, plan.depth, lambda k, carry: add_run(k, carry, tile), start)
        pl.when(tile < plan.tiles)(lambda: mgpu.store(refs.words, tile * RUN, words))
        return segment

    lax.fori_loop(0, plan.tiles_per_item, encode_tile, segment)


def _group(run: jax.Array, plan: _Plan) -> jax.Array:
    """The groups of noise that a run belongs to, each place's own."""
    first = (run // noise.LANES * RUN).astype(jnp.uint32) + jnp.uint32(plan.first_group)
    return mgpu.places(jnp.uint32) + first
