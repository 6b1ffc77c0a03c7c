"""Arrays by their paths, out of one tree into the structure of another."""

from typing import Any

import jax

from jaxtern.training.recipe.selection import by_path


class MisfitError(ValueError):
    """What is saved is whole, but not what is asked for."""


def arrange(saved: Any, like: Any) -> Any:
    """The arrays of `saved` in the structure of `like`, which has the same paths, shapes and dtypes.

    A NamedTuple, a dict of its fields and a list are alike.

    Raises:
      MisfitError: naming the first array that is not alike.
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
    """Dtype and shape, as "float32[3,4]"."""
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"
