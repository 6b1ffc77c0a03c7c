"""Which tensors are trained, and which slices of them are not.

An entry of `freeze` is a regular expression of whole paths, or one with a slice behind it, as NumPy writes it:
"conv2/kernel[:, :, 29, 13]", "fc1/kernel[..., ::2]" (a dot in place of the slash matches, too). What follows the last
"[" is a slice if all of it, up to a "]" at the end, reads as integers, start:stop:step and "...", with commas between
them. A class of characters that reads as one, "w[12]", is therefore put in parentheses, "(w[12])".
"""

import re
from collections.abc import Sequence
from types import EllipsisType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtern.training.recipe.selection import by_path, matches, path_of, require_match

Index = tuple[int | slice | EllipsisType, ...]

_NUMBER = r"\s*[-+]?[0-9]{1,9}\s*"
_BOUND = rf"(?:{_NUMBER}|\s*)"
_PART = rf"(?:\s*\.\.\.\s*|{_NUMBER}|{_BOUND}:{_BOUND}(?::{_BOUND})?)"
_ENTRY = re.compile(rf"(.*[^\\])\[({_PART}(?:,{_PART})*)\]", re.DOTALL)


def split_slice(entry: str) -> tuple[str, Index | None]:
    """An entry of `freeze` as its regular expression and its slice, None for whole tensors."""
    match = _ENTRY.fullmatch(entry)
    return (entry, None) if match is None else (match[1], tuple(map(_parse_part, match[2].split(","))))


def _parse_part(text: str) -> int | slice | EllipsisType:
    """One of the parts between commas."""
    if text.strip() == "...":
        return ...
    start, *others = (int(number) if number.strip() else None for number in text.split(":"))
    return slice(start, *others) if others or start is None else start


def is_trained(train_only: Sequence[str], freeze: Sequence[str], path: str) -> bool:
    """Whether some of a tensor is trained: it matches `train_only`, if there is any, and no whole `freeze` entry."""
    whole = [entry for entry in freeze if split_slice(entry)[1] is None]
    return (not train_only or matches(train_only, path)) and not matches(whole, path)


def slice_masks(freeze: Sequence[str], params: Any) -> dict[str, np.ndarray]:
    """False where a slice is frozen, by path, for the tensors that have one.

    The leaves of `params` need only a shape. Each mask is a bool array that broadcasts to it: axes along which nothing
    changes have length 1.

    Raises:
      ValueError: for a slice that does not fit its tensor.
    """
    masks: dict[str, np.ndarray] = {}
    for entry in freeze:
        pattern, index = split_slice(entry)
        for path, leaf in by_path(params).items():
            if index is not None and matches((pattern,), path):
                masks[path] = masks.get(path, np.bool_(True)) & ~_select(entry, index, path, leaf.shape)
    return masks


def mask_slices(tree: Any, masks: dict[str, np.ndarray]) -> Any:
    """Gradients or updates with zeros in the frozen slices, whatever stands there: NaNs, too.

    Both need it: frozen gradients must not count among those that are compressed, and an optimiser that decays weights
    moves them without a gradient. The zeros are negative, as -0 + x is x in all of its bits, and 0 + x is not for -0.
    """

    def keep(keys: Any, leaf: jax.Array) -> jax.Array:
        path = path_of(keys)
        return jnp.where(masks[path], leaf, jnp.asarray(-0.0, leaf.dtype)) if path in masks else leaf

    return jax.tree_util.tree_map_with_path(keep, tree)


def require_trainable(train_only: Sequence[str], freeze: Sequence[str], params: Any) -> None:
    """Refuses a recipe's entries that do not fit a network, or that leave nothing to train.

    Args:
      train_only, freeze: the recipe's.
      params: a tree of all weights, trained or not; its leaves need only a shape.

    Raises:
      ValueError: naming the entry, and paths that are like it, or the tensor and its shape.
    """
    paths = list(by_path(params))
    for pattern in train_only:
        require_match("model.train_only", pattern, paths)
    for entry in freeze:
        require_match("model.freeze", split_slice(entry)[0], paths, entry)
    masks = slice_masks(freeze, params)
    if not any(is_trained(train_only, freeze, path) and masks.get(path, np.bool_(True)).any() for path in paths):
        given = f"model.train_only={tuple(train_only)!r}, model.freeze={tuple(freeze)!r}"
        raise ValueError(f"{given}: must leave a tensor to train")


def _select(entry: str, index: Index, path: str, shape: tuple[int, ...]) -> np.ndarray:
    """Where the slice is: True there; axes along which nothing changes have length 1."""
    selected = np.zeros(shape, bool)
    try:
        selected[index] = True
    except (IndexError, ValueError) as error:
        raise ValueError(f"model.freeze={entry!r}: must be within {path}, of shape {shape}: {error}") from None
    if not selected.any():
        raise ValueError(f"model.freeze={entry!r}: must select some of {path}, of shape {shape}")
    for axis in range(selected.ndim):
        first = selected.take([0], axis)
        selected = first if np.all(selected == first) else selected
    return selected
