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
from jaxtern.compression.network.links import Traffic
from jaxtern.kernels import derive_key
from jaxtern.kernels.segments import fill_up, split

SHARED = ("mean", "dither", "rotation")  # uses of noise that all workers share, as that of the last numbers of workers

Tensors = list[jax.Array]  # of one worker, in the order of the layout


def places_by_kind(kinds: Sequence[Any]) -> list[list[int]]:
    """The places of each kind."""
    return [[place for place, own in enumerate(kinds) if own == kind] for kind in dict.fromkeys(kinds)]


def put(whole: list[Any], places: Sequence[int], part: Sequence[Any]) -> None:
    """Sets the entries of `whole` at these places to those of `part`."""
    for place, value in zip(places, part, strict=True):
        whole[place] = value


class Layout(NamedTuple):
    """The tensors of one worker, without their values.

    Attributes:
      paths: name of each, as "conv1/kernel".
      shapes: its shape.
      dtypes: its dtype, a floating-point one.
      varying: axes besides the workers' over which `shard_map` knows that it differs, sorted. Tensors that differ here
        must not be joined, or all of the result would vary; outside of such a `shard_map` all are ().
    """

    paths: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[jnp.dtype, ...]
    varying: tuple[tuple[str, ...], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def kinds(self) -> list[list[int]]:
        """Places of the tensors that may be joined, by what they vary over."""
        return places_by_kind(self.varying)

    def select(self, places: Sequence[int]) -> "Layout":
        """The tensors at these places."""
        columns: list[Any] = [tuple(column[place] for place in places) for column in self]
        return Layout(*columns)


class State(NamedTuple):
    """What a reducer carries from one update to the next; () where it carries nothing.

    Attributes:
      shared: arrays that are the same on every worker.
      local: each worker's own: of one worker from `init`, in `reduce` a list of those of the workers on this device.
    """

    shared: Any = ()
    local: Any = ()


class Reduced(NamedTuple):
    """What `reduce` returns.

    Attributes:
      mean: of each tensor, the same bits on every worker; of any floating-point dtype.
      state: for the next update.
      sent: of each worker on this device, its own tensors as the others see them; None where nobody asks for them
        (`Group.tracks`).
    """

    mean: Tensors
    state: State
    sent: list[Tensors] | None = None


@dataclasses.dataclass(frozen=True)
class Group:
    """Who reduces what, in which step, and the ways between them.

    Each method takes a list with an entry for each worker on this device, and is a collective: every worker must call
    it, in the same order. What it returns is the same on all workers.

    Attributes:
      layout: of the tensors.
      axes: where the workers lie.
      local_workers: V, those on this device, one behind another.
      seed: of all noise.
      step: int32 scalar, updates before this one.
      tracks: whether `Reduced.sent` is asked for.
      late: updates since the tensors were made; noise is that of their own step.
    """

    layout: Layout
    axes: Axes
    local_workers: int
    seed: Any
    step: jax.Array
    tracks: bool = False
    late: int = 0

    @property
    def size(self) -> int:
        """N, the number of all workers."""
        return collectives.count_workers(self.axes.workers) * self.local_workers

    def select(self, places: Sequence[int]) -> "Group":
        """The same for the tensors at these places alone."""
        return dataclasses.replace(self, layout=self.layout.select(places))

    def indices(self) -> list[jax.Array]:
        """int32 scalars: the number of each worker on this device, 0 to N - 1."""
        first = collectives.worker_index(self.axes.workers) * self.local_workers
        return [first + own for own in range(self.local_workers)]

    def keys(self) -> list[jax.Array]:
        """uint32[2] of each worker on this device: its own noise in this step, for `jaxtern.kernels`' functions."""
        return [derive_key(self.seed, self.step - self.late, index) for index in self.indices()]

    def shared_key(self, use: str = "mean") -> jax.Array:
        """uint32[2], the same on every worker, another for each of SHARED."""
        return derive_key(self.seed, self.step - self.late, 2**32 - 1 - SHARED.index(use))

    def product(self, left: jax.Array, right: Any) -> jax.Array:
        """float32 left * right, rounded before anything is added to it."""
        return rounded(left * right, self.step)

    def maximum(self, arrays: Sequence[jax.Array]) -> jax.Array:
        """The elementwise maximum."""
        own = functools.reduce(jnp.maximum, arrays)
        return collectives.maximum(own, self.axes.workers) if own.size else own

    def gather(self, trees: Sequence[Any]) -> Any:
        """Every worker's tree of arrays, one message: leaves [N, ...], in the order of the workers."""

        def send(trees: Sequence[list[jax.Array]]) -> list[jax.Array]:
            vectors, restores = zip(*map(collectives.as_words, trees), strict=True)
            rows = collectives.through_fast(
                lambda own: collectives.gather_words(own, self.axes.workers), jnp.stack(vectors), self.axes
            )
            return restores[0](rows)

        return self._by_kind(trees, send)

    def scatter(self, trees: Sequence[Any]) -> list[Any]:
        """Every worker sends row i of all arrays of its tree, [N, ...], to worker i, one message.

        Returns:
          For each worker here the tree of what it receives: leaves [N, ...], in the order of the workers.
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
        """The mean of trees of float arrays, added as float32 in the order of the workers; leaves float32.

        With a dtype of 16 bits each worker's values are rounded to it before they are sent; so is the mean of more than
        two workers.
        """

        def send(trees: Sequence[list[jax.Array]]) -> list[jax.Array]:
            sizes, found, before = [leaf.size for leaf in trees[0]], [], []
            started: list[tuple[list[int], Callable]] = []
            for turn, run in enumerate([*collectives.runs_of(sizes), []]):
                if run:
                    vectors = [jnp.concatenate([own[at].reshape(-1).astype(dtype) for at in run]) for own in trees]
                    before, end = collectives.start_mean(jnp.stack(vectors), self.axes, before)
                    started.append((run, end))
                if turn:  # the run before ends while this one is on its way
                    places, end = started[turn - 1]
                    mean, before = end(before)
                    found += split(mean, tuple(sizes[at] for at in places))
            return [part.reshape(leaf.shape) for part, leaf in zip(found, trees[0], strict=True)]

        return self._by_kind(trees, send)

    def pmean(self, trees: Sequence[Any]) -> Any:
        """The mean as `lax.pmean` takes it: an all-reduce of floats, whose order is the engine's."""
        own = trees[0]
        if len(trees) > 1:
            own = jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]) / len(leaves), *trees)
        return collectives.pmean(own, self.axes.fast + self.axes.workers)

    def _by_kind(self, trees: Sequence[Any], send: Callable[[Sequence[list[jax.Array]]], list[jax.Array]]) -> Any:
        """Sends all leaves together, but by themselves those that vary over other axes: joined, all would vary."""
        leaves, treedef = jax.tree.flatten(trees[0])
        rows = [treedef.flatten_up_to(tree) for tree in trees]
        for places in places_by_kind([collectives.other_axes(leaf, self.axes) for leaf in leaves]):
            put(leaves, places, send([[row[place] for place in places] for row in rows]))
        return treedef.unflatten(leaves)


def rounded(tree: Any, step: jax.Array) -> Any:
    """The tree, of which no compiler joins float32 products with additions behind them, as it may or may not else.

    Whether it does depends on the program around, so on how many workers a device has. A zero that only the running
    step knows is added to their bits.
    """

    def guard(leaf: jax.Array) -> jax.Array:
        if leaf.dtype != jnp.float32:
            return leaf
        bits = lax.bitcast_convert_type(leaf, jnp.uint32) + (step >> 31).astype(jnp.uint32)
        return lax.bitcast_convert_type(bits, jnp.float32)

    return jax.tree.map(guard, tree)


def share_out(local: Any, layout: Layout, num_workers: int) -> Any:
    """The default `Reducer.resize`: state of N workers to that of M, so that its mean over the workers stays.

    Worker j of M stands where the j-th M-th of all N was: it takes the mean of those, each by its share. What workers
    owe to the mean of all, such as residuals, is so owed on, to rounding.

    Args:
      local: NumPy arrays [N, ...].
      layout: of the tensors; not looked at.
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
    """How the tensors of N workers become their mean: pure functions, as an optax transformation has.

    Attributes:
      init: (layout, N) -> State at the start, `local` that of one worker.
      reduce: (tensors of each worker on this device, State whose `local` is a list of theirs, Group) -> Reduced.
      traffic: (layout, N) -> Traffic, what one worker sends in one update.
      resize: (State.local of N workers as NumPy arrays [N, ...], layout, M) -> the same of M workers.
      floats: the reducer of tensors that are to stay float; None: `float_mean(in_order=True)`.
    """

    init: Callable[[Layout, int], State]
    reduce: Callable[[list[Tensors], State, Group], Reduced]
    traffic: Callable[[Layout, int], Traffic]
    resize: Callable[[Any, Layout, int], Any] = share_out
    floats: "Reducer | None" = None


def require_int32(layout: Layout, counts: Sequence[int]) -> None:
    """Refuses tensors of which so many places cannot be told apart by an int32.

    Raises:
      ValueError: naming the first of them.
    """
    for path, size, count in zip(layout.paths, layout.sizes, counts, strict=True):
        if count >= 2**31:
            raise ValueError(f"gradient {path!r} has {size} elements: more than the int32 places of this method")


def stateless(layout: Layout, num_workers: int) -> State:
    """`init` of a reducer that carries nothing."""
    del layout, num_workers
    return State()


def sum_in_order(x: jax.Array) -> jax.Array:
    """The sum in an order that depends on the size alone, where a compiler's own depends on the program around it."""
    x = x.reshape(-1) if x.size else jnp.zeros((1,), x.dtype)
    while x.size > 1:
        x = functools.reduce(operator.add, list(fill_up(x, 16).reshape(16, -1)))
    return x[0]
