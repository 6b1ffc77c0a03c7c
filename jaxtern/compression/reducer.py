"""The protocol of a reducer: how the tensors of N workers become their mean."""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxtern.compression import collectives
from jaxtern.compression.collectives import Axes
from jaxtern.compression.float_runs import mean_in_order
from jaxtern.compression.network.links import Traffic
from jaxtern.kernels import derive_key
from jaxtern.kernels.segments import fill_up

SHARED = ("mean", "dither", "rotation")  # noise that all workers share; its keys are those of the last worker numbers

Tensors = list[jax.Array]  # of one worker, in the order of the layout


def places_by_kind(kinds: Sequence[Any]) -> list[list[int]]:
    """Lists of the places of each kind."""
    return [[place for place, own in enumerate(kinds) if own == kind] for kind in dict.fromkeys(kinds)]


def put(whole: list[Any], places: Sequence[int], part: Sequence[Any]) -> None:
    """Sets the entries of `whole` at these places to those of `part`."""
    for place, value in zip(places, part, strict=True):
        whole[place] = value


class Layout(NamedTuple):
    """The tensors of one worker, without their values.

    Attributes:
      paths: name of each tensor, such as "conv1/kernel".
      shapes: shape of each.
      dtypes: floating-point dtype of each.
      varying: sorted axes, other than the workers', over which `shard_map` tracks that a tensor varies; () if none.
        Tensors that differ here must not be joined, or the whole result would vary.
    """

    paths: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[jnp.dtype, ...]
    varying: tuple[tuple[str, ...], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each tensor."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def kinds(self) -> list[list[int]]:
        """Lists of the places of tensors that may be joined, as they vary over the same axes."""
        return places_by_kind(self.varying)

    def select(self, places: Sequence[int]) -> "Layout":
        """The tensors at these places."""
        columns: list[Any] = [tuple(column[place] for place in places) for column in self]
        return Layout(*columns)

    def require_int32(self, counts: Sequence[int]) -> None:
        """Raises ValueError for a tensor whose count of places exceeds an int32."""
        for path, size, count in zip(self.paths, self.sizes, counts, strict=True):
            if count >= 2**31:
                raise ValueError(f"gradient {path!r} has {size} elements: more than the int32 places of this method")


class State(NamedTuple):
    """What a reducer carries from one update to the next; () for nothing.

    Attributes:
      shared: arrays that are the same on every worker.
      local: each worker's own arrays: those of one worker from `init`; in `reduce` a list, one entry for each worker on
        this device.
    """

    shared: Any = ()
    local: Any = ()


class Reduced(NamedTuple):
    """What `reduce` returns.

    Attributes:
      mean: mean of each tensor, the same bits on every worker, of any floating-point dtype.
      state: state for the next update.
      sent: own tensors of each worker on this device, as the others see them; may be None unless `Group.tracks`.
    """

    mean: Tensors
    state: State
    sent: list[Tensors] | None = None


@dataclasses.dataclass(frozen=True)
class Group:
    """The workers of a reduction, its tensors and step, and the collectives between workers.

    The collectives `maximum`, `gather`, `scatter`, `mean` and `pmean` take a list with an entry for each worker on this
    device. Every worker must call them, in the same order.

    Attributes:
      layout: layout of the tensors.
      axes: axes of the workers.
      local_workers: V, number of workers on this device.
      seed: seed of all noise.
      step: int32 scalar, updates before this one.
      tracks: whether `Reduced.sent` is needed.
      owes: whether the tensors include what a wrapper such as `error_feedback` still owes.
      late: updates since the tensors were made; their noise is that of their own step.
    """

    layout: Layout
    axes: Axes
    local_workers: int
    seed: Any
    step: jax.Array
    tracks: bool = False
    owes: bool = False
    late: int = 0

    @property
    def size(self) -> int:
        """N, the number of all workers."""
        return collectives.count_workers(self.axes.workers) * self.local_workers

    def select(self, places: Sequence[int]) -> "Group":
        """The same group for the tensors at these places."""
        return dataclasses.replace(self, layout=self.layout.select(places))

    def indices(self) -> list[jax.Array]:
        """int32 scalars, the number (0 to N - 1) of each worker on this device."""
        first = collectives.worker_index(self.axes.workers) * self.local_workers
        return [first + own for own in range(self.local_workers)]

    def keys(self) -> list[jax.Array]:
        """uint32[2] for each worker on this device, the key of its own noise in this step for `jaxtern.kernels`."""
        return [derive_key(self.seed, self.step - self.late, index) for index in self.indices()]

    def shared_key(self, use: str = "mean") -> jax.Array:
        """uint32[2], a key that is the same on every worker, and different for each of SHARED."""
        return derive_key(self.seed, self.step - self.late, 2**32 - 1 - SHARED.index(use))

    def product(self, left: jax.Array, right: Any) -> jax.Array:
        """float32 left * right, rounded before anything is added to it."""
        return rounded(left * right, self.step)

    def maximum(self, arrays: Sequence[jax.Array]) -> jax.Array:
        """The elementwise maximum."""
        own = functools.reduce(jnp.maximum, arrays)
        return collectives.maximum(own, self.axes.workers) if own.size else own

    def gather(self, trees: Sequence[Any]) -> Any:
        """Gathers each worker's tree of arrays in one message: leaves [N, ...], in the order of the workers."""

        def send(trees: Sequence[list[jax.Array]]) -> list[jax.Array]:
            vectors, restores = zip(*map(collectives.as_words, trees), strict=True)
            rows = collectives.through_fast(
                lambda own: collectives.gather_words(own, self.axes.workers), jnp.stack(vectors), self.axes
            )
            return restores[0](rows)

        return self._by_kind(trees, send)

    def scatter(self, trees: Sequence[Any]) -> list[Any]:
        """Sends row i of all arrays [N, ...] of each worker's tree to worker i, in one message.

        Returns the tree that each worker here receives: leaves [N, ...], in the order of the senders.
        """

        def send(trees: Sequence[list[jax.Array]]) -> list[jax.Array]:
            restore = collectives.as_words([leaf[0] for leaf in trees[0]])[1]
            return restore(
                self._scatter_words([jax.vmap(lambda row: collectives.as_words(row)[0])(own) for own in trees])
            )

        received = self._by_kind(trees, send)
        return [jax.tree.map(lambda leaf, w=worker: leaf[w], received) for worker in range(self.local_workers)]

    def _scatter_words(self, words: Sequence[jax.Array]) -> jax.Array:
        """uint32[N, W] of each worker here to uint32[V, N, W]."""
        axes, width = self.axes, words[0].shape[1]
        shards = collectives.own_slice(fill_up(jnp.stack(words), collectives.count_workers(axes.fast)), axes.fast)
        rows = collectives.scatter_words(shards.reshape(len(words), -1), axes.workers)
        rows = rows.reshape(self.size, self.local_workers, -1)
        if axes.fast:
            joined = collectives.gather_words(rows.reshape(1, -1), axes.fast).reshape(-1, *rows.shape)
            rows = jnp.moveaxis(joined, 0, 2).reshape(self.size, self.local_workers, -1)
        return jnp.moveaxis(rows[..., :width], 1, 0)

    def mean(self, trees: Sequence[Any], dtype: Any = jnp.float32) -> Any:
        """The float32 mean of trees of float arrays, added as float32 in the order of the workers.

        With a dtype of 16 bits, values are rounded to it before they are sent, and so is the mean of more than two
        workers.
        """

        return self._by_kind(trees, lambda own: mean_in_order(own, self.axes, dtype))

    def pmean(self, trees: Sequence[Any]) -> Any:
        """The mean by `lax.pmean`, an all-reduce of floats whose order the backend decides."""
        own = jax.tree.map(lambda *leaves: functools.reduce(operator.add, leaves) / len(leaves), *trees)
        names = self.axes.fast + self.axes.workers
        return collectives.pmean(collectives.vary_over(own, names), names)

    def _by_kind(self, trees: Sequence[Any], send: Callable[[Sequence[list[jax.Array]]], list[jax.Array]]) -> Any:
        """Sends leaves together that vary over the same axes; joined with others, all would vary."""
        leaves, treedef = jax.tree.flatten(trees[0])
        rows = [treedef.flatten_up_to(tree) for tree in trees]
        for places in places_by_kind([collectives.other_axes(leaf, self.axes) for leaf in leaves]):
            put(leaves, places, send([[row[place] for place in places] for row in rows]))
        return treedef.unflatten(leaves)


def rounded(tree: Any, step: jax.Array) -> Any:
    """Keeps compilers from fusing float32 products in the tree with additions that follow.

    Whether they fuse them depends on the program around, and so on how many workers a device has. A zero that is known
    only at run time is added to the bits.
    """

    def guard(leaf: jax.Array) -> jax.Array:
        if leaf.dtype != jnp.float32:
            return leaf
        bits = lax.bitcast_convert_type(leaf, jnp.uint32) + (step >> 31).astype(jnp.uint32)
        return lax.bitcast_convert_type(bits, jnp.float32)

    return jax.tree.map(guard, tree)


def share_out(local: Any, layout: Layout, num_workers: int) -> Any:
    """The default `Reducer.resize`: turns the state of N workers into that of M, with the same mean over workers.

    Worker j of M averages the workers in the j-th of M equal parts of the row of N workers, by their shares of it. So
    what workers owe to the mean, such as residuals, is still owed, up to rounding.

    Args:
      local: NumPy arrays [N, ...].
      layout: layout of the tensors; not used.
      num_workers: M.

    Returns:
      NumPy arrays [M, ...] of the same dtypes.
    """

    def share(leaf: np.ndarray) -> np.ndarray:
        before, edges = len(leaf), np.arange(num_workers + 1) / num_workers
        starts, ends = np.arange(before) / before, (np.arange(before) + 1) / before
        overlap = np.minimum(edges[1:, None], ends) - np.maximum(edges[:-1, None], starts)
        weights = np.maximum(overlap, 0) * num_workers
        weights[weights < 1e-9] = 0
        shared = np.tensordot(weights, leaf.astype(np.float64), axes=1)
        return (np.rint(shared) if np.issubdtype(leaf.dtype, np.integer) else shared).astype(leaf.dtype)

    return jax.tree.map(share, local)


class Reducer(NamedTuple):
    """Pure functions that turn the tensors of N workers into their mean, like an optax transformation.

    Attributes:
      init: (layout, N) -> State at the start, whose `local` is that of one worker.
      reduce: (tensors of each worker on this device, State whose `local` is a list of theirs, Group) -> Reduced.
      traffic: (layout, N) -> Traffic, what one worker sends in an update.
      resize: (State.local of N workers as NumPy arrays [N, ...], layout, M) -> the same of M workers.
      floats: reducer of tensors that are to stay float; None: `float_mean(in_order=True)`.
    """

    init: Callable[[Layout, int], State]
    reduce: Callable[[list[Tensors], State, Group], Reduced]
    traffic: Callable[[Layout, int], Traffic]
    resize: Callable[[Any, Layout, int], Any] = share_out
    floats: "Reducer | None" = None


def stateless(layout: Layout, num_workers: int) -> State:
    """The `init` of a reducer without state."""
    return State()


def sum_in_order(x: jax.Array) -> jax.Array:
    """The sum, in an order that depends only on the size; a compiler's own order depends on the program around it."""
    x = x.reshape(-1) if x.size else jnp.zeros((1,), x.dtype)
    while x.size > 1:
        x = functools.reduce(operator.add, list(fill_up(x, 16).reshape(16, -1)))
    return x[0]
