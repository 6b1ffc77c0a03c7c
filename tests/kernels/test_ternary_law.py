"""The law of the digits: P(trit != 0) = |g|/s, unbiased with the variance of a fair coin, independent.

The streams are fixed, so each test fails always or never; a right encoder with perfect noise would fail one with
probability FAILURE for each p-value taken, of which there are about 100.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxtern.kernels import Segments, derive_key, ternary_encode
from jaxtern.kernels.rounding import to_digits

FAILURE = 1e-8
N = 2**20
LEVELS = [1, 2, 3, 7, 127, 1000]


@pytest.fixture(scope="module")
def trits(numpy_unpack: Callable) -> Callable[..., np.ndarray]:
    """int64[N] trits of a gradient under scale 1; one program for all gradients and keys."""
    encode = jax.jit(lambda g, key: ternary_encode(g, jnp.ones(1), key, Segments((N,))))

    def draw(gradient: np.ndarray | float, seed: int = 0, step: int = 0, worker: int = 0) -> np.ndarray:
        filled = np.broadcast_to(np.asarray(gradient, np.float32), (N,))
        return numpy_unpack(np.asarray(encode(filled, derive_key(seed, step, worker))), 3, N) - 1

    return draw


def _chi2(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """p-value of counts under their law; cells that expect fewer than 10 are put together."""
    expected = counts.sum() * probabilities
    rare = expected < 10
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    counts, expected = counts[expected > 0], expected[expected > 0]
    return float(stats.chi2.sf(np.sum((counts - expected) ** 2 / expected), max(1, counts.size - 1)))


@pytest.mark.parametrize("p", [0.001, 0.1, 1 / 3, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("sign", [1, -1])
def test_number_of_trits_in_a_run_follows_the_binomial_law(trits: Callable, p: float, sign: int):
    drawn = trits(sign * p, seed=1)
    assert set(np.unique(drawn)) == {0, sign}
    run = 64
    counts = np.bincount(np.abs(drawn).reshape(-1, run).sum(axis=1), minlength=run + 1)
    assert _chi2(counts, stats.binom.pmf(np.arange(run + 1), run, np.float32(p))) > FAILURE


def test_zero_is_never_and_the_scale_always_sent(trits: Callable):
    assert np.all(trits(0.0) == 0)
    assert np.all(trits(1.0) == 1)
    assert np.all(trits(-1.0) == -1)


def test_trits_are_unbiased_with_the_variance_of_a_coin(trits: Callable):
    gradient = np.clip(np.random.default_rng(0).standard_normal(N, np.float32) / 3, -1, 1)
    _assert_first_two_moments(trits(gradient, seed=2), gradient.astype(np.float64))


def _assert_first_two_moments(drawn: np.ndarray, expected: np.ndarray) -> None:
    """E[q] = x, and Var[q] = f (1 - f) with f the fraction of |x|: of all roundings to whole numbers, the least."""
    fraction = np.abs(expected) % 1
    variance = fraction * (1 - fraction)
    error = drawn - expected
    assert np.all(np.abs(error) < 1)
    z_mean = error.sum() / np.sqrt(variance.sum())
    fourth = variance * (1 - 3 * variance)  # E[error^4] of a coin
    z_variance = (error**2 - variance).sum() / np.sqrt((fourth - variance**2).sum())
    assert 2 * stats.norm.sf(abs(z_mean)) > FAILURE
    assert 2 * stats.norm.sf(abs(z_variance)) > FAILURE


@pytest.mark.parametrize("levels", LEVELS)
def test_levels_are_unbiased_with_the_variance_of_a_coin(numpy_unpack: Callable, levels: int):
    n, radix = 2**17, 2 * levels + 1
    gradient = np.random.default_rng(levels).uniform(-1, 1, n).astype(np.float32)
    encode = jax.jit(lambda g, key: ternary_encode(g, jnp.ones(1), key, Segments((n,)), radix=radix, levels=levels))
    drawn = numpy_unpack(np.asarray(encode(gradient, derive_key(3, 0, 0))), radix, n) - levels
    _assert_first_two_moments(drawn, gradient.astype(np.float64) * levels)


@pytest.mark.parametrize("levels", [*LEVELS, 64, 65, 32767])
def test_bias_over_all_noise_is_at_most_2_to_the_minus_17(levels: int):
    gradient = np.random.default_rng(levels).uniform(-1, 1, 64).astype(np.float32)
    gradient[:5] = [1e-6, -(2.0**-17), 1 - 2.0**-17, 2.0**-24, -1]
    noise = jnp.arange(2**16, dtype=jnp.uint32)  # every value once, so no chance is left

    def mean(value: jax.Array) -> jax.Array:
        digits = to_digits(jnp.broadcast_to(value * np.float32(levels << 16), noise.shape), noise, levels)
        return jnp.sum(digits.astype(jnp.int32) - levels, dtype=jnp.int32)

    total = np.asarray(jax.jit(jax.vmap(mean))(gradient), np.float64)
    assert np.abs(total / 2**16 / levels - gradient.astype(np.float64)).max() <= 2.0**-17 / levels + 2.0**-24


def _joint(a: np.ndarray, b: np.ndarray, p: float) -> float:
    """p-value of the four cells of two trits, zero or not, under independence with P(trit != 0) = p."""
    counts = np.bincount(2 * np.abs(a) + np.abs(b), minlength=4)
    return _chi2(counts, np.array([(1 - p) ** 2, (1 - p) * p, p * (1 - p), p**2]))


@pytest.mark.parametrize("p", [0.1, 0.4])
def test_trits_are_independent_across_positions(trits: Callable, p: float):
    drawn = trits(p, seed=4)
    for lag in (1, 2, 3, 8, 64, 128, 256, 384, 512, 4096):  # 128 apart: neighbours in one word and group of noise
        pairs = drawn[: N - N % (2 * lag)].reshape(-1, 2, lag)  # no trit in two pairs
        assert _joint(pairs[:, 0].reshape(-1), pairs[:, 1].reshape(-1), np.float32(p)) > FAILURE


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"step": 0}, {"step": 1}),
        ({"step": 9999}, {"step": 10000}),
        ({"worker": 0}, {"worker": 1}),
        ({"worker": 126}, {"worker": 127}),
        ({"seed": 0}, {"seed": 1}),
        ({"step": 1, "worker": 2}, {"step": 2, "worker": 1}),
    ],
)
@pytest.mark.parametrize("p", [0.1, 0.4])
def test_trits_are_independent_across_steps_workers_and_seeds(trits: Callable, first: dict, second: dict, p: float):
    a, b = trits(p, **first), trits(p, **second)
    assert not np.array_equal(a, b)
    assert _joint(a, b, np.float32(p)) > FAILURE
    assert _joint(a[1:], b[:-1], np.float32(p)) > FAILURE


def test_the_sum_over_16_workers_follows_the_binomial_law(trits: Callable):
    total = sum(np.abs(trits(0.3, seed=5, step=7, worker=worker)) for worker in range(16))
    law = stats.binom.pmf(np.arange(17), 16, np.float32(0.3))
    assert _chi2(np.bincount(total, minlength=17), law) > FAILURE


def test_the_sum_over_16_steps_follows_the_binomial_law(trits: Callable):
    total = sum(np.abs(trits(0.3, seed=6, step=step)) for step in range(16))
    law = stats.binom.pmf(np.arange(17), 16, np.float32(0.3))
    assert _chi2(np.bincount(total, minlength=17), law) > FAILURE
