"""The layout of a bucket."""

import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from jaxtern.kernels import Segments, num_words
from jaxtern.kernels.segments import split


@given(st.lists(st.integers(0, 500), max_size=5), st.one_of(st.none(), st.integers(1, 600)), st.integers(3, 300))
def test_every_tensor_starts_a_scale_and_a_word_of_its_own(sizes: list[int], block_size: int | None, radix: int):
    segments = Segments(tuple(sizes), block_size)
    blocks = [len(range(0, size, block_size or max(size, 1))) for size in sizes]
    assert segments.scale_counts == tuple(blocks)
    assert segments.num_scales == sum(blocks)
    assert segments.word_counts(radix) == tuple(num_words(size, radix) for size in sizes)
    assert segments.num_words(radix) == sum(segments.word_counts(radix))
    assert segments.num_elements == sum(sizes)


def test_per_element_spreads_each_scale_over_its_block():
    assert Segments((7,)).per_element(jnp.array([2.0]), 7).shape == ()
    spread = Segments((7,), 3).per_element(jnp.array([1.0, 2.0, 3.0]), 7)
    np.testing.assert_array_equal(spread, [1, 1, 1, 2, 2, 2, 3])


def test_split_cuts_the_last_axis():
    parts = split(jnp.arange(12).reshape(2, 6), (1, 0, 3))
    assert [part.shape for part in parts] == [(2, 1), (2, 0), (2, 3)]
    np.testing.assert_array_equal(parts[2], [[1, 2, 3], [7, 8, 9]])


@pytest.mark.parametrize("size", [-1, 1.5, "3", None])
def test_segments_refuse_what_is_no_size(size: object):
    with pytest.raises(ValueError, match=r"sizes=.*: must be integers of 0 or more"):
        Segments((3, size))  # type: ignore[arg-type]


@pytest.mark.parametrize("block_size", [0, -1, 1.5, "3"])
def test_segments_refuse_what_is_no_block_size(block_size: object):
    with pytest.raises(ValueError, match=r"block_size=.*: must be None or an integer of 1 or more"):
        Segments((3,), block_size)  # type: ignore[arg-type]
