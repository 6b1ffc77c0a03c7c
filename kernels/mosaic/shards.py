"""Shard sum as one Mosaic GPU kernel, which reads every word and writes every word once.

Digits of many workers are added before they are told apart. Let y be the value of a few digits of a word, each less its
zero level. Then y / r^k, rounded to an integer, is the value of those from digit k on, as the others amount to less
than a half. Floats from 2^23 to 2^24 are the integers, so adding y / r^k to such a float rounds, and a sum over workers
costs one product and one addition for each digit and worker.
"""

import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from .. import radix as radix_lib
from ..radix import RUN
from ..ternary_decode import UNROLLED_ROWS
from . import mgpu

_MIDDLE = np.float32(1.5 * 2**23)  # of the floats whose steps are 1; 2^22 of them on either side


def shard_sum_mgpu(
    words: jax.Array, num_elements: int, levels: int, radix: int, warpgroups: int, interpret: Any = None
) -> jax.Array:
    """`shard_sum`, for checked arguments. An item is the fewest tiles of words that fill whole tiles of sums."""
    filled, own_depth = _fill(words, levels), radix_lib.digits_per_word(2 * levels + 1)
    num_sums = radix_lib.num_words(filled.shape[1] * own_depth, radix)
    items = -(-filled.shape[1] // RUN * own_depth // math.lcm(own_depth, radix_lib.digits_per_word(radix)))
    known, outputs = (*filled.shape, num_sums // RUN, levels, radix), (((num_sums,), np.uint32),)
    sums = mgpu.launch(_shard_sum, known, [filled.reshape(-1)], outputs, items, warpgroups, interpret)[0]
    return sums[: radix_lib.num_words(num_elements, radix)]


def _fill(words: jax.Array, levels: int) -> jax.Array:
    """Fills each row up with words of level zero, so that shards of about this size share a kernel."""
    radix = 2 * levels + 1
    depth = radix_lib.digits_per_word(radix)
    runs = mgpu.room(words.shape[1] // RUN * depth, RUN)
    return mgpu.fill(words, -(-runs // depth) * RUN, levels * sum(radix**k for k in range(depth)))


def _shard_sum(num_workers, width, tiles, levels, radix, item, words, sums) -> None:
    own_radix, own_tiles = 2 * levels + 1, width // RUN
    own_depth, depth = radix_lib.digits_per_word(own_radix), radix_lib.digits_per_word(radix)
    runs_per_item = math.lcm(own_depth, depth)
    zeros = _zeros(num_workers, own_radix)
    offsets = (np.uint32(levels * num_workers) - zeros).tolist() * (runs_per_item // own_depth)
    nothing = [np.uint32(zero) for zero in zeros]
    planes: list[jax.Array] = []
    for i in range(runs_per_item // own_depth):
        tile = item * (runs_per_item // own_depth) + i
        found = _sum_levels(words, num_workers, width, jnp.minimum(tile, own_tiles - 1), own_radix)
        is_there = mgpu.filled(tile, jnp.int32) < own_tiles
        planes += [jnp.where(is_there, *pair) for pair in zip(found, nothing, strict=True)] if i else found
        for start in range((len(planes) - len(found)) // depth * depth, len(planes) - depth + 1, depth):
            offset = sum(own * radix**k for k, own in enumerate(offsets[start : start + depth])) % 2**32
            packed = radix_lib.pack_planes(planes[start : start + depth], radix) + np.uint32(offset)
            place = item * (runs_per_item // depth) + start // depth
            pl.when(place < tiles)(functools.partial(mgpu.store, sums, place * RUN, packed))


def _parts(rows: int, radix: int) -> list[int]:
    """The numbers of digits that are read at once, so few that sums over rows stay within 2^22."""
    depth = radix_lib.digits_per_word(radix)
    most = max(k for k in range(1, depth + 1) if k == 1 or rows * radix**k < 2**23)
    return [len(part) for part in np.array_split(np.arange(depth), -(-depth // most))]


def _zeros(rows: int, radix: int) -> np.ndarray:
    """uint32[D]: what `_sum_levels` gives where levels add to zero."""
    middle = int(_MIDDLE.view(np.uint32))
    ends = set(np.cumsum(_parts(rows, radix)).tolist())
    found = [middle if k + 1 in ends else middle - radix * middle for k in range(radix_lib.digits_per_word(radix))]
    return np.array([each % 2**32 for each in found], np.uint32)


def _sum_levels(words: Any, rows: int, width: int, tile: jax.Array, radix: int) -> list[jax.Array]:
    """Sums of the levels of a tile's planes over rows of flat words, plus `_zeros`; uint32[RUN] each."""
    sizes = tuple(_parts(rows, radix))

    def add(row: int | jax.Array, totals: list[jax.Array]) -> list[jax.Array]:
        return _add(totals, mgpu.load(words, row * width + tile * RUN), radix, sizes)

    totals = [mgpu.filled(_MIDDLE, jnp.float32)] * sum(sizes)
    if rows > UNROLLED_ROWS:
        totals = lax.fori_loop(0, rows, add, totals)
    else:
        for row in range(rows):
            totals = add(row, totals)
    sums = [lax.bitcast_convert_type(total, jnp.uint32) for total in totals]
    planes = []
    for end, size in zip(np.cumsum(sizes).tolist(), sizes, strict=True):
        own = sums[end - size : end]
        planes += [this - above * np.uint32(radix) for this, above in itertools.pairwise(own)] + own[-1:]
    return planes


@functools.partial(jax.jit, static_argnums=(2, 3), inline=True)  # traced once for all rows, tiles and kernels
def _add(totals: list[jax.Array], word: jax.Array, radix: int, sizes: tuple[int, ...]) -> list[jax.Array]:
    """Adds a run of words: the total of digit k of a part (see `_parts`) takes the part's value over radix^k."""
    parts, shares = [], []
    for size in sizes[:-1]:
        base = np.uint32(radix**size)
        quotient = word // base
        parts.append(word - quotient * base)
        word = quotient
    for part, size in zip([*parts, word], sizes, strict=True):
        value = part.astype(jnp.float32) - np.float32(radix**size // 2)  # less the zero levels
        shares += [value * np.float32(float(radix) ** -k) for k in range(size)]
    return [total + share for total, share in zip(totals, shares, strict=True)]
