"""Digits to words and back: word = sum over k of digit[k] * R^k, as many digits as 32 bits hold.

With R = 3 a word carries 20 trits (1.6 bits each). With R = 2LN + 1 the digits of N workers, each in [0, 2L], add
without a carry, so an ordinary integer all-reduce sums the words exactly.

The layout is planar: of n digits in W words, word j holds the digits j, j + W, j + 2W, ... One plane is one contiguous
run, so packing is elementwise and needs no shuffle. Places behind the last digit hold `fill`.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

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
    """Words that `num_digits` digits take: ceil(num_digits / digits_per_word(radix))."""
    return -(-num_digits // digits_per_word(radix))


def powers(radix: int) -> np.ndarray:
    """uint32[D]: radix^k, the weight of plane k."""
    return np.array([radix**k for k in range(digits_per_word(radix))], np.uint32)


def pack_planes(planes: jax.Array | Sequence[jax.Array], radix: int) -> jax.Array:
    """Words of D planes of digits, given as one array [D, W] or as a list of D arrays [W]; uint32[W].

    The list form lets XLA fuse whatever computes a plane into one loop over the words.
    """
    weights = powers(radix)
    if isinstance(planes, jax.Array):
        return jnp.sum(planes * weights[:, None], axis=0, dtype=jnp.uint32)
    words = planes[0]
    for plane, weight in zip(planes[1:], weights[1:], strict=True):
        words = words + plane * weight
    return words


def pack(digits: jax.Array, radix: int, fill: int = 0) -> jax.Array:
    """Packs n digits into words.

    Args:
      digits: uint32[n], each in [0, radix).
      radix: R, 3 to 65536.
      fill: the digit behind the last one, in [0, radix).

    Returns:
      uint32[num_words(n, radix)].
    """
    width = num_words(digits.size, radix)
    padded = jnp.pad(digits, (0, width * digits_per_word(radix) - digits.size), constant_values=fill)
    return pack_planes(padded.reshape(-1, width), radix) if width else padded


def unpack_planes(words: jax.Array, radix: int) -> jax.Array:
    """uint32[rows, W] words to the digits of their planes, as exact float32[rows, D, W].

    digit[k] = floor(word / R^k) - R floor(word / R^(k+1)). CPUs divide integer vectors slowly, so a word is cut into
    two halves of at most R^ceil(D/2) < 2^22, and (half + 1/2) / R^k is a float product: 1/(2 R^k) or more away from any
    whole number, it cannot round across one.
    """
    depth = digits_per_word(radix)
    low_depth = -(-depth // 2)
    half = np.uint32(radix**low_depth)
    is_low = (np.arange(depth) < low_depth)[None, :, None]
    exponents = (np.arange(depth) % low_depth)[None, :, None]
    halves = jnp.where(is_low, (words % half)[:, None, :], (words // half)[:, None, :]).astype(jnp.float32) + 0.5
    this, above = (np.float32(float(radix) ** -(exponents + shift)) for shift in (0, 1))
    return jnp.floor(halves * this) - radix * jnp.floor(halves * above)


def unpack(words: jax.Array, radix: int, num_digits: int) -> jax.Array:
    """The inverse of `pack`.

    Args:
      words: uint32[num_words(num_digits, radix)].
      radix: R, 3 to 65536.
      num_digits: n.

    Returns:
      uint32[n], each in [0, radix).
    """
    if words.shape != (num_words(num_digits, radix),):
        raise ValueError(
            f"words.shape={words.shape}: {num_digits} digits of radix {radix} take ({num_words(num_digits, radix)},)"
        )
    return unpack_planes(words[None], radix).reshape(-1)[:num_digits].astype(jnp.uint32)
