"""Digits to words and back, exactly, for every radix."""

from collections.abc import Callable

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from jaxtern.kernels import digits_per_word, num_words, radix as radix_lib

pytestmark = pytest.mark.optimized

RUN = radix_lib.RUN
RADICES = st.one_of(st.integers(3, 300), st.integers(3, 2**16), st.sampled_from([3, 5, 255, 1625, 1626, 65535, 65536]))


def _digits(radix: int, n: int, kind: str) -> np.ndarray:
    if kind == "random":
        return np.random.default_rng(n).integers(0, radix, n, dtype=np.uint32)
    return np.full(n, 0 if kind == "zeros" else radix - 1, np.uint32)


@pytest.fixture
def in_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the module's own lines in NumPy: IEEE float32 and uint32 as XLA's, without compiling for every radix."""
    monkeypatch.setattr(radix_lib, "jnp", np)


def test_digits_per_word_equals_exact_integer_arithmetic_for_every_radix():
    for radix in range(3, 2**16 + 1):
        digits = digits_per_word(radix)
        assert radix**digits <= 2**32 < radix ** (digits + 1)


def test_digits_per_word_is_what_the_wire_formats_promise():
    promised = {3: 20, 5: 13, 7: 11, 9: 10, 17: 7, 33: 6, 65: 5, 85: 4, 255: 4, 65536: 2}
    assert {radix: digits_per_word(radix) for radix in promised} == promised
    assert [num_words(n, 3) for n in (0, 1, 2560, 2561, 2**25)] == [0, 128, 128, 256, 13108 * 128]


@pytest.mark.parametrize("radix", [2, 0, -3, 65537, 3.0, "3", None, True])
def test_digits_per_word_refuses_what_is_no_radix(radix: object):
    with pytest.raises(ValueError, match=r"radix=.*must be an integer from 3 to 65536"):
        digits_per_word(radix)  # type: ignore[arg-type]


def unpack(words: jax.Array, radix: int, size: int) -> jax.Array:
    """The digits of whole words."""
    return radix_lib.unpack_planes(words.reshape(-1, RUN), radix).reshape(-1)[:size].astype(jnp.uint32)


@settings(max_examples=30)
@given(RADICES, st.one_of(st.integers(0, 3), st.integers(0, 5000)), st.sampled_from(["random", "zeros", "largest"]))
def test_words_are_planar_and_unpack_inverts_pack(numpy_pack: Callable, radix: int, n: int, kind: str):
    digits, depth = _digits(radix, n, kind), digits_per_word(radix)
    tiles = np.pad(digits, (0, num_words(n, radix) * depth - n)).reshape(-1, depth, RUN)
    planes = [jnp.asarray(tiles[:, k]) for k in range(depth)]
    words = jax.jit(radix_lib.pack_planes, static_argnums=1)(planes, radix).reshape(-1)
    back = jax.jit(unpack, static_argnums=(1, 2))(words, radix, n)
    assert words.dtype == back.dtype == jnp.uint32
    np.testing.assert_array_equal(words, numpy_pack(digits, radix))
    np.testing.assert_array_equal(back, digits)


def _boundary_words(radix: int) -> np.ndarray:
    """Words beside multiples of R^k, where a rounded quotient may fall on the wrong side; the smallest, the largest."""
    top = radix ** digits_per_word(radix)
    random = np.random.default_rng(radix)
    words = [0, 1, top - 1, top - 2]
    for k in range(digits_per_word(radix)):
        multiples = [*(radix**k * random.integers(1, max(2, top // radix**k), 4)), top - radix**k]
        words += [int(multiple) + shift for multiple in multiples for shift in (-1, 0, 1)]
    return np.array([word for word in words if 0 <= word < top], np.uint32)


def _exact_digits(words: np.ndarray, radix: int) -> np.ndarray:
    powers = np.uint64(radix) ** np.arange(digits_per_word(radix), dtype=np.uint64)
    return (words.astype(np.uint64)[None] // powers[:, None]) % np.uint64(radix)


@pytest.mark.usefixtures("in_numpy")
def test_unpack_planes_is_exact_beside_every_power_for_every_radix():
    below_1626 = range(3, 1626)  # three digits or more in a word: the float products matter
    for radix in [*below_1626, *range(1626, 2**16, 61), 2**16 - 1, 2**16]:
        words = _boundary_words(radix)
        digits = radix_lib.unpack_planes(words, radix)  # type: ignore[arg-type]
        assert digits.dtype == np.float32
        np.testing.assert_array_equal(digits, _exact_digits(words, radix), err_msg=f"radix {radix}")


@pytest.mark.parametrize("radix", [3, 4, 5, 9, 23, 24, 40, 84, 85, 255, 256, 1625, 1626, 65535, 65536])
def test_unpack_planes_is_exact_when_compiled(radix: int):
    words = np.stack([_boundary_words(radix), _boundary_words(radix)[::-1]])
    digits = jax.jit(radix_lib.unpack_planes, static_argnums=1)(words, radix)
    np.testing.assert_array_equal(digits, np.stack([_exact_digits(row, radix) for row in words]))


@pytest.mark.usefixtures("in_numpy")
@pytest.mark.parametrize("levels", [1, 2, 127, 258])
def test_words_of_1_to_127_workers_add_without_a_carry(numpy_pack: Callable, levels: int):
    random = np.random.default_rng(levels)
    for num_workers in range(1, 128):
        radix = 2 * levels * num_workers + 1
        if radix > 2**16:
            break
        digits = random.integers(0, 2 * levels + 1, (num_workers, 2600), dtype=np.uint32)
        digits[:, ::RUN] = 2 * levels  # the largest sum there is, in whole words
        total = np.sum(numpy_pack(digits, radix, levels), axis=0, dtype=np.uint32)
        np.testing.assert_array_equal(unpack(total, radix, 2600), digits.sum(axis=0))  # type: ignore[arg-type]
