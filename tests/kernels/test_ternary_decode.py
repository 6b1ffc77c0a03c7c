"""Words of one or many workers to the mean: the sum is exact in integers, whatever the rows are."""

import functools
from collections.abc import Callable

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from jaxtern.kernels import Segments, decode_span, ternary_decode
from jaxtern.kernels.dither import Dither

pytestmark = pytest.mark.optimized


@functools.cache
def _compiled(segments: Segments, **options) -> Callable:
    return jax.jit(lambda words, scales: ternary_decode(words, scales, segments, **options))


def _decode(words: np.ndarray, scales: list[float], segments: Segments, **options) -> np.ndarray:
    return np.asarray(_compiled(segments, **options)(words, np.array(scales, np.float32)))


@given(st.integers(1, 127), st.integers(1, 200), st.sampled_from([1, 2, 7, 100]), st.integers(0, 2**30))
def test_the_mean_is_the_exact_sum_times_one_unit_for_rows_of_one_worker_or_of_all(
    assert_exact_mean: Callable, numpy_pack: Callable, n: int, size: int, levels: int, seed: int
):
    random = np.random.default_rng(seed)
    drawn = random.integers(-levels, levels + 1, (n, size))
    drawn[:, 0] = random.choice([-levels, levels])  # the largest sums
    scale = float(np.float32(random.uniform(1e-3, 10)))
    options = {"num_workers": n, "levels": levels}
    rows = numpy_pack(drawn + levels, 2 * levels + 1)
    gathered = _decode(rows, [scale], Segments((size,)), radix=2 * levels + 1, **options)
    assert_exact_mean(gathered, drawn.sum(axis=0), scale, n * levels)
    radix = 2 * levels * n + 1
    words = numpy_pack(drawn + levels, radix).sum(axis=0, dtype=np.uint32)[None]
    added = _decode(words, [scale], Segments((size,)), radix=radix, **options)
    np.testing.assert_array_equal(added, gathered)


def test_rows_may_each_hold_the_sum_of_several_workers(assert_exact_mean: Callable, numpy_pack: Callable):
    drawn = np.random.default_rng(0).integers(-1, 2, (12, 50))
    for rows in (1, 2, 3, 4, 6, 12):
        radix = 2 * (12 // rows) + 1
        words = numpy_pack(drawn + 1, radix).reshape(rows, 12 // rows, -1).sum(axis=1, dtype=np.uint32)
        found = _decode(words, [0.7], Segments((50,)), num_workers=12, radix=radix)
        assert_exact_mean(found, drawn.sum(axis=0), 0.7, 12)


@pytest.mark.parametrize("num_workers", [7, 8, 9, 64])
def test_the_mean_does_not_depend_on_the_order_of_workers(
    assert_exact_mean: Callable, numpy_pack: Callable, num_workers: int
):
    drawn = np.random.default_rng(1).integers(-1, 2, (num_workers, 1000))
    words, segments = numpy_pack(drawn + 1, 3), Segments((1000,))
    forth, back = (_decode(w, [0.3], segments, num_workers=num_workers) for w in (words, words[::-1]))
    np.testing.assert_array_equal(forth, back)
    assert_exact_mean(forth, drawn.sum(axis=0), 0.3, num_workers)


@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("block_size", [None, 4])
def test_a_scale_that_is_not_finite_makes_its_own_segment_nan_and_no_other(
    numpy_pack: Callable, scale: float, block_size: int | None
):
    segments = Segments((6, 7, 5), block_size)
    words = numpy_pack(np.full(18, 2), 3)[None]
    scales = np.ones(segments.num_scales, np.float32)
    scales[segments.scale_counts[0]] = scale  # the first of the second tensor
    nan = np.isnan(_decode(words, scales.tolist(), segments, num_workers=1))
    first, end = 6, 13 if block_size is None else 10
    np.testing.assert_array_equal(nan, [first <= i < end for i in range(18)])


def test_a_zero_digit_under_an_infinite_scale_is_nan_too(numpy_pack: Callable):
    words = numpy_pack(np.ones(3, np.int64), 3)[None]
    assert np.all(np.isnan(_decode(words, [np.inf], Segments((3,)), num_workers=1)))


def test_each_tile_of_words_may_have_a_scale_of_its_own(numpy_pack: Callable):
    """In a bucket, and in a span of it that begins within a tensor: the same bits, each once rounded."""
    random, segments = np.random.default_rng(0), Segments((3000, 1, 4000))
    drawn, start, size = random.integers(-1, 2, segments.num_elements), 300, 5500
    scales, tile_scales = jnp.array([0.7, 1.3, 3.1]), jnp.asarray(random.uniform(0.1, 2, 3), jnp.float32)
    units = np.float32(np.repeat(scales, segments.sizes))
    into = [jnp.full(own, 9.0) for own in segments.sizes]
    for implementation in ("reference", "native"):
        options = {"num_workers": 1, "tile_scales": tile_scales, "implementation": implementation}
        mean = ternary_decode(numpy_pack(drawn + 1, 3)[None], scales, segments, **options)
        by_tile = np.repeat(tile_scales, 2560)
        np.testing.assert_allclose(mean, drawn * units * by_tile[: drawn.size], rtol=3e-7)
        words = numpy_pack(drawn[start : start + size] + 1, 3)[None]
        found = np.concatenate(decode_span(words, scales, segments, into, start=start, size=size, **options))
        expected = drawn[start : start + size] * units[start : start + size] * by_tile[:size]
        np.testing.assert_allclose(found[start : start + size], expected, rtol=3e-7)
        np.testing.assert_array_equal(np.delete(found, np.arange(start, start + size)), 9.0)


def test_decode_refuses_what_does_not_fit():
    arguments = {
        "words": jnp.zeros((2, 128), jnp.uint32),
        "scales": jnp.ones(1),
        "segments": Segments((3,)),
        "num_workers": 2,
    }
    bad = {
        r"words\.shape=\(1,\): must be \[rows, words\]": {"words": jnp.zeros(1, jnp.uint32)},
        r"words\.shape=\(0, 128\): must be \[rows, words\]": {"words": jnp.zeros((0, 128), jnp.uint32)},
        r"words\.shape=\(2, 128\): .* rows dividing num_workers=3": {"num_workers": 3},
        r"words is int32\[2, 128\]: must be uint32\[2, 128\]": {"words": jnp.zeros((2, 128), jnp.int32)},
        r"words is uint32\[2, 129\]: must be uint32\[2, 128\]": {"words": jnp.zeros((2, 129), jnp.uint32)},
        r"scales is float32\[0\]: must be float32\[1\]": {"scales": jnp.ones(0)},
        r"radix=3: 2 workers of 1 levels a side need 5 or more": {"num_workers": 4},
        r"radix=3: 1 workers of 2 levels a side need 5 or more": {"levels": 2},
        r"dither\.count=3: must be num_workers=2": {"dither": Dither(jnp.zeros(4, jnp.uint32), 3)},
        r"tile_scales is float32\[2\]: must be float32\[1\]": {"tile_scales": jnp.ones(2)},
        r"ternary_decode: implementation='': must be one of": {"implementation": ""},
    }
    ternary_decode(**arguments)
    for message, argument in bad.items():
        with pytest.raises(ValueError, match=message):
            ternary_decode(**(arguments | argument))
