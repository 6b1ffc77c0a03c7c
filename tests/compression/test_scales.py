"""s = min(c sigma, max|g|), and its rounding to powers of two."""

import functools
from collections.abc import Callable

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import example, given

from jaxtern.compression.radix import scales
from jaxtern.kernels import Segments


@functools.cache
def _local_scales(segments: Segments) -> Callable:
    return jax.jit(lambda g, c: scales.measure(g, segments, c, False, "auto").scales)


def _scales(gradient: np.ndarray, clip_sigmas: float, segments: Segments | None = None) -> np.ndarray:
    segments = segments or Segments((gradient.size,))
    return np.asarray(_local_scales(segments)(gradient, np.float32(clip_sigmas)))


@pytest.mark.parametrize("clip_sigmas", [0.5, 1.0, 2.5, 3.5])
@pytest.mark.parametrize("block_size", [None, 100])
def test_scale_is_clip_sigmas_standard_deviations_but_at_most_the_maximum(clip_sigmas: float, block_size: int | None):
    random = np.random.default_rng(0)
    gradient = np.concatenate([random.standard_normal(1000), random.choice([-1, 1], 300) * 0.1 + 5]).astype(np.float32)
    blocks = np.split(gradient, [1000] if block_size is None else range(100, 1300, 100))
    expected = [min(clip_sigmas * block.std(dtype=np.float64), np.abs(block).max()) for block in blocks]
    found = _scales(gradient, clip_sigmas, Segments((1000, 300), block_size))
    np.testing.assert_allclose(found, expected, rtol=2.0**-11)


def test_without_clipping_the_scale_is_the_maximum():
    gradient = np.random.default_rng(1).standard_normal(1000, np.float32)
    assert _scales(gradient, 0.0) == np.abs(gradient).max()
    assert _scales(gradient, 1e30) == np.abs(gradient).max()


@pytest.mark.parametrize("value", [0.0, 3.0, -0.1])
@pytest.mark.parametrize("n", [1, 1000])
def test_a_constant_tensor_is_not_clipped(value: float, n: int):
    assert _scales(np.full(n, value, np.float32), 2.5) == np.float32(abs(value))


@pytest.mark.parametrize("clip_sigmas", [0.0, 2.5])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_makes_the_scale_infinite_so_that_any_maximum_keeps_it(bad: float, clip_sigmas: float):
    gradient = np.arange(30, dtype=np.float32)
    gradient[13] = bad
    found = _scales(gradient, clip_sigmas, Segments((10, 10, 10)))
    np.testing.assert_array_equal(np.isposinf(found), [False, True, False])


def test_an_empty_bucket_has_no_scales():
    assert _scales(np.zeros(0, np.float32), 2.5).shape == (0,)


@given(st.floats(2.0**-126, 2.0**127, width=32))
@example(1.0)
@example(float(np.nextafter(np.float32(1), np.float32(2))))
@example(float(np.nextafter(np.float32(2), np.float32(1))))
def test_pow2_is_the_smallest_power_of_two_not_below_the_scale(scale: float):
    (rounded,) = np.asarray(scales.round_scales(np.array([scale], np.float32), "pow2")).astype(np.float64)
    assert np.frexp(rounded)[0] == 0.5
    assert rounded / 2 < scale <= rounded


def test_pow2_keeps_zero_and_every_power_of_two():
    exact = np.concatenate([[0], 2.0 ** np.arange(-126, 128)]).astype(np.float32)
    np.testing.assert_array_equal(scales.round_scales(exact, "pow2"), exact)


@pytest.mark.parametrize("rounding", scales.ROUNDINGS)
def test_a_scale_that_is_not_finite_becomes_nan_and_no_other_changes(rounding: str):
    rounded = np.asarray(scales.round_scales(np.array([np.inf, np.nan, 4.0], np.float32), rounding))
    np.testing.assert_array_equal(rounded, np.array([np.nan, np.nan, 4.0], np.float32))


def test_exact_keeps_the_scale():
    kept = np.random.default_rng(2).uniform(1e-6, 1e6, 100).astype(np.float32)
    np.testing.assert_array_equal(scales.round_scales(kept, "exact"), kept)
