"""The collectives: the only file that talks to axis names.

Axes may be mesh axes of `shard_map`, the axis of a `pmap`, a vmapped axis (virtual workers), or several of these in
one tuple, the first the slowest to change. Results are the same on every worker, and `shard_map` with `check_vma` knows
it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

AxisNames = tuple[str, ...]


def as_axis_names(axis_name: str | tuple[str, ...] | None) -> AxisNames:
    """One name or several as a tuple; None is none.

    Raises:
      ValueError: if a tuple is empty, or has a name twice.
    """
    if axis_name is None:
        return ()
    names = tuple(axis_name) if isinstance(axis_name, tuple | list) else (axis_name,)
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise ValueError(f"axis_name={axis_name!r}: must be the name of an axis, or a tuple of different names")
    return names


def count_workers(names: AxisNames) -> int:
    """The number of places along all axes.

    Raises:
      ValueError: if an axis is not bound where the call stands.
    """
    size = 1
    for name in names:
        try:
            size *= int(lax.axis_size(name))
        except NameError:
            raise ValueError(
                f"axis_name={name!r}: no such axis here; call inside shard_map, pmap or vmap with an axis of that name"
            ) from None
    return size


def worker_index(names: AxisNames) -> jax.Array:
    """int32 scalar: this place among all, row-major over the axes."""
    index = jnp.int32(0)
    for name in names:
        index = index * int(lax.axis_size(name)) + lax.axis_index(name)
    return index


def checked_axes(names: AxisNames) -> AxisNames:
    """The axes, if `shard_map` tracks what varies over them (check_vma=True), or none.

    Raises:
      ValueError: if it tracks some of them but others are vmapped, for which JAX has no collectives.
    """
    checked = tuple(name for name in names if name in varying_axes(lax.axis_index(name)))
    if checked and checked != names:
        raise ValueError(
            f"axis_name={names!r}: a vmapped axis beside axes of a shard_map with check_vma=True, for which JAX has no"
            " collectives; pass check_vma=False to shard_map"
        )
    return checked


def varying_axes(x: jax.Array) -> frozenset[str]:
    """The tracked axes over which `x` differs from worker to worker."""
    return jax.typeof(x).manual_axis_type.varying


def maximum(x: jax.Array, names: AxisNames) -> jax.Array:
    """Elementwise maximum over all workers."""
    return _reduce(lax.pmax, x, names)


def add_words(words: jax.Array, names: AxisNames) -> jax.Array:
    """uint32[W] words of every device to their sum, uint32[1, W]: the exchange `sum`."""
    return _reduce(lax.psum, words, names)[None] if words.size else jnp.zeros((1, 0), words.dtype)


def gather_words(words: jax.Array, names: AxisNames) -> jax.Array:
    """uint32[V, W] words of the workers of every device to uint32[N, W]: the exchange `gather`."""
    to = "invarying" if checked_axes(names) else "varying"
    width = words.shape[-1]
    if not width:  # nothing to exchange
        return jnp.zeros((words.shape[0] * count_workers(names), 0), words.dtype)
    if is_mutual(names):
        return _gather_two(words, _shared_axes(names))
    for name in reversed(_shared_axes(names)):  # a vmapped axis cannot share an all_gather with others
        words = lax.all_gather(words, name, to=to)
    return words.reshape(-1, width)


def is_mutual(names: AxisNames) -> bool:
    """Whether there are two devices, and an all-reduce can stand for an all-gather: see `_gather_two`."""
    return not checked_axes(names) and count_workers(_shared_axes(names)) == 2


def _gather_two(words: jax.Array, names: AxisNames) -> jax.Array:
    """Of two devices, each of which knows its own words: the other's are the sum of both less those, modulo 2^32.

    An all-reduce of two sends as much as an all-gather. Over gloo it fills both directions of a link, where several
    all-gathers in a row take up to 1.5 times as long. (JAX cannot know that the result is the same on both.)
    """
    other = lax.psum(words, names) - words
    is_first = worker_index(names) == 0
    return jnp.concatenate([jnp.where(is_first, words, other), jnp.where(is_first, other, words)])


def scatter_words(words: jax.Array, names: AxisNames, *, in_pairs: bool = False) -> jax.Array:
    """uint32[V, P * W] words of the workers of each of P devices to uint32[N, W], all workers' words of one shard.

    The p-th device, row-major over the axes, is given the p-th shard; on CPUs, `in_pairs` if it can be.
    """
    rows, width = words.shape
    shards = words.reshape(rows, count_workers(names), -1)
    shared = _shared_axes(names)
    if shared and width:
        in_pairs = (in_pairs or shards.shape[1] == 2) and shards.shape[1] % 2 == 0 and _can_pair(shared)
        shards = _exchange_in_pairs(shards, *shared) if in_pairs else _all_to_all(shards, shared)
    return shards.reshape(rows * count_workers(names), -1)


def _all_to_all(shards: jax.Array, names: AxisNames) -> jax.Array:
    """[V, P, W] to [P * V, 1, W], by devices and then by their workers."""
    return lax.all_to_all(shards, names, split_axis=1, concat_axis=0)


def _exchange_in_pairs(shards: jax.Array, name: str) -> jax.Array:
    """The same for an even number of devices, in P - 1 rounds: in each, two and two add what they have for one another.

    An all-reduce of two sends no more than they would have sent, and each finds the other's by taking off its own. Over
    gloo an all-to-all takes 1.3 to 1.7 times as long as its bytes need; but here all wait for all in every round.
    """
    rows, devices, width = shards.shape
    own = lax.axis_index(name)
    kept = lax.dynamic_index_in_dim(shards, own, 1, keepdims=False)
    found = jnp.zeros((devices, rows, width), shards.dtype).at[own].set(kept)
    for pairs in tournament(devices):
        partners = np.empty(devices, np.int32)
        for a, b in pairs:
            partners[a], partners[b] = b, a
        partner = jnp.asarray(partners)[own]
        sent = lax.dynamic_index_in_dim(shards, partner, 1, keepdims=False)
        total = lax.psum(sent, name, axis_index_groups=pairs)
        found = found.at[partner].set(total - sent)
    return found.reshape(devices * rows, 1, width)


def tournament(devices: int) -> list[list[list[int]]]:
    """Rounds of pairs of an even number of devices: every two meet once, and in each round all do."""
    last = devices - 1
    return [
        [[last, turn], *([(turn + k) % last, (turn - k) % last] for k in range(1, devices // 2))]
        for turn in range(last)
    ]


def _can_pair(names: AxisNames) -> bool:
    """Whether collectives are those of CPUs, over one axis of a mesh that `shard_map` does not track."""
    mesh_axes = jax.sharding.get_abstract_mesh().axis_names
    return jax.default_backend() == "cpu" and len(names) == 1 and names[0] in mesh_axes and not checked_axes(names)


def own_slice(words: jax.Array, names: AxisNames) -> jax.Array:
    """[..., D * W] to [..., W]: of what all D places along the axes hold alike, the part of this place."""
    width = words.shape[-1] // count_workers(names)
    return lax.dynamic_slice_in_dim(words, worker_index(names) * width, width, axis=-1)


def float_mean(tree: Any, names: AxisNames) -> Any:
    """`lax.pmean`: the exchange `float`."""
    return _reduce(lax.pmean, tree, names)


def _reduce(collective: Callable[[Any, AxisNames], Any], tree: Any, names: AxisNames) -> Any:
    shared = _shared_axes(names)
    return collective(tree, shared) if shared else tree


def _shared_axes(names: AxisNames) -> AxisNames:
    """All axes but those with a single device, since one worker alone exchanges nothing.

    A vmapped axis stays, and so do all that `shard_map` tracks: only from a collective does JAX learn that the result
    is the same everywhere.
    """
    mesh_axes = jax.sharding.get_abstract_mesh().axis_names
    return checked_axes(names) or tuple(
        name for name in names if not (name in mesh_axes and int(lax.axis_size(name)) == 1)
    )
