"""Which tensors are trained, and which slices of them are not.

An entry of `freeze` is a regular expression of whole paths, or one with a slice behind it, as NumPy writes it:
"conv2/kernel[:, :, 29, 13]", "fc1/kernel[..., ::2]" (a dot in place of the slash matches, too). What follows the last
"[" is a slice if all of it, up to a "]" at the end, reads as integers, start:stop:step and at most one "...", with
commas between them. A class of characters that reads as one, "w[12]", is therefore put in parentheses, "(w[12])". An
entry that, as a whole, also matches a tensor is refused, not guessed.
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
    """An entry of `freeze` as its regular expression and its slice, None for whole tensors."""
    match = _ENTRY.fullmatch(entry)
    if match is None:
        return entry, None
    index = tuple(_parse_part(part.strip()) for part in match[2].split(","))
    if None in index or index.count(...) > 1:
        return entry, None
    return match[1], index  # pyright: ignore[reportReturnType]


def _parse_part(text: str) -> int | slice | EllipsisType | None:
    """One of the parts between commas; None if it is none."""
    if text == "...":
        return ...
    if re.fullmatch(_NUMBER, text):
        return int(text)
    match = _RANGE.fullmatch(text)
    if match is None or (match[3] and int(match[3]) == 0):
        return None
    return slice(*(int(number) if number else None for number in match.groups()))


def is_trained(train_only: Sequence[str], freeze: Sequence[str], path: str) -> bool:
    """Whether some of a tensor is trained: it matches `train_only`, if there is any, and no whole `freeze` entry."""
    whole = [entry for entry in freeze if split_slice(entry)[1] is None]
    return (not train_only or matches(train_only, path)) and not matches(whole, path)


def slice_masks(freeze: Sequence[str], params: Any) -> dict[str, np.ndarray]:
    """False where a slice is frozen, by path, for the tensors that have one.

    Args:
      freeze: a recipe's.
      params: a tree; its leaves need only a shape.

    Returns:
      Of each such tensor a bool array that broadcasts to its shape: axes along which nothing changes have length 1.

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
    """Refuses entries of `train_only` and `freeze` that do not fit a network, or that leave nothing to train.

    Args:
      train_only: a recipe's.
      freeze: a recipe's.
      params: a tree of all weights, trained or not; its leaves need only a shape.

    Raises:
      ValueError: naming the entry, and paths that are like it, or the tensor and its shape.
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
    """Where the slice is: True there; axes that it takes whole have length 1."""
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
    """One part an axis: whole axes in place of "...", or behind the last part."""
    given = len(index) - index.count(...)
    if given > len(shape):
        raise ValueError(f"model.freeze={entry!r}: must have no more indices than {path} has axes, of shape {shape}")
    place = index.index(...) if ... in index else len(index)
    whole = [slice(None)] * (len(shape) - given)
    return [*index[:place], *whole, *index[place + 1 :]]  # pyright: ignore[reportReturnType]
