"""The middle of the scatter exchange: sums of digits, exact and in the words that decode expects."""

from collections.abc import Callable

import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from jaxtern.kernels import Segments, num_words, shard_sum, ternary_decode

pytestmark = pytest.mark.optimized


@given(st.integers(1, 127), st.integers(0, 6000), st.sampled_from([1, 2, 7]), st.integers(0, 2**30))
def test_shard_sum_adds_every_digit_exactly(
    numpy_pack: Callable, numpy_unpack: Callable, num_workers: int, n: int, levels: int, seed: int
):
    digits = np.random.default_rng(seed).integers(0, 2 * levels + 1, (num_workers, n))
    radix = 2 * levels * num_workers + 1
    words = np.asarray(shard_sum(jnp.asarray(numpy_pack(digits, 2 * levels + 1, levels)), n, levels=levels))
    assert words.dtype == np.uint32
    np.testing.assert_array_equal(words, numpy_pack(digits.sum(axis=0), radix, levels * num_workers))
    np.testing.assert_array_equal(numpy_unpack(words, radix, n), digits.sum(axis=0))


def test_sums_decode_to_the_mean_of_the_words_they_are_made_of(numpy_pack: Callable):
    digits = np.random.default_rng(0).integers(0, 3, (5, 3000))
    words, scales, segments = jnp.asarray(numpy_pack(digits, 3)), jnp.array([0.3, 2.0]), Segments((1000, 2000))
    gathered = ternary_decode(words, scales, segments, num_workers=5)
    sums = shard_sum(words, 3000)
    np.testing.assert_array_equal(ternary_decode(sums[None], scales, segments, num_workers=5, radix=11), gathered)


def test_shard_sum_refuses_what_does_not_fit():
    words = jnp.zeros((3, num_words(700, 3)), jnp.uint32)
    bad = {
        r"words\.shape=\(128,\): must be \[workers, words\]": {"words": words[0]},
        r"words\.shape=\(0, 128\): must be \[workers, words\]": {"words": words[:0]},
        r"words is int32\[3, 128\]: must be uint32\[3, 128\]": {"words": words.astype(jnp.int32)},
        r"words is uint32\[3, 128\]: must be uint32\[3, 256\]": {"num_elements": 2561},
        r"radix=65539: must be an integer from 3 to 65536": {"words": jnp.zeros((3, 384), jnp.uint32), "levels": 10923},
        r"levels=0: must be an integer of 1 or more": {"levels": 0},
        r"shard_sum: implementation='fast': must be one of auto, reference, native, mosaic": {"implementation": "fast"},
    }
    arguments = {"words": words, "num_elements": 700}
    shard_sum(**arguments)
    for message, argument in bad.items():
        with pytest.raises(ValueError, match=message):
            shard_sum(**(arguments | argument))
