"""Selects tensors by their paths, "conv1/kernel"."""

import difflib
import re
from collections.abc import Sequence
from typing import Any

import jax


def path_of(keys: Any) -> str:
    """The path of a leaf, names joined by slashes, from the keys of `jax.tree_util.tree_flatten_with_path`."""
    return jax.tree_util.keystr(keys, simple=True, separator="/")


def by_path(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by their paths."""
    return {path_of(keys): leaf for keys, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def matches(patterns: Sequence[str], path: str) -> bool:
    """Whether one of the regular expressions matches the whole path."""
    return any(re.fullmatch(pattern, path) for pattern in patterns)


def mask(patterns: Sequence[str], tree: Any) -> Any:
    """A tree of bools: whether the path of each leaf matches."""
    return jax.tree_util.tree_map_with_path(lambda keys, _: matches(patterns, path_of(keys)), tree)


def require_match(name: str, pattern: str, paths: Sequence[str], entry: str | None = None) -> None:
    """Raises ValueError, with similar paths, for a field's regular expression that matches none of these paths.

    `entry` is the entry of the field, if that is more than the expression.
    """
    if not any(matches((pattern,), path) for path in paths):
        near = difflib.get_close_matches(pattern, paths, cutoff=0.4) or paths[:3]
        raise ValueError(f"{name}={entry or pattern!r}: must match the path of a tensor; available: {', '.join(near)}")
