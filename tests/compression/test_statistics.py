"""What compression reports of itself, and that its mean is unbiased."""

import functools
from collections.abc import Callable

import jax
import numpy as np
import pytest
from scipy import stats

from jaxtern import compressed_mean, quantized, ternary_mean, top_k

FAILURE = 1e-8


PLAIN = {"rotation": False, "rounding": "stochastic"}


def _normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.mark.few("gather-vmap:4", "sum-mesh:2*")
@pytest.mark.parametrize("layout", ["vmap:4", "mesh:2 unrolled:2"])
@pytest.mark.parametrize("exchange", ["gather", "sum"])
def test_statistics_are_what_numpy_measures(updates_over: Callable, numpy_levels: Callable, layout: str, exchange: str):
    gradients = {"a": _normal(0, 4, 300), "b": 3 * _normal(1, 4, 20, 10), "float": _normal(2, 4, 7)}
    reducer = quantized(2, 0.0, rotation=False, rounding="stochastic", exchange=exchange)
    make = functools.partial(compressed_mean, reducer=reducer, min_size=8, statistics=True)
    mean, state = updates_over(make, layout)(gradients, 9)
    zeros, errors = [], []
    for worker in range(4):
        sent = {"float": gradients["float"][worker]}
        for key, offset in (("a", 0), ("b", 300)):
            scale, own = np.abs(gradients[key]).max(), gradients[key][worker]
            drawn = numpy_levels(own, scale, step=9, worker=worker, levels=2, offset=offset)
            sent[key] = drawn * scale / 2
        left, whole = (
            np.concatenate([tree[key].reshape(-1).astype(np.float64) for key in gradients])
            for tree in (sent, {key: gradients[key][worker] for key in gradients})
        )
        zeros.append(np.mean(left == 0))
        errors.append(np.sum((whole - left) ** 2) / np.sum(whole**2))
    ours, float_mean = (
        np.concatenate([np.asarray(tree[key], np.float64).reshape(-1) for key in gradients])
        for tree in (jax.tree.map(lambda x: x[0], mean), jax.tree.map(lambda x: x.mean(axis=0), gradients))
    )
    found = jax.tree.map(lambda x: x[0], state.statistics)
    cosine = ours @ float_mean / np.linalg.norm(ours) / np.linalg.norm(float_mean)
    np.testing.assert_allclose(found.zero_fraction, np.mean(zeros), rtol=1e-5)
    np.testing.assert_allclose(found.error, np.mean(errors), rtol=1e-4)
    np.testing.assert_allclose(found.cosine, cosine, rtol=1e-4)


def test_statistics_with_fast_axes_are_those_of_the_workers_own_means(workers: Callable):
    """Two workers of two devices, whose gradients differ; top-k sends whole values, so all is known."""
    placed = workers("mesh:2 mesh:2")
    transformation = compressed_mean(
        placed.names[0], top_k(0.25, feedback=False), fast_axis_name=placed.names[1], statistics=True
    )
    gradients = np.float32([[8, 1, 0, 0], [8, 3, 0, 0], [4, 0, 0, 0], [4, 0, 0, 2]])
    compiled = placed.replicated(lambda x, _: transformation.update(x, transformation.init(x))[1].statistics)
    found = jax.device_get(compiled(gradients, None))
    own = gradients.reshape(2, 2, 4).mean(axis=1)  # [8, 2, 0, 0] and [4, 0, 0, 1]
    np.testing.assert_allclose(found.zero_fraction, 0.75)
    np.testing.assert_allclose(found.error, (4 / 68 + 1 / 17) / 2, rtol=1e-6)
    mean, sent = own.mean(axis=0), np.float32([6, 0, 0, 0])
    np.testing.assert_allclose(found.cosine, mean @ sent / np.linalg.norm(mean) / 6, rtol=1e-6)


def test_a_worker_without_a_gradient_leaves_the_statistics_of_others(updates_over: Callable):
    make = functools.partial(compressed_mean, reducer=top_k(0.4, feedback=False), statistics=True)
    both, alone = np.float32([[1, 2, -3], [0, 0, 0]]), np.float32([[1, 2, -3], [1, 2, -3]])
    (_, found), (_, of_one) = (updates_over(make, "vmap:2")(gradients) for gradients in (both, alone))
    np.testing.assert_allclose(found.statistics.error, of_one.statistics.error / 2, rtol=1e-6)


def test_statistics_of_nothing_are_nan(updates_over: Callable):
    make = functools.partial(compressed_mean, statistics=True)
    _, state = updates_over(make, "vmap:4")({"a": _normal(4, 4, 0), "b": None})
    assert np.all(np.isnan(np.stack(jax.tree.leaves(state.statistics))))


@pytest.mark.parametrize(("exchange", "levels", "clip_sigmas"), [("sum", 1, 1.0), ("gather", 2, 0.0)])
def test_the_mean_over_many_steps_is_that_of_the_clipped_gradients(
    updates_over: Callable, exchange: str, levels: int, clip_sigmas: float
):
    """Unbiased, with the variance of independent coins: s^2 f (1 - f) / L^2 / N^2 for each worker and step."""
    num_workers, num_steps, n = 4, 64, 5000
    gradients = _normal(5, num_workers, n)
    make = functools.partial(ternary_mean, clip_sigmas=clip_sigmas, exchange=exchange, levels=levels, **PLAIN)
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
