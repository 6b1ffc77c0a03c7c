"""Digits to words and back: word = sum over k of digit[k] * R^k, as many digits as 32 bits hold.

With R = 3 a word carries 20 trits (1.6 bits each). With R = 2LN + 1 the digits of N workers, each in [0, 2L], add
without a carry, so an ordinary integer all-reduce sums the words exactly.

The layout is planar. A run is `RUN` consecutive digits; D runs, one behind the other, make a tile, whose D planes they
are; and the words of a tile are one run, word j holding the D digits at place j of the runs. So every step is
elementwise on whole runs, needs no shuffle, and fits the threads of a GPU block. The last run is filled up, and the
last tile holds fewer runs: the planes that it lacks hold `fill`. Up to RUN - 1 words are spent so, once for all digits.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

RUN = 128  # one digit for each thread of a GPU warpgroup
WORD_BITS = 32
MIN_RADIX, MAX_RADIX = 3, 2**16


def digits_per_word(radix: int) -> int:
    """The largest D with radix^D <= 2^32.

    Raises:
      ValueError: if `radix` is not an integer in [3, 65536].
    """
    if not isinstance(radix, int) or not MIN_RADIX <= radix <= MAX_RADIX:
        raise ValueError(f"radix={radix!r}: must be an integer from {MIN_RADIX} to {MAX_RADIX}")
    digits = 1
    while radix ** (digits + 1) <= 2**WORD_BITS:
        digits += 1
    return digits


def num_words(num_digits: int, radix: int) -> int:
    """Words that `num_digits` digits take, a multiple of RUN: D runs of digits to each run of words."""
    return RUN * -(-num_digits // (RUN * digits_per_word(radix)))


def powers(radix: int) -> np.ndarray:
    """uint32[D]: radix^k, the weight of plane k."""
    return np.array([radix**k for k in range(digits_per_word(radix))], np.uint32)


def pack_planes(planes: Sequence[jax.Array], radix: int) -> jax.Array:
    """Words of up to D planes of digits, all uint32 of one shape; the planes that are missing count as zeros."""
    words = planes[0]
    for plane, weight in zip(planes[1:], powers(radix)[1:], strict=False):
        words = words + plane * weight
    return words


def unpack_planes(words: jax.Array, radix: int) -> jax.Array:
    """uint32[..., RUN] words to the digits of their planes, as exact float32[..., D, RUN].

    digit[k] = floor(word / R^k) - R floor(word / R^(k+1)). CPUs divide integer vectors slowly, so a word is cut into
    two halves of at most R^ceil(D/2) < 2^22, and (half + 1/2) / R^k is a float product: 1/(2 R^k) or more away from any
    whole number, it cannot round across one.
    """
    depth = digits_per_word(radix)
    low_depth = -(-depth // 2)
    half = np.uint32(radix**low_depth)
    plane = np.arange(depth).reshape((1,) * (words.ndim - 1) + (depth, 1))
    is_low, exponents = plane < low_depth, plane % low_depth
    words = words[..., None, :]
    halves = jnp.where(is_low, words % half, words // half).astype(jnp.float32) + 0.5
    this, above = (np.float32(float(radix) ** -(exponents + shift)) for shift in (0, 1))
    return jnp.floor(halves * this) - radix * jnp.floor(halves * above)
