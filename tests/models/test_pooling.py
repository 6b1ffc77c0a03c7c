"""Max pooling: the same bits as flax's, forward and backward, however windows lie."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxtern.models.pooling import max_pool

# Side by side, overlapping, with gaps between them; as the networks here have them and as none has.
WINDOWS = {
    "2x2 by 2": ((2, 2), (2, 2)),
    "3x3 by 2": ((3, 3), (2, 2)),
    "3x3 by 1": ((3, 3), (1, 1)),
    "2x3 by 1x3": ((2, 3), (1, 3)),
    "1x1 by 3": ((1, 1), (3, 3)),
    "5x2 by 2x1": ((5, 2), (2, 1)),
}
PADDINGS = ("VALID", "SAME", ((1, 1), (1, 1)), ((0, 2), (1, 0)))


def _pull_back(pool, x, weights):
    """The gradient of sum(weights * pool(x))."""
    return jax.jit(lambda x, weights: jax.vjp(pool, x)[1](weights))(x, weights)[0]


@pytest.mark.few("3x3 by 2*", "2x3 by 1x3-SAME")
@pytest.mark.parametrize("padding", PADDINGS, ids=str)
@pytest.mark.parametrize("windows", WINDOWS.values(), ids=WINDOWS)
def test_max_pool_and_its_gradient_are_those_of_flax(windows, padding):
    window, strides = windows
    draw = np.random.default_rng(0)
    x = jnp.asarray(draw.integers(0, 4, (3, 11, 10, 5)), jnp.float32)  # so few numbers that most windows have ties
    ours, theirs = (lambda x, pool=pool: pool(x, window, strides, padding) for pool in (max_pool, nnx.max_pool))
    pooled = theirs(x)
    np.testing.assert_array_equal(ours(x), pooled)
    # Sums of whole numbers are exact in any order, so that only the place to which each goes can differ.
    weights = jnp.asarray(draw.integers(-9, 10, pooled.shape), jnp.float32)
    np.testing.assert_array_equal(_pull_back(ours, x, weights), _pull_back(theirs, x, weights))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_max_pool_keeps_dtypes_and_negative_numbers(dtype):
    x = -1 - jax.random.uniform(jax.random.key(0), (2, 9, 9, 3)).astype(dtype)  # padding by zeros would be larger
    ours, theirs = max_pool(x, (3, 3), (2, 2), "SAME"), nnx.max_pool(x, (3, 3), (2, 2), "SAME")
    assert ours.dtype == dtype
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("place", range(9))
def test_a_window_with_a_nan_is_nan(place):
    x = jnp.zeros((9,)).at[place].set(jnp.nan).reshape(1, 3, 3, 1)
    assert jnp.isnan(max_pool(x, (3, 3))).all()


def test_max_pool_takes_windows_at_every_place_without_strides():
    x = jax.random.normal(jax.random.key(0), (2, 6, 7, 3))
    np.testing.assert_array_equal(max_pool(x, (2, 2)), nnx.max_pool(x, (2, 2)))


def test_gradients_on_cpus_take_no_arrays_of_indices():
    """As XLA's own gradient does: what the function is for."""

    def total(x, pool):
        return jnp.sum(pool(x, (2, 2), (2, 2)) ** 2)

    x = jnp.zeros((2, 8, 8, 3))
    ours, theirs = (
        jax.jit(jax.grad(total), static_argnums=1).lower(x, pool).compile().as_text()
        for pool in (max_pool, nnx.max_pool)
    )
    assert "scatter" in theirs
    assert "scatter" not in ours
