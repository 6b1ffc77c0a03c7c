"""A tree of gradients to flat vectors and back."""

from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from jaxtern.compression.buckets import flatten, plan_layout, unflatten

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


@given(TREES, st.integers(1, 6), st.booleans())
def test_unflatten_inverts_flatten_for_any_tree(specs: Any, min_size: int, exclude_bias: bool):
    tree = _fill(specs)
    layout = plan_layout(tree, min_size, (lambda path: "bias" in path) if exclude_bias else None)
    compressed, floats = flatten(tree, layout)
    assert compressed.dtype == floats.dtype == jnp.float32
    assert compressed.shape == (sum(layout.sizes(compressed=True)),)
    assert floats.shape == (sum(layout.sizes(compressed=False)),)
    back = unflatten(compressed, floats, layout)
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(tree), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_array_equal(a, b)


def test_flatten_keeps_the_order_of_the_tree():
    tree = {"b": jnp.array([[1.0, 2.0], [3.0, 4.0]]), "a": (jnp.array(5.0), None, jnp.array([6.0, 7.0]))}
    compressed, floats = flatten(tree, plan_layout(tree, 2, None))
    np.testing.assert_array_equal(compressed, [6, 7, 1, 2, 3, 4])
    np.testing.assert_array_equal(floats, [5])


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
    assert layout.compressed == (True, True, False, False)
    assert set(seen) <= set(layout.paths)
    assert plan_layout(tree, 5, None).compressed == (False, True, True, False)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "complex64"])
def test_gradients_that_are_not_floating_point_are_refused_by_path(dtype: str):
    tree = {"conv": [jnp.zeros(3), {"kernel": jnp.zeros(3, dtype)}]}
    with pytest.raises(ValueError, match=rf"^gradient 'conv/1/kernel' is {dtype}: only floating-point .* averaged$"):
        plan_layout(tree, 1, None)


def test_numpy_and_python_numbers_are_tensors_too():
    tree = {"a": np.float32(1.5), "b": 2.5, "c": np.array([3.5], np.float32)}
    layout = plan_layout(tree, 1, None)
    compressed, _ = flatten(tree, layout)
    np.testing.assert_array_equal(compressed, [1.5, 2.5, 3.5])
