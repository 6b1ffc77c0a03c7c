"""Counter-based random bits: a pure function of (seed, step, worker, position).

There is no state to carry or to store: any worker, device or host can compute any bit of the stream on its own, so N
virtual workers on one device draw exactly what N hosts draw. Everything here is elementwise integer arithmetic, the
same in plain jnp and inside a GPU kernel.

The generator is Philox 2x32 with seven rounds, the fewest that pass BigCrush (Salmon et al., "Parallel random numbers:
as easy as 1, 2, 3", SC 2011). Its 64 bits serve four elements with 16 bits each: the elements at the same place of four
consecutive runs, a run being `RUN` elements (see radix.py). docs/benchmarks.md has the tests, and why this generator.
"""

import jax
import jax.numpy as jnp

from .radix import RUN

LANES = 4  # runs that share the output of one generator call
BITS = 16  # random bits an element

_ROUNDS = 7
_MULTIPLIER = 0xD256D193
_WEYL = 0x9E3779B9  # 2^32 / golden ratio

_KEY_ROUNDS = 4

Halves = tuple[jax.Array, jax.Array]


def derive_key(seed: jax.typing.ArrayLike, step: jax.typing.ArrayLike, worker: jax.typing.ArrayLike) -> jax.Array:
    """The key of one worker's noise at one step.

    A Feistel network of four rounds keyed by `seed` permutes the 64 bits (step, worker), so under one seed no two
    (step, worker) pairs ever share a key.

    Args:
      seed: uint32 scalar (or any integer below 2^32).
      step: uint32 scalar, the number of updates before this one.
      worker: uint32 scalar, the worker's index along the exchange axes.

    Returns:
      uint32[2].
    """
    seed, left, right = (jnp.asarray(value, jnp.uint32) for value in (seed, step, worker))
    for round_index in range(_KEY_ROUNDS):
        round_key = mix(seed + jnp.uint32((round_index + 1) * _WEYL % 2**32))
        left, right = right, left ^ mix(right + round_key)
    return jnp.stack([left, right])


def mix(x: jax.Array) -> jax.Array:
    """Bijective avalanche of uint32 values: the two-multiply hash of C. Wellons' hash-prospector search (2018-2022)."""
    x = x ^ (x >> 16)
    x = x * jnp.uint32(0x21F0AAAD)
    x = x ^ (x >> 15)
    x = x * jnp.uint32(0xD35A2D97)
    return x ^ (x >> 15)


def philox2x32(counter: Halves, key: jax.Array, rounds: int = _ROUNDS) -> Halves:
    """Philox 2x32: 64 random bits of a 64-bit counter and a 32-bit key, all uint32 of shapes that broadcast."""
    left, right = counter
    for _ in range(rounds):
        high, low = _multiply(left)
        left, right = high ^ key ^ right, low
        key = key + jnp.uint32(_WEYL)
    return left, right


def _multiply(x: jax.Array) -> Halves:
    """High and low half of the 64-bit product with the multiplier: one instruction, but not one that JAX has."""
    with jax.enable_x64(True):
        product = x.astype(jnp.uint64) * jnp.uint64(_MULTIPLIER)
        return (product >> jnp.uint64(32)).astype(jnp.uint32), product.astype(jnp.uint32)


def draw(key: jax.Array | Halves, group: jax.Array) -> Halves:
    """The 64 bits of every group of four elements.

    Args:
      key: uint32[2], from `derive_key`, or its two halves.
      group: uint32 of any shape: run // LANES * RUN + place in the run.

    Returns:
      Two uint32 of the shape of `group`, for `take`.
    """
    return philox2x32((group, jnp.full_like(group, 0) + key[0]), key[1])


def take(halves: Halves, lane: int | jax.Array) -> jax.Array:
    """The 16 bits of the elements of one run, as uint32 below 2^16.

    Args:
      halves: what `draw` returned for the run's groups.
      lane: run % LANES, an int or uint32 that broadcasts.
    """
    low, high = halves
    if isinstance(lane, int):
        half = high if lane >= 2 else low
        return half >> 16 if lane % 2 else half & jnp.uint32(0xFFFF)
    half = jnp.where(lane >= 2, high, low)
    return (half >> (lane % 2 * BITS)) & jnp.uint32(0xFFFF)


def random_bits(key: jax.Array, positions: jax.Array) -> jax.Array:
    """16 random bits for every position, in whatever order they are asked for.

    Args:
      key: uint32[2], from `derive_key`.
      positions: uint32 of any shape: the element's place in the bucket.

    Returns:
      uint32 of the shape of `positions`, below 2^16.
    """
    run, place = positions // RUN, positions % RUN
    return take(draw(key, run // LANES * RUN + place), run % LANES)
