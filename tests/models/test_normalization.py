"""Local response normalisation is that of a plain loop, and so is its gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtern.models.normalization import local_response_normalization

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
