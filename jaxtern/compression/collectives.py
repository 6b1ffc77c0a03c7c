"""The collectives: the only file of the package that uses axis names.

Axes may be mesh axes of `shard_map`, the axis of a `pmap`, a vmapped axis (virtual workers), or a tuple of these, the
slowest first. Results are the same on every worker, also to `shard_map` with `check_vma`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxtern.kernels import concatenate, dispatch
from jaxtern.kernels.segments import fill_up, split

AxisNames = tuple[str, ...]

_SMALL = 2**21  # elements; to copy them takes some milliseconds, less than a message over a far link


class Axes(NamedTuple):
    """The axes over the workers and their devices."""

    workers: AxisNames  # axes over workers: the slow links
    # axes over the devices of one worker, which hold the same values; each device exchanges a part of them
    fast: AxisNames = ()


def as_axis_names(axis_name: str | tuple[str, ...]) -> AxisNames:
    """One name or several as a tuple; raises ValueError if it is empty, or has a name twice."""
    names = tuple(axis_name) if isinstance(axis_name, tuple | list) else (axis_name,)
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise ValueError(f"axis_name={axis_name!r}: must be the name of an axis, or a tuple of different names")
    return names


def count_workers(names: AxisNames) -> int:
    """The number of places along all axes; raises ValueError if an axis is not bound here."""
    size = 1
    for name in names:
        try:
            size *= int(lax.axis_size(name))
        except NameError:
            raise ValueError(
                f"axis {name!r}: no such axis here; call inside shard_map, pmap or vmap with an axis of that name"
            ) from None
    return size


def worker_index(names: AxisNames) -> jax.Array:
    """int32 scalar, the index of this place among all, row-major over the axes."""
    return lax.axis_index(names)


def checked_axes(names: AxisNames) -> AxisNames:
    """The axes if `shard_map` tracks what varies over them (check_vma=True), else none.

    Raises ValueError if it tracks only some of them, as others are vmapped; JAX has no collectives for that.
    """
    checked = tuple(name for name in names if name in varying_axes(lax.axis_index(name)))
    if checked and checked != names:
        raise ValueError(
            f"axis_name={names!r}: a vmapped axis beside axes of a shard_map with check_vma=True, for which JAX has no"
            " collectives; pass check_vma=False to shard_map"
        )
    return checked


def varying_axes(x: jax.Array) -> frozenset[str]:
    """The tracked axes over which `x` varies."""
    return jax.typeof(x).manual_axis_type.varying


def other_axes(x: jax.Array, axes: Axes) -> tuple[str, ...]:
    """The tracked axes, other than the workers' own, over which `x` varies, sorted."""
    return tuple(sorted(varying_axes(x) - {*axes.workers, *axes.fast}))


def vary_as(x: jax.Array, like: jax.Array) -> jax.Array:
    """`x`, which `shard_map` then tracks as varying over all axes that `like` varies over."""
    missing = varying_axes(like) - varying_axes(x)
    return lax.pcast(x, tuple(sorted(missing)), to="varying") if missing else x


def vary_over(tree: Any, names: AxisNames) -> Any:
    """The tree, which `shard_map` then tracks as varying over these axes, too."""
    return jax.tree.map(lambda x: vary_as(x, lax.axis_index(names)), tree) if names else tree


def that_vary_no_more(arrays: Sequence[jax.Array], x: jax.Array) -> list[jax.Array]:
    """The arrays on which `x` may depend without varying over more tracked axes."""
    return [each for each in arrays if varying_axes(each) <= varying_axes(x)]


def maximum(x: jax.Array, names: AxisNames) -> jax.Array:
    """Elementwise maximum over all workers; of two devices by an all-gather, which waits for half as many messages."""
    if is_mutual(names):
        return jnp.max(gather_words(x.reshape(1, -1), names, mutual=False), axis=0).reshape(x.shape)
    return _reduce(lax.pmax, x, names)


def add_words(words: jax.Array, names: AxisNames) -> jax.Array:
    """Sums uint32[W] words of all devices to uint32[1, W], modulo 2^32."""
    return (_reduce(lax.psum, words, names) if words.size else words)[None]


def gather_words(words: jax.Array, names: AxisNames, *, mutual: bool = True) -> jax.Array:
    """Gathers uint32[V, W] words of each device as uint32[N, W]; `mutual`: an all-reduce may do it, see `is_mutual`."""
    to = "invarying" if checked_axes(names) else "varying"
    width = words.shape[-1]
    if not width:  # nothing to exchange
        return jnp.zeros((words.shape[0] * count_workers(names), 0), words.dtype)
    if mutual and is_mutual(names):
        # Ordered by bits: XLA may fuse a select with what uses the words, and then round differently on each device.
        swapped = jnp.uint32(0) - worker_index(names).astype(jnp.uint32)  # all bits are set on the second device
        other = _reduce(lax.psum, words, names) - words
        first = words ^ ((words ^ other) & swapped)
        return jnp.concatenate([first, words ^ other ^ first])
    for name in reversed(_shared_axes(names)):  # a vmapped axis cannot share an all_gather with others
        words = lax.all_gather(words, name, to=to)
    return words.reshape(-1, width)


def is_mutual(names: AxisNames) -> bool:
    """Whether there are two devices, between which an all-reduce can replace an all-gather.

    An all-reduce sends as much but, over gloo, uses both directions of a link; all-gathers in a row take up to 1.5
    times as long. But it waits for one more message. `shard_map` must not track what varies, as JAX cannot know that
    the result is the same on both devices.
    """
    return not checked_axes(names) and count_workers(_shared_axes(names)) == 2


def scatter_words(words: jax.Array, names: AxisNames, *, in_pairs: bool = False) -> jax.Array:
    """Turns uint32[V, P * W] words of the workers on P devices into uint32[N, W], all workers' words of one shard.

    The p-th device, row-major over the axes, receives the p-th shard. `in_pairs` uses rounds of pairs, on CPUs if
    possible.
    """
    rows, width = words.shape
    shards = words.reshape(rows, count_workers(names), -1)
    shared = _shared_axes(names)
    if shared and width:
        if (in_pairs or shards.shape[1] == 2) and shards.shape[1] % 2 == 0 and _can_pair(shared):
            shards = _exchange_in_pairs(shards, *shared)
        else:  # [V, P, W] to [P * V, 1, W], by devices and then by their workers
            shards = lax.all_to_all(shards, shared, split_axis=1, concat_axis=0)
    return shards.reshape(rows * count_workers(names), -1)


def _exchange_in_pairs(shards: jax.Array, name: str) -> jax.Array:
    """An all-to-all for an even number of devices in P - 1 rounds; in each, pairs add what they have for one another.

    Each then subtracts its own part. All wait for one another in every round; but an all-to-all over gloo takes 1.4 to
    1.8 times as long as its bytes need, as XLA's notice of what it is ready to receive waits behind what it sends.
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
    """Pairs an even number of devices in rounds: any two meet once, and every round has all devices."""
    last = devices - 1
    return [
        [[last, turn], *([(turn + k) % last, (turn - k) % last] for k in range(1, devices // 2))]
        for turn in range(last)
    ]


def _can_pair(names: AxisNames) -> bool:
    """Whether the backend is a CPU, with one mesh axis that `shard_map` does not track."""
    return dispatch.device().platform == "cpu" and len(names) == 1 and are_of_mesh(names) and not checked_axes(names)


def are_of_mesh(names: AxisNames) -> bool:
    """Whether all axes are those of a mesh or pmap, none that of a vmap."""
    return set(names) <= set(jax.sharding.get_abstract_mesh().manual_axes)


def own_slice(words: jax.Array, names: AxisNames) -> jax.Array:
    """Cuts [..., D * W], which all D places along the axes hold alike, to this place's part [..., W]."""
    if not names:
        return words
    width = words.shape[-1] // count_workers(names)
    return lax.dynamic_slice_in_dim(words, worker_index(names) * width, width, axis=-1)


def through_fast(send: Callable[[jax.Array], jax.Array], words: jax.Array, axes: Axes) -> jax.Array:
    """Sends this device's part of [V, W] words, which are the same over the fast axes, and joins the results."""
    if not axes.fast:
        return send(words)
    devices, width = count_workers(axes.fast), words.shape[-1]
    sent = send(own_slice(fill_up(words, devices), axes.fast))
    joined = gather_words(sent.reshape(1, -1), axes.fast).reshape(devices, *sent.shape)
    return jnp.moveaxis(joined, 0, 1).reshape(sent.shape[0], -1)[:, :width]


def pmean(tree: Any, names: AxisNames) -> Any:
    """`lax.pmean`; the backend decides the order of additions. Between CPU processes, small leaves are one message."""
    if jax.process_count() == 1 or dispatch.device().platform != "cpu" or not _shared_axes(names):
        return _reduce(lax.pmean, tree, names)
    leaves, treedef = jax.tree.flatten(tree)
    kinds: dict[Any, list[int]] = {}
    for place, leaf in enumerate(leaves):
        is_small = 0 < leaf.size < _SMALL and leaf.dtype == jnp.float32
        kinds.setdefault(varying_axes(leaf) if is_small else place, []).append(place)
    for places in kinds.values():
        own = [leaves[place] for place in places]
        flat = concatenate(own) if len(own) > 1 else own[0].reshape(-1)
        mean = _reduce(lax.pmean, flat, names)
        for place, part in zip(places, split(mean, tuple(leaf.size for leaf in own)), strict=True):
            leaves[place] = part.reshape(leaves[place].shape)
    return treedef.unflatten(leaves)


def as_words(leaves: Sequence[jax.Array]) -> tuple[jax.Array, Callable[[jax.Array], list[jax.Array]]]:
    """Joins the bits of arrays, of 1, 2 or 4 bytes an element; only integers are sure to be sent unchanged.

    Returns uint32[W], and the inverse, which turns uint32[..., W] into arrays [..., *shape].
    """
    parts = [as_bits(leaf) for leaf in leaves]

    def restore(words: jax.Array) -> list[jax.Array]:
        return list(map(_from_bits, split(words, tuple(part.size for part in parts)), leaves))

    return jnp.concatenate(parts), restore


def as_bits(leaf: jax.Array) -> jax.Array:
    """uint32[W], the bits of all elements, of 1, 2 or 4 bytes each; zeros fill the last word."""
    flat = leaf.reshape(-1)
    per_word = 4 // leaf.dtype.itemsize
    if per_word == 1:
        return lax.bitcast_convert_type(flat, jnp.uint32)
    return lax.bitcast_convert_type(fill_up(flat, per_word).reshape(-1, per_word), jnp.uint32)


def _from_bits(words: jax.Array, like: jax.Array) -> jax.Array:
    values = lax.bitcast_convert_type(words, like.dtype)
    return values.reshape(*words.shape[:-1], -1)[..., : like.size].reshape(*words.shape[:-1], *like.shape)


def _reduce(collective: Callable[[Any, AxisNames], Any], tree: Any, names: AxisNames) -> Any:
    shared = _shared_axes(names)
    return collective(tree, shared) if shared else tree


def _shared_axes(names: AxisNames) -> AxisNames:
    """All axes except mesh axes with a single device, which need no exchange.

    Axes that `shard_map` tracks stay, as only a collective tells JAX that the result is the same everywhere.
    """
    mesh_axes = jax.sharding.get_abstract_mesh().axis_names
    return checked_axes(names) or tuple(
        name for name in names if not (name in mesh_axes and int(lax.axis_size(name)) == 1)
    )
