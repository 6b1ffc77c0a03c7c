"""s = min(c sigma, max|g|) of a worker, and the scale that all share."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtern import Group
from jaxtern.compression.collectives import Axes
from jaxtern.compression.radix import scales
from jaxtern.compression.radix.quantizer import Quantizer
from jaxtern.compression.radix.scales import Measured
from jaxtern.compression.transform import layout_of
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


@pytest.mark.parametrize(("size", "is_clipped"), [(1.0, True), (1e-15, True), (1e-21, False)])
def test_a_rotated_tensor_whose_squares_underflow_is_not_clipped(size: float, is_clipped: bool):
    gradient = (np.random.default_rng(2).standard_normal(4096) * size).astype(np.float32)
    measured = scales.measure(jnp.asarray(gradient), Segments((4096,)), 1.7, True, "auto")
    assert (measured.scales[0] < np.abs(gradient).max()) == is_clipped
    np.testing.assert_array_equal(measured.max_abs, [np.abs(gradient).max()])


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


@pytest.mark.parametrize("layout", ["vmap:2", "mesh:2"])
def test_a_shared_scale_is_the_largest_and_nan_where_one_is_not_finite(workers: Callable, layout: str):
    placed, own = workers(layout), np.array([[np.inf, 3.0, 0.0, 4.0], [1.0, 5.0, 0.0, np.inf]], np.float32)

    def share(scales: jax.Array, step: jax.Array) -> jax.Array:
        measured = Measured(scales, scales, scales, scales)
        group = Group(layout_of({}), Axes(placed.names), 1, 0, step)
        return Quantizer().share_scales([measured], group)

    shared = placed.over(share)(own, jnp.int32(0))
    np.testing.assert_array_equal(shared, np.broadcast_to(np.float32([np.nan, 5, 0, np.nan]), (2, 4)))
