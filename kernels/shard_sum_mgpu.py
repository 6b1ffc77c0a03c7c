"""Shard sum as one Mosaic GPU kernel: every word is read once, every word of the sums written once.

An item is the fewest tiles of words in which tiles of sums begin and end too, so that which run goes where is known
before the kernel runs.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from . import mgpu, radix as radix_lib
from .radix import RUN
from .ternary_decode_mgpu import sum_planes
from .tuning import Tuning


def shard_sum_mgpu(
    words: jax.Array, num_elements: int, levels: int, radix: int, tuning: Tuning, interpret: Any = None
) -> jax.Array:
    """`shard_sum`, its arguments checked."""
    num_workers, width = words.shape
    own_radix = 2 * levels + 1
    own_depth, depth = radix_lib.digits_per_word(own_radix), radix_lib.digits_per_word(radix)
    runs_per_item = math.lcm(own_depth, depth)
    own_tiles, tiles = width // RUN, radix_lib.num_words(num_elements, radix) // RUN
    runs = radix_lib.num_runs(num_elements)
    zero = np.uint32(levels * num_workers)

    def shard_sum(item, words, sums) -> None:
        planes: list[jax.Array] = []
        tile = item * (runs_per_item // depth)
        for i in range(runs_per_item // own_depth):
            own_tile = item * (runs_per_item // own_depth) + i
            totals = sum_planes(words, num_workers, width, jnp.minimum(own_tile, own_tiles - 1), own_radix)
            for k, total in enumerate(totals):
                run = mgpu.filled(own_tile * own_depth + k, jnp.int32)
                planes.append(jnp.where(run < runs, total, zero))
            while len(planes) >= depth:
                full, planes = planes[:depth], planes[depth:]
                pl.when(tile < tiles)(
                    lambda tile=tile, full=full: mgpu.store(sums, tile * RUN, radix_lib.pack_planes(full, radix))
                )
                tile = tile + 1

    items = -(-runs // runs_per_item)
    return mgpu.launch(shard_sum, [words.reshape(-1)], [(tiles * RUN, np.uint32)], items, tuning, interpret)[0]
