"""Counter-based random bits: a pure function of (seed, step, worker, position).

There is no state to store: any worker, device or host can compute any bit by itself, so N virtual workers on one device
draw exactly what N hosts draw. All of it is elementwise integer arithmetic, the same in plain jnp and in a GPU kernel.

The generator is Philox 2x32 with seven rounds, the fewest that pass BigCrush (Salmon et al., "Parallel random numbers:
as easy as 1, 2, 3", SC 2011). Its 64 bits serve four elements with 16 bits each: those at the same place of four
consecutive runs of `RUN` elements (see radix.py). docs/benchmarks.md has the tests.
"""

from functools import partial

import jax
import jax.numpy as jnp

from .radix import RUN

LANES = 4  # runs that share the output of one generator call
BITS = 16  # random bits of an element

_ROUNDS = 7
_MULTIPLIER = 0xD256D193
_WEYL = 0x9E3779B9  # 2^32 / golden ratio

Halves = tuple[jax.Array, jax.Array]


def derive_key(seed: jax.typing.ArrayLike, step: jax.typing.ArrayLike, worker: jax.typing.ArrayLike) -> jax.Array:
    """Derives the key of one worker's noise at one step.

    A Feistel network of four rounds, keyed by `seed`, permutes the 64 bits (step, worker). So for one seed no two
    (step, worker) pairs share a key.

    Args:
      seed: uint32 scalar (or any integer below 2^32).
      step: uint32 scalar, the number of updates before this one.
      worker: uint32 scalar, the worker's index along the exchange axes.

    Returns:
      uint32[2].
    """
    seed, left, right = (jnp.asarray(value, jnp.uint32) for value in (seed, step, worker))
    for round_index in range(4):
        round_key = mix(seed + jnp.uint32((round_index + 1) * _WEYL % 2**32))
        left, right = right, left ^ mix(right + round_key)
    return jnp.stack([left, right])


def mix(x: jax.Array) -> jax.Array:
    """A bijective hash of uint32 values: the two-multiply hash from C. Wellons' hash-prospector (2018-2022)."""
    x = x ^ (x >> 16)
    x = x * jnp.uint32(0x21F0AAAD)
    x = x ^ (x >> 15)
    x = x * jnp.uint32(0xD35A2D97)
    return x ^ (x >> 15)


@partial(jax.jit, static_argnums=2, inline=True)  # traced once for each shape
def philox2x32(counter: Halves, key: jax.Array, rounds: int = _ROUNDS) -> Halves:
    """Philox 2x32: 64 random bits from a 64-bit counter and a 32-bit key; uint32 of shapes that broadcast."""
    left, right = counter
    for _ in range(rounds):
        high, low = _multiply(left)
        left, right = high ^ key ^ right, low
        key = key + jnp.uint32(_WEYL)
    return left, right


def _multiply(x: jax.Array) -> Halves:
    """High and low half of the 64-bit product with the multiplier, for which JAX has no operation of its own."""
    with jax.enable_x64(True):
        product = x.astype(jnp.uint64) * jnp.uint64(_MULTIPLIER)
        return (product >> jnp.uint64(32)).astype(jnp.uint32), product.astype(jnp.uint32)


def draw(key: jax.Array | Halves, group: jax.Array) -> Halves:
    """Draws the 64 bits of every group of four elements.

    Args:
      key: uint32[2], from `derive_key`, or its two halves.
      group: uint32 of any shape: run // LANES * RUN + place in the run.

    Returns:
      Two uint32 of the shape of `group`, for `take`.
    """
    return philox2x32((group, jnp.full_like(group, 0) + key[0]), key[1])


def take(halves: Halves, lane: int | jax.Array) -> jax.Array:
    """The 16 bits of each element of a run, as uint32 below 2^16.

    Args:
      halves: from `draw`, for the run's groups.
      lane: run % LANES, an int or uint32 that broadcasts.
    """
    low, high = halves
    if isinstance(lane, int):
        half = high if lane >= 2 else low
        return half >> 16 if lane % 2 else half & jnp.uint32(0xFFFF)
    half = jnp.where(lane >= 2, high, low)
    return (half >> (lane % 2 * BITS)) & jnp.uint32(0xFFFF)


def random_bits(key: jax.Array, positions: jax.Array) -> jax.Array:
    """16 random bits for every position.

    Args:
      key: uint32[2], from `derive_key`.
      positions: uint32 of any shape, places of elements in the bucket.

    Returns:
      uint32 of the shape of `positions`, below 2^16.
    """
    run, place = positions // RUN, positions % RUN
    return take(draw(key, run // LANES * RUN + place), run % LANES)
