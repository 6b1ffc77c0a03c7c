"""A tree of gradients to flat vectors and back."""

from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from jaxtern.compression.buckets import Layout, flatten, give_back, plan_layout, take

SHAPES = st.sampled_from([(), (1,), (5,), (0,), (3, 0), (2, 3), (4, 1, 2)])
DTYPES = st.sampled_from(["float32", "bfloat16", "float16"])
LEAVES = st.one_of(st.none(), st.tuples(SHAPES, DTYPES))
TREES = st.recursive(
    LEAVES,
    lambda children: st.one_of(
        st.lists(children, max_size=3),
        st.lists(children, max_size=2).map(tuple),
        st.dictionaries(st.sampled_from(["kernel", "bias", "conv", "0"]), children, max_size=3),
    ),
    max_leaves=8,
)


def _is_leaf(x: Any) -> bool:
    return x is None or (isinstance(x, tuple) and len(x) == 2 and isinstance(x[1], str))


def _fill(tree: Any) -> Any:
    """Numbers, all different, exact in every dtype, for a tree of (shape, dtype)."""
    count = iter(range(10_000))

    def array(spec: Any) -> Any:
        if spec is None:
            return None
        values = [next(count) % 256 for _ in range(int(np.prod(spec[0], dtype=int)))]
        return jnp.asarray(np.array(values, np.float32).reshape(spec[0]), spec[1])

    return jax.tree.map(array, tree, is_leaf=_is_leaf)


def _compressed(layout: Layout) -> tuple[bool, ...]:
    """Of every tensor, whether it is compressed; each lies in one bucket, once."""
    compressed = [place for bucket in layout.buckets for place in bucket.compressed]
    floats = [place for bucket in layout.buckets for place in bucket.floats]
    assert sorted(compressed + floats) == list(range(len(layout.paths)))
    return tuple(place in compressed for place in range(len(layout.paths)))


@given(TREES, st.integers(1, 6), st.booleans(), st.sampled_from([None, 1, 4, 7, 1000]))
def test_give_back_inverts_take_for_any_tree(specs: Any, min_size: int, exclude_bias: bool, bucket_size: int | None):
    tree = _fill(specs)
    layout = plan_layout(tree, min_size, (lambda path: "bias" in path) if exclude_bias else None, bucket_size)
    _compressed(layout)
    flats = flatten(tree, layout)
    for flat, bucket in zip(flats, layout.buckets, strict=True):
        assert flat.compressed.dtype == flat.floats.dtype == jnp.float32
        assert flat.compressed.shape == (sum(layout.sizes(bucket.compressed)),)
        assert flat.floats.shape == (sum(layout.sizes(bucket.floats)),)
    back = give_back(take(tree, layout), layout)
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(tree), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_array_equal(a, b)


def test_one_bucket_keeps_the_order_of_the_tree():
    tree = {"b": jnp.array([[1.0, 2.0], [3.0, 4.0]]), "a": (jnp.array(5.0), None, jnp.array([6.0, 7.0]))}
    (flat,) = flatten(tree, plan_layout(tree, 2, None))
    np.testing.assert_array_equal(flat.compressed, [6, 7, 1, 2, 3, 4])
    np.testing.assert_array_equal(flat.floats, [5])


def test_buckets_go_backward_and_close_when_they_are_full():
    sizes = {"a": 10, "b": 600, "c": 3, "d": 50, "e": 60, "f": 1, "g": 100, "h": 40}
    layout = plan_layout({name: jnp.zeros(size) for name, size in sizes.items()}, 2, None, bucket_size=100)
    names = [[layout.paths[place] for place in bucket.compressed] for bucket in layout.buckets]
    assert names == [["g"], ["e", "h"], ["b"], ["a", "c", "d"]]
    assert [[layout.paths[place] for place in bucket.floats] for bucket in layout.buckets] == [[], [], [], ["f"]]
    assert [bucket.position for bucket in layout.buckets] == [0, 512, 1024, 2048]  # no noise is used twice


def test_a_tensor_stays_float_below_min_size_or_where_its_path_is_excluded():
    tree = {
        "conv": {"kernel": jnp.zeros((3, 4)), "bias": jnp.zeros(4)},
        "head": [jnp.zeros(30), jnp.zeros(3)],
        "none": None,
    }
    seen = []

    def exclude(path: str) -> bool:
        seen.append(path)
        return path.startswith("head/")

    layout = plan_layout(tree, 4, exclude)
    assert layout.paths == ("conv/bias", "conv/kernel", "head/0", "head/1")
    assert _compressed(layout) == (True, True, False, False)
    assert set(seen) <= set(layout.paths)
    assert _compressed(plan_layout(tree, 5, None)) == (False, True, True, False)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "complex64"])
def test_gradients_that_are_not_floating_point_are_refused_by_path(dtype: str):
    tree = {"conv": [jnp.zeros(3), {"kernel": jnp.zeros(3, dtype)}]}
    with pytest.raises(ValueError, match=rf"^gradient 'conv/1/kernel' is {dtype}: only floating-point .* averaged$"):
        plan_layout(tree, 1, None)


def test_numpy_and_python_numbers_are_tensors_too():
    tree = {"a": np.float32(1.5), "b": 2.5, "c": np.array([3.5], np.float32)}
    layout = plan_layout(tree, 1, None)
    (flat,) = flatten(tree, layout)
    np.testing.assert_array_equal(flat.compressed, [1.5, 2.5, 3.5])
