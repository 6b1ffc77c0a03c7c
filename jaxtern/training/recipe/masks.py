"""Selects which tensors, and which slices of them, are trained.

An entry of `freeze` is a regular expression of whole paths, perhaps followed by a slice in NumPy's notation:
"conv2/kernel[:, :, 29, 13]", "fc1/kernel[..., ::2]". A final "[...]" is a slice if it consists of integers,
start:stop:step and at most one "...", with commas between them. A class of characters that looks like one, "w[12]", is
put in parentheses, "(w[12])". An entry with a slice that also matches a tensor as a whole is refused.
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

_NUMBER = r"[-+]?[0-9]{1,9}"
_ENTRY = re.compile(r"(.*[^\\])\[([-+0-9:., ]+)\]", re.DOTALL)
_RANGE = re.compile(rf"({_NUMBER})?\s*:\s*({_NUMBER})?(?:\s*:\s*({_NUMBER})?)?")


def split_slice(entry: str) -> tuple[str, Index | None]:
    """Splits an entry of `freeze` into its regular expression and its slice, None for whole tensors."""
    match = _ENTRY.fullmatch(entry)
    if match is None:
        return entry, None
    index = tuple(_parse_part(part.strip()) for part in match[2].split(","))
    if None in index or index.count(...) > 1:
        return entry, None
    return match[1], index  # pyright: ignore[reportReturnType]


def _parse_part(text: str) -> int | slice | EllipsisType | None:
    """Parses a part between commas; None if it is not part of a slice."""
    if text == "...":
        return ...
    if re.fullmatch(_NUMBER, text):
        return int(text)
    match = _RANGE.fullmatch(text)
    if match is None or (match[3] and int(match[3]) == 0):
        return None
    return slice(*(int(number) if number else None for number in match.groups()))


def is_trained(train_only: Sequence[str], freeze: Sequence[str], path: str) -> bool:
    """Whether any part of a tensor is trained: it matches `train_only`, if given, and no whole entry of `freeze`."""
    whole = [entry for entry in freeze if split_slice(entry)[1] is None]
    return (not train_only or matches(train_only, path)) and not matches(whole, path)


def slice_masks(freeze: Sequence[str], params: Any) -> dict[str, np.ndarray]:
    """Bool arrays, by path, that are False where a slice is frozen, for the tensors that have frozen slices.

    They broadcast to the tensors, of which only shapes count; axes along which nothing changes have length 1. Raises
    ValueError for a slice that does not fit its tensor.
    """
    masks: dict[str, np.ndarray] = {}
    for entry in freeze:
        pattern, index = split_slice(entry)
        for path, leaf in by_path(params).items():
            if index is not None and matches((pattern,), path):
                masks[path] = masks.get(path, np.bool_(True)) & ~_select(entry, index, path, leaf.shape)
    return masks


def mask_slices(tree: Any, masks: dict[str, np.ndarray]) -> Any:
    """Sets frozen slices of gradients or updates to zero, even if they hold NaNs.

    Gradients need it, as frozen ones must not be compressed; updates need it, as weight decay moves weights without a
    gradient. The zeros are negative, as -0 + x has the bits of any x, while 0 + -0 is +0.
    """

    def keep(keys: Any, leaf: jax.Array) -> jax.Array:
        path = path_of(keys)
        return jnp.where(masks[path], leaf, jnp.asarray(-0.0, leaf.dtype)) if path in masks else leaf

    return jax.tree_util.tree_map_with_path(keep, tree)


def require_trainable(train_only: Sequence[str], freeze: Sequence[str], params: Any) -> None:
    """Raises ValueError for entries that do not fit a network's weights, or that leave nothing to train.

    `params` are all weights, trained or not, of which only shapes count.
    """
    paths = list(by_path(params))
    for pattern in train_only:
        require_match("model.train_only", pattern, paths)
    for entry in freeze:
        pattern, index = split_slice(entry)
        if index is not None and (both := [path for path in paths if _reads_as_class(entry, path)]):
            raise ValueError(
                f"model.freeze={entry!r}: must not be both a slice and a regular expression of {both[0]}; for that,"
                f" write {f'({entry})'!r}"
            )
        require_match("model.freeze", pattern, paths, entry)
    masks = slice_masks(freeze, params)
    if not any(is_trained(train_only, freeze, path) and masks.get(path, np.bool_(True)).any() for path in paths):
        given = f"model.train_only={tuple(train_only)!r}, model.freeze={tuple(freeze)!r}"
        raise ValueError(f"{given}: must leave a tensor to train")


def _reads_as_class(entry: str, path: str) -> bool:
    """Whether an entry with a slice also matches a path as one regular expression."""
    try:
        return matches((entry,), path)
    except re.error:  # such as [2:1]
        return False


def _select(entry: str, index: Index, path: str, shape: tuple[int, ...]) -> np.ndarray:
    """A bool array that is True in the slice; axes that it takes whole have length 1."""
    selected = np.ones((1,) * len(shape), bool)
    for axis, (part, size) in enumerate(zip(_expand(entry, index, path, shape), shape, strict=True)):
        bounds = (part,) if isinstance(part, int) else (part.start, part.stop)
        taken = np.zeros(size, bool)
        if all(bound is None or -size <= bound < size + isinstance(part, slice) for bound in bounds):
            taken[part] = True
        if not taken.any():
            raise ValueError(f"model.freeze={entry!r}: must be within {path}, of shape {shape}, and select some of it")
        along = (1,) * axis + (-1,) + (1,) * (len(shape) - axis - 1)
        selected = selected & (np.ones(1, bool) if taken.all() else taken).reshape(along)
    return selected


def _expand(entry: str, index: Index, path: str, shape: tuple[int, ...]) -> list[int | slice]:
    """One part for each axis: whole axes in place of "...", or after the last part."""
    given = len(index) - index.count(...)
    if given > len(shape):
        raise ValueError(f"model.freeze={entry!r}: must have no more indices than {path} has axes, of shape {shape}")
    place = index.index(...) if ... in index else len(index)
    whole = [slice(None)] * (len(shape) - given)
    return [*index[:place], *whole, *index[place + 1 :]]  # pyright: ignore[reportReturnType]
