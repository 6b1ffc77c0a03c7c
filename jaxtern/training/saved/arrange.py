"""Arrays by their paths, out of one tree into the structure of another."""

from typing import Any

import jax

from jaxtern.training.recipe.selection import path_of


class MisfitError(ValueError):
    """What is saved is whole, but not what is asked for."""


def arrange(saved: Any, like: Any) -> Any:
    """The arrays of `saved` in the structure of `like`; a NamedTuple, a dict of its fields and a list are alike.

    Args:
      saved: arrays.
      like: arrays of the same paths, shapes and dtypes.

    Raises:
      MisfitError: naming the first array that is not alike.
    """
    wanted, structure = jax.tree_util.tree_flatten_with_path(like)
    found = {path_of(keys): leaf for keys, leaf in jax.tree_util.tree_flatten_with_path(saved)[0]}
    names = [path_of(keys) for keys, _ in wanted]
    for name, (_, leaf) in zip(names, wanted, strict=True):
        if name not in found:
            raise MisfitError(f"lacks {name!r}, which this run has")
        if describe(found[name]) != describe(leaf):
            raise MisfitError(f"holds {name!r} as {describe(found[name])}, which this run has as {describe(leaf)}")
    for name in found:
        if name not in names:
            raise MisfitError(f"holds {name!r}, which this run has not")
    return structure.unflatten([found[name] for name in names])


def describe(array: Any) -> str:
    """Dtype and shape, as "float32[3,4]"."""
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"
