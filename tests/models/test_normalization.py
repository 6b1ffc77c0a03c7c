"""Local response normalisation is that of a plain loop, and so is its gradient; the moving moments of batch norm are of
batches alone.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxtern.models.normalization import BatchNorm, local_response_normalization

D = 0.9997  # of AlexNet's batch norm
CIFARNET = {"radius": 4, "bias": 1.0, "alpha": 0.001 / 9, "beta": 0.75}
ALEXNET = {"radius": 2, "bias": 2.0, "alpha": 1e-4, "beta": 0.75}
STRONG = {"radius": 1, "bias": 0.5, "alpha": 3.0, "beta": 1.5}


def normalize_in_loops(x: np.ndarray, radius: int, bias: float, alpha: float, beta: float) -> np.ndarray:
    rows, channels = x.reshape(-1, x.shape[-1]).astype(np.float64), x.shape[-1]
    out = np.empty_like(rows)
    for i, row in enumerate(rows):
        for c in range(channels):
            total = sum(row[k] ** 2 for k in range(channels) if abs(k - c) <= radius)
            out[i, c] = row[c] / (bias + alpha * total) ** beta
    return out.reshape(x.shape)


@pytest.mark.parametrize("options", [CIFARNET, ALEXNET, STRONG, STRONG | {"radius": 0}, STRONG | {"radius": 20}])
@pytest.mark.parametrize("shape", [(2, 3, 3, 11), (4, 1), (7,)])
def test_local_response_normalization_equals_a_plain_loop(options: dict, shape: tuple[int, ...]):
    x = (10 * np.random.default_rng(0).standard_normal(shape)).astype(np.float32)
    found = local_response_normalization(x, **options)
    np.testing.assert_allclose(found, normalize_in_loops(x, **options), rtol=2e-5)


@pytest.mark.parametrize("options", [CIFARNET, STRONG])
def test_gradient_of_local_response_normalization_equals_finite_differences(options: dict):
    random = np.random.default_rng(1)
    x, direction, weights = random.standard_normal((3, 2, 12))
    step = 1e-6
    ends = [np.vdot(weights, normalize_in_loops(x + sign * step * direction, **options)) for sign in (1, -1)]
    args = [jnp.asarray(each, jnp.float32) for each in (x, weights)]
    gradient = jax.grad(lambda x, w: jnp.vdot(w, local_response_normalization(x, **options)))(*args)
    np.testing.assert_allclose(np.vdot(gradient, direction), (ends[0] - ends[1]) / (2 * step), rtol=1e-4)


def test_local_response_normalization_keeps_type_and_zeros():
    found = local_response_normalization(jnp.zeros((2, 5), jnp.bfloat16), **CIFARNET)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found.astype(jnp.float32), 0)


def test_local_response_normalization_of_float16_does_not_overflow():
    x = np.array([[300.0, -4000.0, 60000.0, 2.0, 0.0]], np.float16)
    found = local_response_normalization(jnp.asarray(x), **CIFARNET)
    assert found.dtype == jnp.float16
    np.testing.assert_allclose(found, normalize_in_loops(x, **CIFARNET), rtol=2**-11)
    gradient = jax.grad(lambda x: jnp.sum(local_response_normalization(x, **CIFARNET)))(jnp.asarray(x))
    assert gradient.dtype == jnp.float16
    assert np.all(np.isfinite(gradient))


def train(norm: nnx.BatchNorm, batches: np.ndarray) -> list[np.ndarray]:
    return [np.asarray(norm(jnp.asarray(batch), use_running_average=False)) for batch in batches]


def test_moving_moments_are_weighted_means_over_the_batches_seen():
    """Weights d^(t-1), ..., d, 1; a batch in training is normalised as flax does it."""
    batches = (3 + np.random.default_rng(2).standard_normal((5, 16, 4)) / 8).astype(np.float32)
    norm, flax = BatchNorm(4, momentum=D, rngs=nnx.Rngs(0)), nnx.BatchNorm(4, momentum=D, rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(train(norm, batches), train(flax, batches))
    weights = D ** np.arange(4, -1, -1)
    for found, each in ((norm.mean, batches.mean(1)), (norm.var, batches.var(1))):
        np.testing.assert_allclose(found[...], np.average(each, axis=0, weights=weights), rtol=1e-4)
    np.testing.assert_allclose(norm.share[...], 1 - D**5, rtol=1e-4)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_moments_that_were_there_count_by_their_share(share: float):
    """Those of other weights in full, as flax's; fresh ones not at all."""
    batch = np.random.default_rng(3).standard_normal((1, 64, 2)).astype(np.float32)
    norm = BatchNorm(2, momentum=0.9, rngs=nnx.Rngs(0))
    norm.mean[...], norm.var[...], norm.share[...] = jnp.full(2, 5.0), jnp.full(2, 7.0), jnp.float32(share)
    train(norm, batch)
    for found, old, new in ((norm.mean, 5, batch[0].mean(0)), (norm.var, 7, batch[0].var(0))):
        expected = (0.9 * share * old + 0.1 * new) / (0.9 * share + 0.1)
        np.testing.assert_allclose(found[...], expected, rtol=1e-5, atol=1e-6)
    kept = [np.asarray(each[...]) for each in (norm.mean, norm.var, norm.share)]
    evaluated = norm(jnp.asarray(batch[0]), use_running_average=True)
    np.testing.assert_allclose(evaluated, (batch[0] - kept[0]) / np.sqrt(kept[1] + 1e-5), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(np.stack([norm.mean[...], norm.var[...]]), kept[:2])
    assert norm.share[...] == kept[2]
