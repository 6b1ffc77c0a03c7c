"""Counter-based random bits: a pure function of (seed, step, worker, position).

There is no state to carry or to store: any worker, device or host can compute any bit of the stream on its own, so N
virtual workers on one device draw exactly what N hosts draw. Everything here is elementwise uint32 arithmetic, the same
in plain jnp and inside a GPU kernel.

The mixing function is the two-multiply 32-bit hash found by C. Wellons' hash-prospector search (2018-2022; bias about
0.11), used twice with the two halves of a 64-bit key, so that streams of different keys do not share a permutation.
"""

import jax
import jax.numpy as jnp

_ROUNDS = 4
_GOLDEN = 0x9E3779B9  # 2^32 / golden ratio: spreads consecutive round numbers over the word


def _mix(x: jax.Array) -> jax.Array:
    """Bijective avalanche of uint32 values."""
    x = x ^ (x >> 16)
    x = x * jnp.uint32(0x21F0AAAD)
    x = x ^ (x >> 15)
    x = x * jnp.uint32(0xD35A2D97)
    return x ^ (x >> 15)


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
    seed, left, right = (_as_uint32(value) for value in (seed, step, worker))
    for round_index in range(_ROUNDS):
        round_key = _mix(seed + jnp.uint32((round_index + 1) * _GOLDEN % 2**32))
        left, right = right, left ^ _mix(right + round_key)
    return jnp.stack([left, right])


def _as_uint32(value: jax.typing.ArrayLike) -> jax.Array:
    return jnp.uint32(value) if isinstance(value, int) else jnp.asarray(value).astype(jnp.uint32)


def random_bits(key: jax.Array, positions: jax.Array) -> jax.Array:
    """32 random bits for every position.

    bits = mix(mix(position xor key[0]) + key[1])

    Args:
      key: uint32[2], from `derive_key`.
      positions: uint32 of any shape: the element's place in the flattened gradient.

    Returns:
      uint32 of the shape of `positions`.
    """
    return _mix(_mix(positions ^ key[0]) + key[1])
