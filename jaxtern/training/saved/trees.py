"""Saved trees of arrays: moves the arrays into another structure by their paths, and digests them."""

import hashlib
from typing import Any

import jax
import numpy as np

from jaxtern.training.recipe.selection import by_path


class MisfitError(ValueError):
    """The saved tree is whole, but not of the requested structure."""


def arrange(saved: Any, like: Any) -> Any:
    """The arrays of `saved` in the structure of `like`; NamedTuples, dicts of their fields and lists are equivalent.

    Raises MisfitError, which names the first array that differs in path, shape or dtype.
    """
    wanted, found = by_path(like), by_path(saved)
    for name, leaf in wanted.items():
        if name not in found:
            raise MisfitError(f"lacks {name!r}, which this run has")
        if describe(found[name]) != describe(leaf):
            raise MisfitError(f"holds {name!r} as {describe(found[name])}, which this run has as {describe(leaf)}")
    for name in found:
        if name not in wanted:
            raise MisfitError(f"holds {name!r}, which this run has not")
    return jax.tree.structure(like).unflatten([found[name] for name in wanted])


def describe(array: Any) -> str:
    """Formats dtype and shape: "float32[3,4]"."""
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"


def digest(tree: Any) -> str:
    """BLAKE2b of every array's path, dtype, shape and bytes; a NamedTuple and the dict of its fields have the same."""
    state = hashlib.blake2b(digest_size=16)
    for path, leaf in sorted(by_path(tree).items()):
        array = np.asarray(leaf)
        state.update(f"{path} {array.dtype} {array.shape}".encode())
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()
