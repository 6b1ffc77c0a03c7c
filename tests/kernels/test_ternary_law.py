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

from jaxtern.kernels import Segments, derive_key, digits_per_word, noise, num_words, ternary_encode

FAILURE = 1e-8
N = 2**20
LEVELS = [1, 2, 3, 7, 127, 1000]


def _digits(words: np.ndarray, size: int, radix: int) -> np.ndarray:
    powers = np.array([radix**k for k in range(digits_per_word(radix))], np.int64)
    return ((words.astype(np.int64) // powers[:, None]) % radix).reshape(-1)[:size]


@pytest.fixture(scope="module")
def trits() -> Callable[..., np.ndarray]:
    """int64[N] trits of a gradient under scale 1; one program for all gradients and keys."""
    encode = jax.jit(lambda g, key: ternary_encode(g, jnp.ones(1), key, Segments((N,))))

    def draw(gradient: np.ndarray | float, seed: int = 0, step: int = 0, worker: int = 0) -> np.ndarray:
        filled = np.broadcast_to(np.asarray(gradient, np.float32), (N,))
        return _digits(np.asarray(encode(filled, derive_key(seed, step, worker))), N, 3) - 1

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
def test_levels_are_unbiased_with_the_variance_of_a_coin(levels: int):
    n, radix = 2**17, 2 * levels + 1
    gradient = np.random.default_rng(levels).uniform(-1, 1, n).astype(np.float32)
    encode = jax.jit(lambda g, key: ternary_encode(g, jnp.ones(1), key, Segments((n,)), radix=radix, levels=levels))
    drawn = _digits(np.asarray(encode(gradient, derive_key(3, 0, 0))), n, radix) - levels
    _assert_first_two_moments(drawn, gradient.astype(np.float64) * levels)


@pytest.mark.parametrize("levels", [*LEVELS, 128, 32767])
def test_bias_over_all_noise_is_below_2_to_the_minus_16(monkeypatch: pytest.MonkeyPatch, levels: int):
    sweep = 2**17  # noise that takes evenly spaced values, each once, averages the rounding without chance
    spacing = 2**32 // sweep
    monkeypatch.setattr(noise, "random_bits", lambda _, place: place * np.uint32(spacing) + np.uint32(spacing // 2))
    gradient = np.random.default_rng(levels).uniform(-1, 1, 24).astype(np.float32)
    gradient[:4] = [1e-6, -(2.0**-17), 1 - 2.0**-17, 2.0**-24]
    segments, radix = Segments((sweep,)), 2 * levels + 1

    def encode(value: jax.Array) -> jax.Array:
        everywhere, key = jnp.full(sweep, value), jnp.zeros(2, jnp.uint32)
        return ternary_encode(everywhere, jnp.ones(1), key, segments, radix=radix, levels=levels)

    words = np.asarray(jax.jit(jax.vmap(encode))(gradient))
    mean = np.array([_digits(row, sweep, radix).mean() - levels for row in words]) / levels
    assert np.abs(mean - gradient.astype(np.float64)).max() <= 2.0**-16 + 0.5 / sweep


def _joint(a: np.ndarray, b: np.ndarray, p: float) -> float:
    """p-value of the four cells of two trits, zero or not, under independence with P(trit != 0) = p."""
    counts = np.bincount(2 * np.abs(a) + np.abs(b), minlength=4)
    return _chi2(counts, np.array([(1 - p) ** 2, (1 - p) * p, p * (1 - p), p**2]))


@pytest.mark.parametrize("p", [0.1, 0.4])
def test_trits_are_independent_across_positions(trits: Callable, p: float):
    drawn = trits(p, seed=4)
    width = num_words(N, 3)
    for lag in (1, 2, 3, 8, 64, 4096, width):  # `width` apart: neighbours in one word
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
