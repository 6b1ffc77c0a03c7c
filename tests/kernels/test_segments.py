"""The layout of a bucket."""

import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from jaxtern.kernels import Segments, num_words
from jaxtern.kernels.segments import fill_up, split

pytestmark = pytest.mark.optimized


@given(st.lists(st.integers(0, 500), max_size=5), st.one_of(st.none(), st.integers(1, 600)), st.integers(3, 300))
def test_every_tensor_starts_a_scale_of_its_own_and_words_hold_the_whole_bucket(
    sizes: list[int], block_size: int | None, radix: int
):
    segments = Segments(tuple(sizes), block_size)
    blocks = [len(range(0, size, block_size or max(size, 1))) for size in sizes]
    assert segments.scale_counts == tuple(blocks)
    assert segments.num_scales == sum(blocks)
    assert segments.num_elements == sum(sizes)
    assert segments.num_words(radix) == num_words(sum(sizes), radix)
    firsts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(int) if sizes else []
    starts = [
        i
        for start, size in zip(firsts, sizes, strict=True)
        for i in range(start, start + size, block_size or max(size, 1))
    ]
    assert segments.bounds().tolist() == [*starts, sum(sizes)]


def test_spread_multiplies_each_element_by_its_segment():
    spread = Segments((3, 0, 7), 3).spread(jnp.ones(10), jnp.array([5.0, 1.0, 2.0, 3.0]))
    np.testing.assert_array_equal(spread, [5, 5, 5, 1, 1, 1, 2, 2, 2, 3])
    np.testing.assert_array_equal(Segments((4,)).spread(jnp.ones(4), jnp.array([2.0])), 2)
    assert Segments(()).spread(jnp.ones(0), jnp.ones(0)).shape == (0,)


@pytest.mark.parametrize(("size", "filled"), [(0, 0), (1, 128), (128, 128), (129, 256)])
def test_fill_up_adds_zeros_behind(size: int, filled: int):
    vector = fill_up(jnp.ones((2, size)), 128)
    assert vector.shape == (2, filled)
    np.testing.assert_array_equal(vector.sum(axis=1), size)


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
