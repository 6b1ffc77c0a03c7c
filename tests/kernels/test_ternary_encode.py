"""What ternary_encode promises for every gradient: the digits, their layout, and what cannot be divided by."""

import functools
from collections.abc import Callable

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from jaxtern.kernels import Segments, derive_key, num_words, ternary_decode, ternary_encode

pytestmark = pytest.mark.optimized

KEY = np.array([0x01234567, 0x89ABCDEF], np.uint32)
RADICES = [3, 5, 7, 9, 17, 65536]


@functools.cache
def _compiled(op: Callable, segments: Segments, **options) -> Callable:
    return jax.jit(lambda *arrays: op(*arrays, segments, **options))


def _encode(
    gradient: np.ndarray, scales: list[float], segments: Segments, key: np.ndarray = KEY, **options
) -> np.ndarray:
    encode = _compiled(ternary_encode, segments, **options)
    return jax.tree.map(np.asarray, encode(gradient, np.array(scales, np.float32), key))


@pytest.fixture(scope="session")
def levels_of(numpy_unpack: Callable) -> Callable[..., np.ndarray]:
    """The digits of words, less L."""
    return lambda words, size, radix=3, levels=1: numpy_unpack(words, radix, size) - levels


def _decode(words: np.ndarray, scales: list[float], segments: Segments, **options) -> np.ndarray:
    decode = _compiled(ternary_decode, segments, num_workers=1, **options)
    return np.asarray(decode(words[None], np.array(scales, np.float32)))


@given(st.integers(0, 3000), st.integers(1, 5), st.integers(0, 2**30))
def test_encode_rounds_as_numpy_does_for_any_size(
    levels_of: Callable, numpy_levels: Callable, size: int, levels: int, seed: int
):
    random = np.random.default_rng(seed)
    gradient = random.standard_normal(size, np.float32)
    scale, radix = np.float32(random.uniform(0.5, 3)), int(random.integers(2 * levels + 1, 200))
    scales = [scale] if size else []
    key = np.asarray(derive_key(seed, 11, 5))
    words = _encode(gradient, scales, Segments((size,)), key, radix=radix, levels=levels)
    expected = numpy_levels(gradient, scale, seed=seed, step=11, worker=5, levels=levels)
    np.testing.assert_array_equal(levels_of(words, size, radix, levels), expected)


@pytest.mark.parametrize("scale", [1.0, 0.3, 3e-5, 1e30, 2.0**-100])
def test_round_trip_gives_minus_scale_zero_or_scale(levels_of: Callable, assert_exact_mean: Callable, scale: float):
    gradient = np.random.default_rng(0).standard_normal(1000, np.float32) * np.float32(scale)
    words = _encode(gradient, [scale], Segments((1000,)))
    trits = levels_of(words, 1000)
    assert set(np.unique(trits)) == {-1, 0, 1}
    assert np.all((trits == 0) | (trits == np.sign(gradient)))
    assert_exact_mean(_decode(words, [scale], Segments((1000,))), trits, scale, 1)


@pytest.mark.parametrize("levels", [1, 2, 64, 128, 16384])
def test_whole_levels_are_never_rounded(levels_of: Callable, levels: int):
    level = np.unique(np.linspace(-levels, levels, 500).round()).astype(np.int64)
    gradient = (level / levels / 8).astype(np.float32)  # exact: a quotient of powers of two
    words = _encode(gradient, [1 / 8], Segments((level.size,)), radix=2 * levels + 1, levels=levels)
    np.testing.assert_array_equal(levels_of(words, level.size, 2 * levels + 1, levels), level)


@pytest.mark.parametrize("levels", [1, 2, 3, 7, 127, 128, 1000, 32767])
def test_beyond_the_scale_lies_the_last_level(levels_of: Callable, levels: int):
    gradient = np.array([1, 1.001, 3, 1e9, 3e38, -1, -1.001, -3, -1e9, -3e38], np.float32)
    words = _encode(gradient, [1.0], Segments((10,)), radix=2 * levels + 1, levels=levels)
    np.testing.assert_array_equal(levels_of(words, 10, 2 * levels + 1, levels), [levels] * 5 + [-levels] * 5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_gradients_round_as_their_float32_values(dtype: jnp.dtype):
    gradient = jnp.asarray(np.random.default_rng(1).standard_normal(500), dtype)
    segments = Segments((500,))
    words = _encode(gradient, [1.5], segments)  # type: ignore[arg-type]
    np.testing.assert_array_equal(words, _encode(np.asarray(gradient, np.float32), [1.5], segments))


def test_zero_gradients_and_scales_too_small_to_divide_by_give_zero_digits(levels_of: Callable):
    segments = Segments((50, 50, 50, 50))
    gradient = np.concatenate([np.zeros(50), np.full(50, 1e-38), np.full(50, 3.0), np.full(50, -(2.0**-101))])
    words = _encode(gradient.astype(np.float32), [1.0, 1e-38, 0.0, 2.0**-101], segments)
    np.testing.assert_array_equal(levels_of(words, 200), 0)


@pytest.mark.parametrize("scale", [1.0, np.nan, np.inf])
@pytest.mark.parametrize("value", [1.0, 0.0, np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("levels", "num_workers"), [(1, 1), (1, 16), (7, 3), (1000, 5)])
def test_what_is_not_finite_stays_within_its_own_digits_and_decodes_to_nan(
    levels_of: Callable, scale: float, value: float, levels: int, num_workers: int
):
    segments, radix = Segments((33, 45, 33)), 2 * levels * num_workers + 1
    gradient = np.random.default_rng(0).standard_normal(111).astype(np.float32)
    gradient[33:78:2] = value
    options = {"radix": radix, "levels": levels}
    words = _encode(gradient, [1.0, scale, 2.0], segments, **options)
    found = levels_of(words, 111, **options)
    assert np.all(np.abs(found) <= levels)

    calm = _encode(np.where(np.isfinite(gradient), gradient, 0), [1.0, 1.0, 2.0], segments, **options)
    others = np.r_[:33, 78:111]
    np.testing.assert_array_equal(found[others], levels_of(calm, 111, **options)[others])
    decoded = _decode(words, [1.0, scale, 2.0], segments, **options)
    np.testing.assert_array_equal(np.isnan(decoded), np.repeat([False, scale != 1, False], [33, 45, 33]))


def _encode_in_each(gradient: np.ndarray, key: np.ndarray, radices: list[int], **options) -> list[jax.Array]:
    """Under a scale of 2, by one program."""
    segments = Segments((gradient.size,))
    encode = jax.jit(lambda *arrays: [ternary_encode(*arrays, segments, radix=each, **options) for each in radices])
    return encode(gradient, np.array([2.0], np.float32), key)


@pytest.mark.parametrize("runs", [1, 2, 19, 20, 21, 39, 40, 41, 60, 83])
@pytest.mark.parametrize("rest", [0, 1])
def test_encode_rounds_as_numpy_does_around_the_ends_of_tiles(
    levels_of: Callable, numpy_levels: Callable, runs: int, rest: int
):
    n = 128 * runs + rest
    gradient = np.random.default_rng(n).standard_normal(n, np.float32)
    expected = numpy_levels(gradient, 2.0)
    for radix, words in zip(RADICES, _encode_in_each(gradient, derive_key(0, 0, 0), RADICES), strict=True):
        np.testing.assert_array_equal(levels_of(np.asarray(words), n, radix), expected)


@pytest.mark.few("2433")
@pytest.mark.parametrize("n", [128 * 19 + 1, 128 * 20, 128 * 41 + 1])
def test_plain_jax_encodes_to_the_words_of_c_around_the_ends_of_tiles(n: int):
    gradient = np.random.default_rng(n).standard_normal(n, np.float32)
    plain = _encode_in_each(gradient, KEY, RADICES, implementation="reference")
    jax.tree.map(np.testing.assert_array_equal, plain, _encode_in_each(gradient, KEY, RADICES))


@pytest.mark.parametrize("offset", [0, 512, 2**20])
def test_a_bucket_holds_what_its_tensors_round_to_alone_at_their_offset(
    levels_of: Callable, numpy_levels: Callable, offset: int
):
    sizes = (700, 0, 90, 3)
    gradient = np.random.default_rng(5).standard_normal(793).astype(np.float32)
    words = _encode(gradient, [1.0, 2.0, 3.0], Segments(sizes), np.asarray(derive_key(0, 0, 0)), offset=offset)
    places = ((0, 700, 1.0), (700, 790, 2.0), (790, 793, 3.0))
    expected = [numpy_levels(gradient[a:b], scale, offset=offset + a) for a, b, scale in places]
    np.testing.assert_array_equal(levels_of(words, 793), np.concatenate(expected))


def test_noise_positions_reach_the_end_of_the_stream(levels_of: Callable, numpy_levels: Callable):
    gradient = np.random.default_rng(6).standard_normal(64, np.float32)
    words = _encode(gradient, [2.0], Segments((64,)), np.asarray(derive_key(0, 0, 0)), offset=2**32 - 512)
    np.testing.assert_array_equal(levels_of(words, 64), numpy_levels(gradient, 2.0, offset=2**32 - 512))


@pytest.mark.parametrize("block_size", [1, 7, 40, 100])
def test_every_block_rounds_under_its_own_scale(
    levels_of: Callable, numpy_levels: Callable, assert_exact_mean: Callable, block_size: int
):
    segments = Segments((40, 13), block_size)
    gradient = np.random.default_rng(7).standard_normal(53, np.float32)
    scales = np.random.default_rng(8).uniform(0.5, 3, segments.num_scales).astype(np.float32)
    words = _encode(gradient, scales.tolist(), segments, np.asarray(derive_key(0, 0, 0)))
    per_block = [(start, i) for start, size in ((0, 40), (40, 13)) for i in range(start, start + size, block_size)]
    expected = [
        numpy_levels(gradient[i : min(i + block_size, 40 if start == 0 else 53)], scale, offset=i)
        for (start, i), scale in zip(per_block, scales, strict=True)
    ]
    np.testing.assert_array_equal(levels_of(words, 53), np.concatenate(expected))
    spread = np.concatenate([np.full(e.size, scale) for e, scale in zip(expected, scales, strict=True)])
    assert_exact_mean(_decode(words, scales.tolist(), segments), np.concatenate(expected), spread, 1)


def test_an_empty_bucket_takes_no_words():
    for sizes in ((), (0,), (0, 0)):
        assert _encode(np.zeros(0, np.float32), [], Segments(sizes)).shape == (num_words(0, 3),) == (0,)
        assert _decode(np.zeros(0, np.uint32), [], Segments(sizes)).shape == (0,)


BAD = {
    r"gradient\.dtype=int32: must be a floating-point type": {"gradient": jnp.zeros(3, jnp.int32)},
    r"gradient\.shape=\(4,\): the segments hold \(3,\) elements": {"gradient": jnp.zeros(4)},
    r"scales is float32\[2\]: must be float32\[1\]": {"scales": jnp.ones(2)},
    r"scales is bfloat16\[1\]: must be float32\[1\]": {"scales": jnp.ones(1, jnp.bfloat16)},
    r"key is int32\[2\]: must be uint32\[2\]": {"key": jnp.zeros(2, jnp.int32)},
    r"radix=4: 1 workers of 2 levels a side need 5 or more": {"radix": 4, "levels": 2},
    r"radix=65537: must be an integer from 3 to 65536": {"radix": 65537},
    r"levels=0: must be an integer of 1 or more": {"levels": 0},
    r"levels=1\.0: must be an integer of 1 or more": {"levels": 1.0},
    r"offset=4294967296: must be a multiple of 512 from which 3 elements end below 2\^32": {"offset": 2**32},
    r"offset=-512: must be": {"offset": -512},
    r"offset=3: must be a multiple of 512": {"offset": 3},
    r"ternary_encode: implementation='cuda': must be one of": {"implementation": "cuda"},
}


@pytest.mark.parametrize("message", BAD)
def test_encode_refuses_what_does_not_fit(message: str):
    arguments = {"gradient": jnp.zeros(3), "scales": jnp.ones(1), "key": jnp.asarray(KEY), "segments": Segments((3,))}
    with pytest.raises(ValueError, match=message):
        ternary_encode(**(arguments | BAD[message]))
