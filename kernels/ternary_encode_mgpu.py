"""Encode as one Mosaic GPU kernel: every element is read once, every word written once.

An item is the fewest tiles whose runs fill whole groups of noise. Where an item lies under one scale, all its runs are
unrolled and share the groups' random bits. Where scales change in it, or the bucket ends, its runs go through a loop
that looks scales up place by place and draws every run's bits anew: slower, but few items are such.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from . import mgpu, noise, radix as radix_lib
from .radix import RUN
from .rounding import settle, to_digits
from .segments import Segments, fill_up
from .tuning import Tuning


def ternary_encode_mgpu(
    gradient: jax.Array,
    steps: jax.Array,
    units: jax.Array,
    key: jax.Array,
    segments: Segments,
    radix: int,
    levels: int,
    offset: int,
    residual: bool,
    tuning: Tuning,
    interpret: Any = None,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """`ternary_encode`, its arguments checked; steps turn g into fixed-point levels, units are what a level is worth."""
    depth = radix_lib.digits_per_word(radix)
    tiles = segments.num_words(radix) // RUN
    runs, tiles_per_item = segments.num_runs, noise.LANES // math.gcd(depth, noise.LANES)
    runs_per_item = tiles_per_item * depth
    bounds_table, owner_table = mgpu.segment_tables(segments, runs_per_item * RUN)

    def encode(x: jax.Array, step: jax.Array, unit: jax.Array, bits: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Digits and residual of a run."""
        digits = to_digits(x * step, bits, levels)
        level = lax.bitcast_convert_type(digits, jnp.int32) - levels
        return digits, x - settle(level.astype(jnp.float32) * unit) if residual else x

    def ternary_encode(item, gradient, steps, units, key, bounds, owners, words, *rest) -> None:
        key = (key[0], key[1])
        segment = owners[item]
        first_run = item * runs_per_item
        is_plain = (first_run + runs_per_item <= runs) & (bounds[segment + 1] >= (first_run + runs_per_item) * RUN)

        def bits_of_group(run: jax.Array) -> noise.Halves:
            group = (run.astype(jnp.uint32) + jnp.uint32(offset // RUN)) // noise.LANES * RUN
            return noise.draw(key, mgpu.places(jnp.uint32) + group)

        def load(run: jax.Array) -> jax.Array:
            return mgpu.load(gradient, run * RUN).astype(jnp.float32)

        @pl.when(is_plain)
        def _plain() -> None:
            step, unit = steps[segment], units[segment]
            for tile in range(tiles_per_item):
                planes = []
                for i in range(tile * depth, (tile + 1) * depth):
                    run = first_run + i
                    if i % noise.LANES == 0:
                        halves = bits_of_group(run)
                    digits, left = encode(load(run), step, unit, noise.take(halves, i % noise.LANES))
                    planes.append(digits)
                    if residual:
                        mgpu.store(rest[0], run * RUN, left)
                tile_start = (item * tiles_per_item + tile) * RUN
                mgpu.store(words, tile_start, radix_lib.pack_planes(planes, radix))

        @pl.when(jnp.logical_not(is_plain))
        def _mixed() -> None:
            def plane(k: jax.Array, carry: tuple, tile: jax.Array) -> tuple:
                segment, packed, weight = carry
                run = tile * depth + k
                segment, (step, unit) = mgpu.factors_of_run(segment, run, bounds, (steps, units))
                x = jnp.where(mgpu.filled(run, jnp.int32) < runs, load(jnp.minimum(run, runs - 1)), 0.0)
                bits = noise.take(bits_of_group(run), mgpu.filled(run % noise.LANES, jnp.uint32))
                digits, left = encode(x, step, unit, bits)
                if residual:
                    pl.when(run < runs)(lambda: mgpu.store(rest[0], run * RUN, left))
                return segment, packed + digits * weight, weight * jnp.uint32(radix)

            def encode_tile(i: jax.Array, segment: jax.Array) -> jax.Array:
                tile = item * tiles_per_item + i
                start = (segment, mgpu.filled(0, jnp.uint32), jnp.uint32(1))
                segment, packed, _ = lax.fori_loop(0, depth, lambda k, carry: plane(k, carry, tile), start)
                pl.when(tile < tiles)(lambda: mgpu.store(words, tile * RUN, packed))
                return segment

            lax.fori_loop(0, tiles_per_item, encode_tile, segment)

    operands = [fill_up(gradient, RUN), steps, units, key, jnp.asarray(bounds_table), jnp.asarray(owner_table)]
    outputs = [(tiles * RUN, np.uint32)] + [(runs * RUN, np.float32)] * residual
    found = mgpu.launch(ternary_encode, operands, outputs, len(owner_table), tuning, interpret)
    return (found[0], found[1][: segments.num_elements]) if residual else found[0]
