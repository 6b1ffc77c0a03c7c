"""A pytree of gradients to flat vectors and back; which tensors are compressed and which stay float."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxtern.kernels.segments import split

PathPredicate = Callable[[str], bool]


@dataclasses.dataclass(frozen=True)
class Layout:
    """The static description of a tree of gradients; absent ones (None) are no part of it.

    Attributes:
      treedef: structure of the tree.
      paths: the name of every tensor, as "conv1/kernel".
      shapes: its shape.
      dtypes: its dtype.
      compressed: whether it is compressed; the others stay float.
    """

    treedef: Any
    paths: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[jnp.dtype, ...]
    compressed: tuple[bool, ...]

    def sizes(self, compressed: bool) -> tuple[int, ...]:
        """Elements of every compressed (or of every float) tensor."""
        return tuple(math.prod(shape) for shape, c in zip(self.shapes, self.compressed, strict=True) if c == compressed)


def plan_layout(tree: Any, min_size: int, exclude: PathPredicate | None) -> Layout:
    """Decides for every tensor of `tree`: float if it has fewer than `min_size` elements or `exclude(path)` is true.

    Raises:
      ValueError: if a tensor is not floating-point.
    """
    leaves, treedef = jax.tree_util.tree_flatten_with_path(tree)
    paths = tuple(jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves)
    arrays = [jnp.asarray(leaf) for _, leaf in leaves]
    for path, array in zip(paths, arrays, strict=True):
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise ValueError(f"gradient {path!r} is {array.dtype}: only floating-point gradients can be averaged")
    compressed = tuple(
        array.size >= min_size and not (exclude is not None and exclude(path))
        for path, array in zip(paths, arrays, strict=True)
    )
    return Layout(treedef, paths, tuple(a.shape for a in arrays), tuple(a.dtype for a in arrays), compressed)


def flatten(tree: Any, layout: Layout) -> tuple[jax.Array, jax.Array]:
    """The compressed and the float tensors of `tree`, each as one float32 vector in tree order."""
    leaves = layout.treedef.flatten_up_to(tree)

    def bucket(compressed: bool) -> jax.Array:
        parts = [
            jnp.asarray(leaf).reshape(-1).astype(jnp.float32)
            for leaf, c in zip(leaves, layout.compressed, strict=True)
            if c == compressed
        ]
        return jnp.concatenate(parts) if parts else jnp.zeros((0,), jnp.float32)

    return bucket(True), bucket(False)


def unflatten(compressed: jax.Array, floats: jax.Array, layout: Layout) -> Any:
    """The inverse of `flatten`; every tensor returns to its own dtype."""
    parts = {True: iter(split(compressed, layout.sizes(True))), False: iter(split(floats, layout.sizes(False)))}
    leaves = [
        next(parts[c]).reshape(shape).astype(dtype)
        for c, shape, dtype in zip(layout.compressed, layout.shapes, layout.dtypes, strict=True)
    ]
    return layout.treedef.unflatten(leaves)
