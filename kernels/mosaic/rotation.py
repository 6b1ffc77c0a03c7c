"""Rotation of whole blocks as one Mosaic GPU kernel, which reads and writes every element once.

An item is a block of 256 rows of 16 columns, which fills the registers of a warpgroup: 32 runs, each of one row in
sixteen, of the first or the second half of the rows. So the rows of a group of 16 are runs of their own, and are mixed
in registers. The block passes through shared memory where the groups are mixed with each other, and where columns are
shifted. A row there is a group; behind it is room for the columns that a shifted read reaches beyond its end.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from .. import noise
from ..radix import RUN
from . import mgpu

_SIDE = 16  # columns; rows of a group; groups
_GROUP = _SIDE * _SIDE  # elements
_HALF = _SIDE // 2
_PITCH = _GROUP + _SIDE  # of a group in shared memory; no two rows of a run then share banks
_LAYOUT = plgpu.Layout.WG_STRIDED((_HALF, _SIDE), vec_size=1)

Runs = list[list[jax.Array]]  # the sixteen runs to mix, for each half of the rows, or for each half of every group


def rotate_blocks_mgpu(
    blocks: jax.Array, key: jax.Array, firsts: Any, is_inverse: bool, interpret: Any = None
) -> jax.Array:
    """Turns the signs of float32[blocks, 4096] and applies H to every block, or the reverse.

    `firsts`, uint32[blocks], are the groups of noise with which the blocks begin.
    """
    count, size = blocks.shape
    room = mgpu.room(count, size)
    shape = room, _SIDE, _GROUP
    operands = [mgpu.fill(blocks.reshape(-1), room * size).reshape(shape), key, mgpu.fill(firsts, room)]
    outputs, scratch = ((shape, np.float32),), (_SIDE, _PITCH)
    turned = mgpu.launch(_rotate, (is_inverse,), operands, outputs, room, 1, interpret, scratch)[0]
    return turned.reshape(-1)[: blocks.size].reshape(count, size)


def _rotate(is_inverse, block, vector, key, firsts, turned, shared) -> None:
    flip = partial(_flip, key=(key[0], key[1]), first=firsts[block])
    runs = _each(lambda half, row: plgpu.load(_run(vector.at[block], half, row), layout=_LAYOUT))
    if is_inverse:
        _put(shared, _mix(runs))
        runs = _mix(_each(partial(_take, shared, -1)))
        plgpu.commit_smem()  # all have read before any writes
        _put(shared, runs)
        _mix_groups(shared)
        runs = flip(_scaled(_each(partial(_take, shared, 0))))
        runs = [[jnp.where(run == 0, 0.0, run) for run in half] for half in runs]
    else:
        _put(shared, _mix(flip(runs)))
        _mix_groups(shared)
        runs = _scaled(_mix(_each(partial(_take, shared, 1))))
    _each(lambda half, row: mgpu.put(_run(turned.at[block], half, row), runs[half][row]))


def _each(function: Callable[[int, int], Any]) -> Runs:
    return [[function(half, row) for row in range(_SIDE)] for half in range(2)]


def _run(groups: Any, half: int, row: int) -> Any:
    """A row of each of eight groups."""
    return groups.at[pl.ds(half * _HALF, _HALF), pl.ds(row * _SIDE, _SIDE)]


def _put(shared: Any, runs: Runs) -> None:
    _each(lambda half, row: mgpu.put(_run(shared, half, row), runs[half][row]))
    plgpu.commit_smem()


def _take(shared: Any, shift: int, half: int, row: int) -> jax.Array:
    """A run whose columns are shifted by its row number, times `shift`: up to the end of a row, and from its start."""
    groups, by = pl.ds(half * _HALF, _HALF), shift * row % _SIDE
    until_end = plgpu.load(shared.at[groups, pl.ds(row * _SIDE + by, _SIDE)], layout=_LAYOUT)
    if not by:
        return until_end
    from_start = plgpu.load(shared.at[groups, pl.ds((row - 1) * _SIDE + by, _SIDE)], layout=_LAYOUT)
    return jnp.where(_places(1) < jnp.uint32(_SIDE - by), until_end, from_start)


def _mix_groups(shared: Any) -> None:
    """Mixes the groups: over all groups, the rows of the same number."""

    def place(half: int, group: int) -> Any:
        return shared.at[group, pl.ds(half * RUN, RUN)]

    runs = _mix(_each(lambda half, group: plgpu.load(place(half, group), layout=mgpu.LAYOUT)))
    _each(lambda half, group: mgpu.put(place(half, group), runs[half][group]))
    plgpu.commit_smem()


def _mix(runs: Runs) -> Runs:
    """The unscaled Walsh-Hadamard transform over the sixteen runs of each half."""
    for step in (1, 2, 4, 8):
        pairs = [[(half[i & ~step], half[i | step]) for i in range(_SIDE)] for half in runs]
        runs = [[a - b if i & step else a + b for i, (a, b) in enumerate(half)] for half in pairs]
    return runs


def _scaled(runs: Runs) -> Runs:
    return [[run * np.float32(1 / (4 * _SIDE)) for run in half] for half in runs]


def _flip(runs: Runs, key: noise.Halves, first: jax.Array) -> Runs:
    """Turns signs; a group of noise serves four rows."""
    return [list(_flip_each(half, key, first + jnp.uint32(4 * _HALF * i))) for i, half in enumerate(runs)]


def _flip_each(runs: list[jax.Array], key: noise.Halves, first: jax.Array) -> Iterator[jax.Array]:
    for row, run in enumerate(runs):
        if row % 4 == 0:
            halves = noise.draw(key, _places(0) * jnp.uint32(4) + (first + jnp.uint32(row // 4)))
        bits = halves[row % 4 // 2] >> (_places(1) + jnp.uint32(row % 2 * _SIDE)) << jnp.uint32(31)
        yield jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(run, jnp.uint32) ^ bits, jnp.float32)


def _places(axis: int) -> jax.Array:
    """The group's number in its half, or the column, of each thread."""
    return plgpu.broadcasted_iota(jnp.uint32, (_HALF, _SIDE), axis, layout=_LAYOUT)
