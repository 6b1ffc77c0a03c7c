"""What is trained: whole tensors by patterns, slices of them by masks; and every entry that fits none is refused."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from jaxtern.training.recipe.masks import is_trained, mask_slices, require_trainable, slice_masks, split_slice
from jaxtern.training.recipe.model import ModelSection

SHAPES = {
    "conv1": {"kernel": (5, 5, 1, 20), "bias": (20,)},
    "conv2": {"kernel": (5, 5, 20, 50), "bias": (50,)},
    "fc1": {"kernel": (6, 4), "bias": (4,)},
}
PATHS = [f"{layer}/{name}" for layer, shapes in SHAPES.items() for name in shapes]


def tree(value: float = 1.0) -> dict[str, dict[str, np.ndarray]]:
    return {
        layer: {name: np.full(shape, value, np.float32) for name, shape in shapes.items()}
        for layer, shapes in SHAPES.items()
    }


def numpy_mask(path: str, *indices: Any) -> np.ndarray:
    layer, name = path.split("/")
    mask = np.ones(SHAPES[layer][name], bool)
    for index in indices:
        mask[index] = False
    return mask


@pytest.mark.parametrize(
    ("entry", "pattern", "index"),
    [
        ("conv2/kernel[:, :, 29, 13]", "conv2/kernel", np.s_[:, :, 29, 13]),
        ("conv2.kernel[...]", "conv2.kernel", (...,)),
        (".*/kernel[1:, :-2, ::3, -1]", ".*/kernel", np.s_[1:, :-2, ::3, -1]),
        ("fc1/kernel[5:0:-2]", "fc1/kernel", (slice(5, 0, -2),)),
        ("a[bc]/kernel[ 0 , ... ]", "a[bc]/kernel", np.s_[0, ...]),
        ("fc[12]", "fc", (12,)),
    ],
)
def test_masks_read_slices_as_numpy_does(entry: str, pattern: str, index: tuple):
    assert split_slice(entry) == (pattern, index)


@pytest.mark.parametrize(
    "entry",
    [
        "conv1/.*", "conv[12]/kernel", "conv1/[a-z]+", "conv1/w[0-9]", "conv1/w[ab]", "conv1/(w[12])", r"w\[12]",
        "w[12]+", "w[]", "[12]", "w[1,]", "w[1 2]", "w[1.5]", "w[..., ...]", "w[::0]", "w[:::]", "w[1", "w12]",
        "w[1234567890123]", "w[٣]", "w[None]", "w[__import__('os')]",
    ],
)  # fmt: skip
def test_masks_take_all_else_for_regular_expressions(entry: str):
    assert split_slice(entry) == (entry, None)


@given(st.one_of(st.text(), st.text("[]w\\/.:, -+0123", max_size=16).map("w[{}]".format)))
@example("w[+-1]")
@example("w[--1:]")
def test_masks_read_any_entry(entry: str):
    pattern, index = split_slice(entry)
    assert (pattern == entry) if index is None else entry.startswith(f"{pattern}[")


@pytest.mark.parametrize(
    ("train_only", "freeze", "trained"),
    [
        ((), (), PATHS),
        ((), ("conv1/.*", "fc1/bias"), PATHS[2:5]),
        (("fc1/.*",), (), PATHS[4:]),
        (("fc1/.*", "conv1/bias"), (".*/bias",), ["fc1/kernel"]),
        ((), ("conv2/kernel[0]",), PATHS),
        (("fc1",), (), []),  # whole paths, not parts of them
    ],
)
def test_masks_choose_whole_tensors(train_only: tuple, freeze: tuple, trained: list[str]):
    assert [path for path in PATHS if is_trained(train_only, freeze, path)] == trained


@pytest.mark.parametrize(
    ("freeze", "expected"),
    [
        (("conv2/kernel[:, :, 19, 13]",), {"conv2/kernel": [np.s_[:, :, 19, 13]]}),
        (("conv2.kernel[..., 13]",), {"conv2/kernel": [np.s_[..., 13]]}),
        (("conv2/kernel[0, ..., -1]",), {"conv2/kernel": [np.s_[0, ..., -1]]}),
        (("fc1/kernel[4:1:-2]",), {"fc1/kernel": [np.s_[4:1:-2]]}),
        (("fc1/kernel[-6:6, -4]",), {"fc1/kernel": [np.s_[:, 0]]}),
        (("fc1/kernel[0]", "fc1/kernel[:, 1]"), {"fc1/kernel": [0, np.s_[:, 1]]}),
        (("conv./bias[2:5]",), {"conv1/bias": [np.s_[2:5]], "conv2/bias": [np.s_[2:5]]}),
        (("fc1/kernel[...]",), {"fc1/kernel": [...]}),
        (("conv1/.*",), {}),
    ],
)
def test_masks_of_slices_are_numpys(freeze: tuple, expected: dict[str, list]):
    masks = slice_masks(freeze, tree())
    assert set(masks) == set(expected)
    for path, indices in expected.items():
        shape = numpy_mask(path).shape
        assert masks[path].ndim == len(shape)
        np.testing.assert_array_equal(np.broadcast_to(masks[path], shape), numpy_mask(path, *indices))


def test_masks_are_small_where_a_slice_takes_whole_axes():
    assert slice_masks(("conv2/kernel[:, :, 3, ::2]",), tree())["conv2/kernel"].shape == (1, 1, 20, 50)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_masks_let_nothing_out_of_a_frozen_place(poison: float):
    gradients = tree(3.0)
    gradients["conv2"]["kernel"][:, :, 19, 13] = poison
    gradients["fc1"]["kernel"][0, 0] = poison
    masks = slice_masks(("conv2/kernel[:, :, 19, 13]",), gradients)
    masked = jax.jit(lambda tree: mask_slices(tree, masks))(gradients)
    expected = np.where(numpy_mask("conv2/kernel", np.s_[:, :, 19, 13]), np.float32(3), np.float32(0))
    np.testing.assert_array_equal(masked["conv2"]["kernel"], expected)
    np.testing.assert_array_equal(masked["fc1"]["kernel"], gradients["fc1"]["kernel"])  # trained: it is to be seen
    assert jax.tree.structure(masked) == jax.tree.structure(gradients)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_masks_keep_the_dtype(dtype: Any):
    gradients = {"fc1": {"kernel": jnp.ones((6, 4), dtype)}}
    with jax.numpy_dtype_promotion("strict"):
        masked = mask_slices(gradients, slice_masks(("fc1/kernel[0]",), gradients))
    assert masked["fc1"]["kernel"].dtype == dtype


def test_masks_need_only_shapes():
    shapes = {"fc1": {"kernel": jax.ShapeDtypeStruct((6, 4), jnp.float32)}}
    require_trainable((), ("fc1/kernel[0]",), shapes)
    assert set(slice_masks(("fc1/kernel[0]",), shapes)) == {"fc1/kernel"}


@pytest.mark.parametrize(
    ("train_only", "freeze", "words"),
    [
        (("conv3/.*",), (), "model.train_only='conv3/.*': must match the path of a tensor; available: conv"),
        ((), ("fc1",), "model.freeze='fc1': must match the path of a tensor; available: fc1/bias"),
        (
            (),
            ("zzz",),
            "model.freeze='zzz': must match the path of a tensor; available: conv1/bias, conv1/kernel, conv2/",
        ),
        ((), ("conv3/kernel[0]",), "model.freeze='conv3/kernel[0]': must match the path of a tensor; available: conv"),
        ((), ("fc1/kernel[6]",), "model.freeze='fc1/kernel[6]': must be within fc1/kernel, of shape (6, 4)"),
        (
            (),
            ("fc1/kernel[:, -5]",),
            "model.freeze='fc1/kernel[:, -5]': must be within fc1/kernel, of shape (6, 4)",
        ),
        ((), ("fc1/kernel[:7]",), "model.freeze='fc1/kernel[:7]': must be within fc1/kernel, of shape (6, 4)"),
        (
            (),
            ("fc1/kernel[3:3]",),
            "model.freeze='fc1/kernel[3:3]': must be within fc1/kernel, of shape (6, 4), and",
        ),
        (
            (),
            (".*/kernel[5]",),
            "model.freeze='.*/kernel[5]': must be within conv1/kernel, of shape (5, 5, 1, 20)",
        ),
        (
            (),
            ("fc1/bias[0, 0]",),
            "model.freeze='fc1/bias[0, 0]': must have no more indices than fc1/bias has axes, of",
        ),
        ((), ("fc1/bias[0, ..., 0]",), "model.freeze='fc1/bias[0, ..., 0]': must have no more indices than fc1/bias"),
        ((), (".*",), "model.train_only=(), model.freeze=('.*',): must leave a tensor to train"),
        (
            ("fc1/.*",),
            ("fc1/.*",),
            "model.train_only=('fc1/.*',), model.freeze=('fc1/.*',): must leave a tensor to train",
        ),
        (
            ("fc1/bias",),
            ("fc1/bias[...]",),
            "model.train_only=('fc1/bias',), model.freeze=('fc1/bias[...]',): must leave a",
        ),
        (
            ("fc1/bias",),
            ("fc1/bias[:2]", "fc1/bias[2:]"),
            "model.train_only=('fc1/bias',), model.freeze=('fc1/bias[:2]', 'fc1/",
        ),
    ],
)
def test_masks_that_do_not_fit_are_refused(train_only: tuple, freeze: tuple, words: str):
    with pytest.raises(ValueError, match=r": must ") as caught:
        require_trainable(train_only, freeze, tree())
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)


def test_masks_take_no_class_of_characters_for_a_slice():
    params = {"stack": {"w": np.ones(3), "w1": np.ones(2), "w2": np.ones(2)}, "fc": {"kernel": np.ones(2)}}
    words = "freeze='stack/w[12]': must not be both a slice and a regular expression of stack/w1; for that, write"
    with pytest.raises(ValueError, match=re.escape(f"{words} '(stack/w[12])'")):
        require_trainable((), ("stack/w[12]",), params)
    require_trainable((), ("(stack/w[12])",), params)
    assert not any(is_trained((), ("(stack/w[12])",), f"stack/w{i}") for i in (1, 2))
    assert is_trained((), ("(stack/w[12])",), "stack/w")


@pytest.mark.parametrize("train_only", [(), ("conv.*", "fc1/bias")])
def test_masks_that_fit_are_accepted(train_only: tuple):
    require_trainable(
        train_only, ("conv1/.*", "conv2/kernel[:, :, 19, 13]", "fc1/bias[1:3]", "fc1/kernel[5:1:-1]"), tree()
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"freeze": ("(",)}, "model.freeze=('(',): '(' is no regular expression"),
        ({"freeze": ("conv1/.*", "a([0]",)}, "model.freeze=('conv1/.*', 'a([0]'): 'a([0]' is no regular expression"),
        ({"freeze": ("w[]",)}, "model.freeze=('w[]',): 'w[]' is no regular expression"),
        ({"freeze": ("w{99999999999999999999}",)}, "model.freeze=('w{99999999999999999999}',): 'w{9999"),
        ({"train_only": ("*",)}, "model.train_only=('*',): '*' is no regular expression"),
    ],
)  # fmt: skip
def test_masks_whose_patterns_do_not_compile_are_refused_by_the_recipe(fields: dict[str, Any], words: str):
    with pytest.raises(ValueError, match="=") as caught:
        ModelSection(**fields)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)


def test_masks_of_slices_are_accepted_by_the_recipe():
    assert ModelSection(freeze=("conv2/kernel[:, :, 29, 13]", "fc[12]/.*")).freeze[0] == "conv2/kernel[:, :, 29, 13]"
