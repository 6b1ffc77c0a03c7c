"""Rounding that survives any compiler: what is exact cannot be changed by fusing it."""

import jax
import numpy as np
import pytest

from jaxtern.kernels.rounding import settle, to_12_bits

pytestmark = pytest.mark.optimized

RANDOM = np.random.default_rng(0)
NUMBERS = (RANDOM.standard_normal(10_000) * 10.0 ** RANDOM.integers(-15, 15, 10_000)).astype(np.float32)


def test_products_of_12_bit_numbers_are_exact():
    rounded = np.asarray(to_12_bits(NUMBERS))
    exact = rounded.astype(np.float64) * rounded[::-1].astype(np.float64)
    np.testing.assert_array_equal((rounded * rounded[::-1]).astype(np.float64), exact)


def test_to_12_bits_rounds_to_the_nearest():
    error = np.abs(np.asarray(to_12_bits(NUMBERS)).astype(np.float64) / NUMBERS - 1)
    assert 0 < error.max() <= 2.0**-12


def test_settle_clears_the_last_bit_alone():
    settled = np.asarray(settle(NUMBERS))
    np.testing.assert_array_equal(settled.view(np.uint32), NUMBERS.view(np.uint32) & np.uint32(2**32 - 2))
    assert np.abs(settled.astype(np.float64) / NUMBERS - 1).max() < 2.0**-22


@pytest.mark.parametrize("rounding", [settle, to_12_bits])
def test_zero_powers_of_two_and_what_is_not_finite_stay(rounding):
    kept = np.array([0, 1, -2, 2.0**-126, 2.0**127, np.inf, -np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(rounding(kept), kept)


def test_a_settled_product_is_rounded_before_anything_is_added_to_it():
    a, b, c = (RANDOM.standard_normal(10_000).astype(np.float32) for _ in range(3))
    fused = jax.jit(lambda a, b, c: settle(a * b) + c)(a, b, c)
    product = ((a * b).view(np.uint32) & np.uint32(2**32 - 2)).view(np.float32)
    np.testing.assert_array_equal(fused, product + c)
