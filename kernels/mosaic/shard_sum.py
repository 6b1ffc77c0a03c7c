"""Shard sum as one Mosaic GPU kernel, which reads every word and writes every word of the sums once.

An item is the fewest tiles of words that fill whole tiles of sums, so that the place of each run is known in advance.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from .. import radix as radix_lib
from ..radix import RUN
from ..tuning import Tuning
from . import mgpu
from .ternary_decode import sum_planes


def shard_sum_mgpu(
    words: jax.Array, num_elements: int, levels: int, radix: int, tuning: Tuning, interpret: Any = None
) -> jax.Array:
    """`shard_sum`, for checked arguments."""
    num_workers, width = words.shape
    own_radix = 2 * levels + 1
    own_depth, depth = radix_lib.digits_per_word(own_radix), radix_lib.digits_per_word(radix)
    runs_per_item = math.lcm(own_depth, depth)
    own_tiles, tiles = width // RUN, radix_lib.num_words(num_elements, radix) // RUN
    nothing = np.uint32(sum(levels * power for power in radix_lib.powers(own_radix).tolist()))

    def shard_sum(item, words, sums) -> None:
        planes: list[jax.Array] = []
        tile = item * (runs_per_item // depth)
        for i in range(runs_per_item // own_depth):
            own_tile = item * (runs_per_item // own_depth) + i
            is_there = mgpu.filled(own_tile, jnp.int32) < own_tiles
            place = jnp.minimum(own_tile, own_tiles - 1)
            planes += sum_planes(
                words, num_workers, width, place, own_radix, lambda word, own=is_there: jnp.where(own, word, nothing)
            )
            while len(planes) >= depth:
                packed, planes = radix_lib.pack_planes(planes[:depth], radix), planes[depth:]
                pl.when(tile < tiles)(functools.partial(mgpu.store, sums, tile * RUN, packed))
                tile = tile + 1

    items = -(-own_tiles * own_depth // runs_per_item)
    return mgpu.launch(shard_sum, [words.reshape(-1)], [(tiles * RUN, np.uint32)], items, tuning, interpret)[0]
