"""The mean of many workers' levels, rounded to a level again: unbiased, and the same however it is sharded."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxtern.kernels import derive_key, digits_per_word, dispatch, random_bits, shard_mean

pytestmark = pytest.mark.optimized

FAILURE = 1e-8

needs_native = pytest.mark.skipif(bool(dispatch.why_not_native()), reason=dispatch.why_not_native())
both = pytest.mark.parametrize("implementation", ["reference", pytest.param("native", marks=needs_native)])


mean_of = jax.jit(shard_mean, static_argnames=("levels", "implementation"))
bits_from = jax.jit(
    lambda key, position, n: random_bits(key, jnp.arange(n, dtype=jnp.uint32) + position), static_argnums=2
)


@both
@pytest.mark.parametrize(("num_workers", "levels"), [(1, 1), (2, 1), (3, 1), (8, 2), (100, 1), (5, 100), (3000, 1)])
def test_shard_mean_is_the_sum_and_the_noise_divided_by_the_workers(
    numpy_pack: Callable, numpy_unpack: Callable, implementation: str, num_workers: int, levels: int
):
    n = 128 * digits_per_word(2 * levels + 1)
    digits = np.random.default_rng(0).integers(0, 2 * levels + 1, (num_workers, n))
    key, position = derive_key(3, 4, 5), 512 * 7
    words = jnp.asarray(numpy_pack(digits, 2 * levels + 1))
    words = mean_of(words, key, jnp.uint32(position), levels=levels, implementation=implementation)
    drawn = np.asarray(bits_from(key, position, n)).astype(np.int64)
    expected = (digits.sum(axis=0) + (drawn * num_workers >> 16)) // num_workers
    np.testing.assert_array_equal(numpy_unpack(np.asarray(words), 2 * levels + 1, n), expected)


@both
def test_shards_join_to_the_whole(numpy_pack: Callable, implementation: str):
    digits = np.random.default_rng(1).integers(0, 3, (4, 128 * 20 * 6))
    words, key = jnp.asarray(numpy_pack(digits, 3)), derive_key(0, 0, 0)
    whole = mean_of(words, key, jnp.uint32(0), implementation=implementation)
    shards = [
        mean_of(words[:, i : i + 256], key, jnp.uint32(i * 20), implementation=implementation)
        for i in range(0, words.shape[1], 256)
    ]
    np.testing.assert_array_equal(jnp.concatenate(shards), whole)


@pytest.mark.parametrize("num_workers", [2, 3, 7, 64])
def test_the_rounded_mean_is_unbiased_and_never_leaves_the_levels(
    numpy_pack: Callable, numpy_unpack: Callable, num_workers: int
):
    """Each digit is one of the two around S / N, with the variance of a coin."""
    n = 128 * 20 * 64
    digits = np.random.default_rng(2).integers(0, 3, (num_workers, n))
    mean = digits.mean(axis=0)
    words = mean_of(jnp.asarray(numpy_pack(digits, 3)), derive_key(9, 1, 2), jnp.uint32(0))
    found = numpy_unpack(np.asarray(words), 3, n).astype(float)
    assert np.all((found == np.floor(mean)) | (found == np.ceil(mean)))
    fraction = mean % 1
    z = (found - mean).sum() / np.sqrt((fraction * (1 - fraction)).sum())
    assert 2 * stats.norm.sf(abs(z)) > FAILURE


@pytest.mark.parametrize(
    ("shape", "levels", "message"),
    [
        ((0, 128), 1, r"words\.shape=\(0, 128\): must be \[workers, words\] of 1 to 32767 workers"),
        ((128,), 1, r"words\.shape=\(128,\): must be \[workers, words\]"),
        ((2, 100), 1, r"words is uint32\[2, 100\]: must be uint32\[2, 0\]"),
        ((2, 128), 0, r"levels=0: must be an integer of 1 or more"),
        ((600, 128), 20_000, r"levels=20000: the sum of 600 workers' levels must stay below 2\^24"),
    ],
)
def test_shard_mean_refuses_what_does_not_fit(shape: tuple[int, ...], levels: int, message: str):
    with pytest.raises(ValueError, match=f"^{message}"):
        shard_mean(jnp.zeros(shape, jnp.uint32), derive_key(0, 0, 0), jnp.uint32(0), levels=levels)
