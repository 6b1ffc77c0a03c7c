"""A pytree of gradients to flat vectors and back: what travels together, what is compressed, what stays float."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxtern.kernels import concatenate
from jaxtern.kernels.noise import LANES
from jaxtern.kernels.radix import RUN
from jaxtern.kernels.segments import split

PathPredicate = Callable[[str], bool]

BUCKET_SIZE = 2**22  # elements, if nothing else is said: some milliseconds of a link of 1 Gbit/s


class Bucket(NamedTuple):
    """Tensors that are exchanged together.

    Attributes:
      compressed: places of the compressed ones among the tree's tensors, in the order of the bucket.
      floats: places of those that stay float.
      position: of the first compressed element in the stream of noise, a multiple of 512.
    """

    compressed: tuple[int, ...]
    floats: tuple[int, ...]
    position: int


class Flat(NamedTuple):
    """A bucket's tensors as two float32 vectors."""

    compressed: jax.Array
    floats: jax.Array


class Tensors(NamedTuple):
    """A bucket's compressed tensors as they are, but float32; those that stay float as a vector."""

    compressed: Sequence[jax.Array]
    floats: jax.Array


@dataclasses.dataclass(frozen=True)
class Layout:
    """The static description of a tree of gradients; absent ones (None) are no part of it.

    Attributes:
      treedef: structure of the tree.
      paths: the name of every tensor, as "conv1/kernel".
      shapes: its shape.
      dtypes: its dtype.
      buckets: every tensor in one of them.
    """

    treedef: Any
    paths: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[jnp.dtype, ...]
    buckets: tuple[Bucket, ...]

    def sizes(self, places: Sequence[int]) -> tuple[int, ...]:
        """Elements of the tensors at these places."""
        return tuple(math.prod(self.shapes[place]) for place in places)


def plan_layout(tree: Any, min_size: int, exclude: PathPredicate | None, bucket_size: int | None = None) -> Layout:
    """Decides for every tensor of `tree` whether it is compressed, and with which others it travels.

    A tensor stays float if it has fewer than `min_size` elements or `exclude(path)` is true. With `bucket_size` the
    compressed ones are taken from the last, whose gradient is ready first, to the first: one of so many elements is a
    bucket, and smaller neighbours share one until it is full. Those that stay float travel with the last.

    Raises:
      ValueError: if a tensor is not floating-point.
    """
    leaves, treedef = jax.tree_util.tree_flatten_with_path(tree)
    paths = tuple(jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves)
    arrays = [leaf if hasattr(leaf, "dtype") and hasattr(leaf, "shape") else jnp.asarray(leaf) for _, leaf in leaves]
    for path, array in zip(paths, arrays, strict=True):
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise ValueError(f"gradient {path!r} is {array.dtype}: only floating-point gradients can be averaged")
    shapes, dtypes = tuple(tuple(a.shape) for a in arrays), tuple(jnp.dtype(a.dtype) for a in arrays)
    sizes = [math.prod(shape) for shape in shapes]
    is_float = [
        size < min_size or (exclude is not None and exclude(path)) for path, size in zip(paths, sizes, strict=True)
    ]
    floats = tuple(place for place in range(len(paths)) if is_float[place])
    compressed = [place for place in range(len(paths)) if not is_float[place]]
    groups = [tuple(compressed)] if bucket_size is None else list(_group(compressed[::-1], sizes, bucket_size))
    return Layout(treedef, paths, shapes, dtypes, tuple(_number(groups, floats, sizes)))


def _group(places: list[int], sizes: list[int], bucket_size: int) -> Iterator[tuple[int, ...]]:
    """Neighbours until they have `bucket_size` elements; a large tensor stands alone."""
    group: list[int] = []
    for place in places:
        if sizes[place] >= bucket_size:
            yield (place,)
            continue
        group.append(place)
        if sum(sizes[member] for member in group) >= bucket_size:
            yield tuple(sorted(group))
            group = []
    if group:
        yield tuple(sorted(group))


def _number(groups: list[tuple[int, ...]], floats: tuple[int, ...], sizes: list[int]) -> Iterator[Bucket]:
    position = 0
    for number, group in enumerate(groups or [()]):
        is_last = number + 1 >= len(groups)
        yield Bucket(group, floats if is_last else (), position)
        elements = sum(sizes[place] for place in group)
        position += -(-elements // (LANES * RUN)) * LANES * RUN


def take(tree: Any, layout: Layout) -> list[Tensors]:
    """The tensors of every bucket."""
    leaves = [jnp.asarray(leaf).astype(jnp.float32) for leaf in layout.treedef.flatten_up_to(tree)]
    return [
        Tensors([leaves[place] for place in bucket.compressed], concatenate([leaves[place] for place in bucket.floats]))
        for bucket in layout.buckets
    ]


def give_back(bucketed: Sequence[Tensors], layout: Layout) -> Any:
    """The inverse of `take`; every tensor returns to its own dtype."""
    leaves: list[Any] = [None] * len(layout.paths)
    for bucket, own in zip(layout.buckets, bucketed, strict=True):
        floats = split(own.floats, layout.sizes(bucket.floats))
        for place, tensor in zip(bucket.compressed + bucket.floats, [*own.compressed, *floats], strict=True):
            leaves[place] = tensor.reshape(layout.shapes[place]).astype(layout.dtypes[place])
    return layout.treedef.unflatten(leaves)


def flatten(tree: Any, layout: Layout) -> list[Flat]:
    """The tensors of every bucket, in one vector."""
    return [Flat(concatenate(own.compressed), own.floats) for own in take(tree, layout)]
