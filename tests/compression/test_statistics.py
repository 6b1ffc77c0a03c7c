"""What compression reports of itself, and that its mean is unbiased."""

import functools
from collections.abc import Callable

import jax
import numpy as np
import pytest
from scipy import stats

from jaxtern import Ternary, compressed_mean, ternary_mean

FAILURE = 1e-8


def _normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.mark.parametrize("layout", ["vmap:4", "mesh:4", "mesh:2 unrolled:2"])
@pytest.mark.parametrize("exchange", ["gather", "sum"])
def test_statistics_are_what_numpy_measures(updates_over: Callable, numpy_levels: Callable, layout: str, exchange: str):
    gradients = {"a": _normal(0, 4, 300), "b": 3 * _normal(1, 4, 20, 10), "float": _normal(2, 4, 7)}
    make = functools.partial(
        compressed_mean, codec=Ternary(clip_sigmas=0.0), exchange=exchange, min_size=8, statistics=True
    )
    mean, state = updates_over(make, layout)(gradients, 9)
    scales = [np.abs(gradients[key]).max() for key in "ab"]
    sent = [
        numpy_levels(gradients[key][worker], scale, step=9, worker=worker, offset=offset).reshape(-1)
        for key, scale, offset in zip("ab", scales, (0, 300), strict=True)
        for worker in range(4)
    ]
    found = jax.tree.map(lambda x: x[0], state.statistics)
    ours, float_mean = (
        np.concatenate([tree["a"].reshape(-1), tree["b"].reshape(-1)]).astype(np.float64)
        for tree in (jax.tree.map(lambda x: x[0], mean), jax.tree.map(lambda x: x.mean(axis=0), gradients))
    )
    cosine = ours @ float_mean / np.linalg.norm(ours) / np.linalg.norm(float_mean)
    np.testing.assert_allclose(found.zero_fraction, np.mean(np.concatenate(sent) == 0), rtol=1e-5)
    np.testing.assert_allclose(found.scale, np.mean(scales), rtol=1e-5)
    np.testing.assert_allclose(found.cosine, cosine, rtol=1e-4)


def test_statistics_do_not_change_the_mean(updates_over: Callable):
    gradients = _normal(3, 4, 500)
    plain, state = updates_over(compressed_mean, "vmap:4")(gradients)
    measured, _ = updates_over(functools.partial(compressed_mean, statistics=True), "vmap:4")(gradients)
    np.testing.assert_array_equal(measured, plain)
    assert state.statistics is None


def test_statistics_of_nothing_are_nan(updates_over: Callable):
    make = functools.partial(compressed_mean, statistics=True, min_size=10)
    _, state = updates_over(make, "vmap:4")({"a": _normal(4, 4, 3)})
    assert np.all(np.isnan(np.stack(jax.tree.leaves(state.statistics))))


@pytest.mark.parametrize("clip_sigmas", [0.0, 1.0])
@pytest.mark.parametrize(("exchange", "levels"), [("sum", 1), ("gather", 2)])
def test_the_mean_over_many_steps_is_that_of_the_clipped_gradients(
    updates_over: Callable, clip_sigmas: float, exchange: str, levels: int
):
    """Unbiased, with the variance of independent coins: s^2 f (1 - f) / L^2 / N^2 for each worker and step."""
    num_workers, num_steps, n = 4, 64, 5000
    gradients = _normal(5, num_workers, n)
    make = functools.partial(ternary_mean, clip_sigmas=clip_sigmas, exchange=exchange, levels=levels)
    update = updates_over(make, f"vmap:{num_workers}")
    means = np.stack([update(gradients, step)[0][0] for step in range(num_steps)]).astype(np.float64)

    scale = np.abs(gradients).max() if clip_sigmas == 0 else np.abs(means).max()
    level = np.clip(gradients.astype(np.float64) / scale, -1, 1) * levels
    fraction = np.abs(level) % 1
    expected = level.mean(axis=0) * scale / levels
    variance = (fraction * (1 - fraction)).sum(axis=0) * (scale / levels / num_workers) ** 2
    np.testing.assert_allclose(
        means[:, variance == 0], np.broadcast_to(expected, means.shape)[:, variance == 0], rtol=1e-6
    )
    error, variance = (means - expected)[:, variance > 0], variance[variance > 0]
    z_bias = error.sum() / np.sqrt(num_steps * variance.sum())
    assert 2 * stats.norm.sf(abs(z_bias)) > FAILURE
    per_element = error.mean(axis=0) / np.sqrt(variance / num_steps)
    assert 2 * stats.norm.sf(np.abs(per_element).max()) > FAILURE / n
    squares = (error**2).sum(axis=0) / variance
    z_variance = (squares - num_steps).sum() / squares.std() / np.sqrt(squares.size)
    assert 2 * stats.norm.sf(abs(z_variance)) > FAILURE
