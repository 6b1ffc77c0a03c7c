"""Tensors chosen by their paths, "conv1/kernel"."""

import re
from collections.abc import Sequence
from typing import Any

import jax


def path_of(keys: Any) -> str:
    """Of a leaf, as `jax.tree_util.tree_flatten_with_path` has it: names with slashes between them."""
    return jax.tree_util.keystr(keys, simple=True, separator="/")


def matches(patterns: Sequence[str], path: str) -> bool:
    """Whether one of the regular expressions matches the whole path."""
    return any(re.fullmatch(pattern, path) for pattern in patterns)


def mask(patterns: Sequence[str], tree: Any) -> Any:
    """Each leaf as whether its path matches."""
    return jax.tree_util.tree_map_with_path(lambda keys, _: matches(patterns, path_of(keys)), tree)
