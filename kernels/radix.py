"""Packs digits into 32-bit words and back: word = sum over k of digit[k] * R^k, with as many digits as fit.

With R = 3 a word holds 20 trits (1.6 bits each). With R = 2LN + 1 the digits of N workers, each in [0, 2L], add without
a carry, so an ordinary integer all-reduce sums the words exactly.

The layout is planar. A run is `RUN` consecutive digits. D consecutive runs make a tile, and are its D planes. The words
of a tile are one run: word j holds the D digits at place j of the runs. So every step is elementwise on whole runs,
needs no shuffle, and fits the threads of a GPU block. The last run and the last tile are filled up, which costs at most
RUN - 1 words.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

RUN = 128  # one digit for each thread of a GPU warpgroup
MIN_RADIX, MAX_RADIX = 3, 2**16


def digits_per_word(radix: int) -> int:
    """Digits of a word: the largest D with radix^D <= 2^32; ValueError unless radix is an integer in [3, 65536]."""
    if not isinstance(radix, int) or not MIN_RADIX <= radix <= MAX_RADIX:
        raise ValueError(f"radix={radix!r}: must be an integer from {MIN_RADIX} to {MAX_RADIX}")
    digits = 1
    while radix ** (digits + 1) <= 2**32:
        digits += 1
    return digits


def num_words(num_digits: int, radix: int) -> int:
    """The number of words for `num_digits` digits, a multiple of RUN: a run of words for every D runs of digits."""
    return RUN * -(-num_digits // (RUN * digits_per_word(radix)))


def pack_planes(planes: Sequence[jax.Array], radix: int) -> jax.Array:
    """Packs up to D planes of digits, uint32 of one shape, into words; missing planes count as zeros."""
    words = planes[0]
    for k, plane in enumerate(planes[1:], 1):
        words = words + plane * np.uint32(radix**k)
    return words


def unpack_planes(words: jax.Array, radix: int) -> jax.Array:
    """Unpacks uint32[..., RUN] words to the digits of their planes, exact in float32[..., D, RUN].

    digit[k] = floor(word / R^k) - R floor(word / R^(k+1)). As CPUs divide integer vectors slowly, words are cut into
    halves below R^ceil(D/2) < 2^22, and multiplied as floats: (half + 1/2) / R^k is at least 1/(2 R^k) away from any
    whole number, so rounding cannot cross one.
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
