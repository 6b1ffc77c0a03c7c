"""Which tensors travel together, and where their noise begins."""

import hypothesis.strategies as st
import jax.numpy as jnp
from hypothesis import given

from jaxtern import Layout
from jaxtern.compression.radix.buckets import Bucket, plan_buckets

KINDS = st.sampled_from([(), ("model",), ("model", "expert")])


def _layout(sizes: list[int], kinds: list[tuple[str, ...]]) -> Layout:
    dtypes = (jnp.dtype("float32"),) * len(sizes)
    return Layout(tuple(map(str, range(len(sizes)))), tuple((size,) for size in sizes), dtypes, tuple(kinds))


@given(st.lists(st.tuples(st.integers(0, 3000), KINDS), max_size=9), st.sampled_from([None, 1, 100, 1000]))
def test_every_tensor_is_in_one_bucket_with_its_kind_and_no_noise_is_used_twice(
    tensors: list[tuple[int, tuple[str, ...]]], bucket_size: int | None
):
    sizes, kinds = [size for size, _ in tensors], [kind for _, kind in tensors]
    buckets = plan_buckets(_layout(sizes, kinds), bucket_size)
    assert sorted(place for bucket in buckets for place in bucket.places) == list(range(len(tensors)))
    end = 0
    for bucket in buckets:
        assert list(bucket.places) == sorted(bucket.places)
        assert bucket.sizes == tuple(sizes[place] for place in bucket.places)
        assert len({kinds[place] for place in bucket.places}) == 1
        assert bucket.position % 512 == 0
        assert bucket.position >= end
        end = bucket.position + bucket.size
    assert bucket_size is not None or len(buckets) == len(set(kinds))


def test_buckets_go_backward_and_close_when_they_are_full():
    sizes = {"a": 10, "b": 600, "c": 3, "d": 50, "e": 60, "g": 100, "h": 40}
    buckets = plan_buckets(_layout(list(sizes.values()), [()] * len(sizes)), bucket_size=100)
    names = [["abcdegh"[place] for place in bucket.places] for bucket in buckets]
    assert names == [["g"], ["e", "h"], ["b"], ["a", "c", "d"]]
    assert [bucket.position for bucket in buckets] == [0, 512, 1024, 2048]


def test_one_bucket_keeps_the_order_of_the_tree():
    assert plan_buckets(_layout([3, 0, 5], [()] * 3), None) == [Bucket((0, 1, 2), (3, 0, 5), 0)]
