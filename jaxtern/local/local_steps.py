"""Local SGD and DiLoCo: H steps of each worker alone, then the mean of their weight changes by any reducer."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec

from jaxtern.compression import collectives
from jaxtern.compression.arguments import as_float, as_integer
from jaxtern.compression.float_mean import float_mean
from jaxtern.compression.fragments import Timing, as_timing, split_layout
from jaxtern.compression.methods import as_reducer
from jaxtern.compression.reducer import Layout, Reducer, rounded, share_out
from jaxtern.compression.transform import CompressedMeanState, PathPredicate, compressed_mean, keep_float, layout_of


class Worker(NamedTuple):
    """State of one worker.

    Attributes:
      params: its weights.
      moments: averages that its network keeps, such as those of batch norm; () if none.
      inner: state of its inner optimiser.
      reducers: local state of the reducer of each fragment.
    """

    params: Any
    moments: Any
    inner: Any
    reducers: Any


class LocalState(NamedTuple):
    """State of `local_steps`.

    Attributes:
      count: int32 scalar, steps so far; with the seed it fixes all noise to come.
      params: shared weights, the same bits on every worker; evaluate, save and export these.
      moments: shared moments, the same on every worker.
      outer: state of the outer optimiser of each fragment, the same on every worker.
      reducers: shared state of the reducer of each fragment.
      local: a `Worker` whose arrays have a leading axis over the workers of a device.
    """

    count: jax.Array
    params: Any
    moments: Any
    outer: Any
    reducers: Any
    local: Worker


def local_specs(axis_name: str | tuple[str, ...]) -> LocalState:
    """PartitionSpecs of a state over a mesh: shared arrays are replicated, each worker holds its own ones."""
    specs: Any = [PartitionSpec()] * 5 + [PartitionSpec(collectives.as_axis_names(axis_name))]
    return LocalState(*specs)


def local_steps(
    axis_name: str | tuple[str, ...],
    inner: optax.GradientTransformation,
    steps: int,
    *,
    outer: optax.GradientTransformation | None = None,
    reducer: Reducer | str = "ternary",
    fragments: int = 1,
    delay: int = 0,
    mixing: float = 0.0,
    fast_axis_name: str | tuple[str, ...] | None = None,
    min_size: int = 1,
    exclude: PathPredicate | None = None,
    seed: Any = 0,
    virtual_workers: int | None = None,
) -> "LocalSteps":
    """Trains each worker by itself and moves the shared weights every H steps (DiLoCo, local SGD); only changes travel.

        w_i <- w_i + inner(gradient_i)                        every step, worker i alone
        W   <- W + outer(mean over i of (W - w_i))            every H-th step
        w_i <- W + mixing (w_i - W)

        local = jaxtern.local_steps("data", optax.adamw(1e-3), steps=30)

        def step(state, batch):  # on every worker, with its part of the batch
            gradients = jax.grad(loss)(local.workers(state).params, batch)
            return local.update(gradients, state)

    It returns a `LocalSteps`. Its `init` and the step run inside `pmap` or `shard_map`; its `specs` are the state's.

    Args:
      axis_name: axis or axes of `shard_map` or `pmap` over the workers.
      inner: optimiser of each worker.
      steps: H, steps from one exchange to the next.
      outer: optimiser of the shared weights, whose gradient is the mean of W - w_i. None is DiLoCo's
        `optax.sgd(0.7, momentum=0.9, nesterov=True)`; `optax.sgd(1.0)` makes W the mean of the w_i (local SGD, FedAvg).
      reducer: compresses the weight changes, as in `compressed_mean`; beside "dgc", `outer` must have no momentum.
      fragments: P, parts of the tree that take turns, each exchanged every H steps. It must divide H.
      delay: steps between sending a fragment and merging its mean, below H / P; from 1 on, both run at once.
      mixing: share of its own weights that a worker keeps in a merge, 0 to 1; Streaming DiLoCo takes 0.5 with a delay.
      fast_axis_name: axes over the devices of one worker; gradients are averaged over them as floats in every step.
      min_size, exclude, seed, virtual_workers: as in `compressed_mean`; V workers have sequences of V, as of gradients.

    Raises:
      ValueError: if numbers do not fit each other; from `init` and `update` as in `compressed_mean`, and from `init` if
        two tensors have the same path.

    References:
      Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019; Douillard et al., DiLoCo, arXiv:2311.08105,
      algorithm 1, and Streaming DiLoCo, arXiv:2501.18512, algorithm 2.
    """
    timing, names = as_timing(steps, fragments, delay), collectives.as_axis_names(axis_name)
    outer = optax.sgd(0.7, momentum=0.9, nesterov=True) if outer is None else outer
    reducer = keep_float(as_reducer(reducer), as_integer("min_size", min_size, 1), exclude)
    count = as_integer("virtual_workers", 1 if virtual_workers is None else virtual_workers, 1)
    options: dict[str, Any] = {"fast_axis_name": fast_axis_name, "seed": seed, "virtual_workers": count}
    means = compressed_mean(names, reducer, **options), compressed_mean(names, float_mean(in_order=True), **options)
    fast = () if fast_axis_name is None else collectives.as_axis_names(fast_axis_name)
    return LocalSteps(names, fast, inner, outer, reducer, *means, exclude, timing, mixing, virtual_workers)


@dataclasses.dataclass(frozen=True)
class LocalSteps:
    """Result of `local_steps`. All methods but `resize` and `specs` run inside `shard_map` or `pmap`."""

    axis_names: tuple[str, ...]
    fast_axis_names: tuple[str, ...]
    inner: optax.GradientTransformation
    outer: optax.GradientTransformation
    reducer: Reducer
    mean: Any  # transformation of the weight changes, by the reducer
    float_mean: Any  # of the moments
    exclude: PathPredicate | None
    timing: Timing
    mixing: float
    virtual_workers: int | None

    def __post_init__(self):
        if not 0 <= as_float("mixing", self.mixing) <= 1:
            raise ValueError(f"mixing={self.mixing!r}: must be from 0 to 1")
        for name, each in (("inner", self.inner), ("outer", self.outer)):
            if not hasattr(each, "init"):
                raise ValueError(f"{name}={each!r}: must be an optax transformation")

    @property
    def specs(self) -> LocalState:
        """PartitionSpecs over a mesh for the state."""
        return local_specs(self.axis_names)

    def init(self, params: Any, moments: Any = ()) -> LocalState:
        """Creates the state before the first step.

        Args:
          params: weights, floating-point arrays, the same on every worker.
          moments: averages that the network keeps, such as those of batch norm; averaged as floats at every merge.
        """
        try:
            collectives.count_workers(self.axis_names + self.fast_axis_names)
        except ValueError as error:
            raise ValueError(f"{error}; `init` of local_steps must run inside shard_map or pmap, too") from None
        paths = layout_of(params, exclude=self.exclude).paths
        if doubled := [path for path in paths if paths.count(path) > 1]:
            raise ValueError(f"params: two tensors have the path {doubled[0]!r}: each must have one of its own")
        parts = [self._select(params, number) for number in range(self.timing.fragments)]
        means = [self.mean.init(part) for part in parts]
        own = Worker(params, moments, self.inner.init(params), ())
        local = jax.tree.map(lambda leaf: jnp.stack([leaf] * (self.virtual_workers or 1)), own)
        local = collectives.vary_over(local._replace(reducers=[mean.local for mean in means]), self.axis_names)
        shared = [mean.shared for mean in means]
        return LocalState(jnp.zeros((), jnp.int32), params, moments, [*map(self.outer.init, parts)], shared, local)

    def workers(self, state: LocalState) -> Any:
        """The `Worker` of this device, or a list of `virtual_workers` of them; take gradients at their weights."""
        own = [jax.tree.map(lambda leaf, w=w: leaf[w], state.local) for w in range(self.virtual_workers or 1)]
        return own[0] if self.virtual_workers is None else own

    def update(self, gradients: Any, state: LocalState, moments: Any = ()) -> LocalState:
        """Takes one step of each worker, and exchanges what is due.

        Args:
          gradients: gradients at the worker's own weights, which are cast to the dtypes of these.
          state: state before the step.
          moments: the worker's moments after the gradients; () if the network has none.
        """
        if self.virtual_workers is None:
            gradients, moments = [gradients], [moments]
        elif isinstance(gradients, dict) or len(gradients) != self.virtual_workers:
            given = f"a {type(gradients).__name__} of {len(gradients)}"
            raise ValueError(f"gradients: {given}: must be a list of virtual_workers={self.virtual_workers} trees")
        if held := {len(leaf) for leaf in jax.tree.leaves(state.local)} - {len(gradients)}:
            raise ValueError(f"state: of {min(held)} workers on a device: must be of {len(gradients)}, see `resize`")
        moments = moments or [()] * len(gradients)
        if list(map(jax.tree.structure, moments)) != [jax.tree.structure(state.moments)] * len(gradients):
            raise ValueError("moments: must be as `init` was given them, those of each worker after its gradients")
        gradients, moments = collectives.pmean((list(gradients), list(moments)), self.fast_axis_names)
        if self.timing.delay:  # from the weights before this step, so beside its gradients
            state = self._where_due(self._exchange, state, self.timing.delay)
        state = self._advance(state, gradients, moments)
        if self.timing.delay:
            return self._where_due(self._merge, state)
        return self._where_due(lambda state, number: self._merge(self._exchange(state, number), number), state)

    def resize(self, local: Worker, params: Any, num_workers: int) -> Worker:
        """Turns the state of N workers into that of M; each of the M averages those whose place it takes.

        Args:
          local: `LocalState.local`, NumPy arrays [N, ...].
          params: weights, or their shapes.
          num_workers: M.
        """
        pairs = zip(local.reducers, self.layouts(params), strict=True)
        reducers = [self.reducer.resize(own, layout, num_workers) for own, layout in pairs]
        return share_out(local._replace(reducers=()), layout_of(params), num_workers)._replace(reducers=reducers)

    def layouts(self, params: Any) -> list[Layout]:
        """Layouts of the fragments of these weights."""
        return [layout_of(self._select(params, number)) for number in range(self.timing.fragments)]

    def _where_due(self, do: Callable[..., LocalState], state: LocalState, ahead: int = 0) -> LocalState:
        """Calls `do(state, fragment)` for the fragment that is merged `ahead` steps from now, if there is one."""
        of_each = [functools.partial(do, number=number) for number in range(self.timing.fragments)]
        return jax.lax.switch(self.timing.due(state.count + ahead), [*of_each, lambda state: state], state)

    def _advance(self, state: LocalState, gradients: Sequence[Any], moments: Sequence[Any]) -> LocalState:
        """Takes one step of each worker's inner optimiser."""

        def step(gradient: Any, before: Worker) -> Worker:
            gradient = jax.tree.map(lambda g, weight: g.astype(weight.dtype), gradient, before.params)
            updates, inner = self.inner.update(gradient, before.inner, before.params)
            inner = jax.tree.map(_like, inner, before.inner)
            return before._replace(params=optax.apply_updates(before.params, updates), inner=inner)

        own = []
        for number, gradient in enumerate(gradients):
            before = jax.tree.map(lambda leaf, w=number: leaf[w], state.local._replace(moments=(), reducers=()))
            # A branch is compiled by itself. Else rounding would depend on how many workers share the program.
            after = jax.lax.cond(state.count >= 0, step, lambda _, before: before, gradient, before)
            own.append(after._replace(moments=moments[number]))
        local = jax.tree.map(lambda *leaves: jnp.stack(leaves), *own)._replace(reducers=state.local.reducers)
        return state._replace(count=jnp.maximum(state.count + 1, 0), local=local)

    def _exchange(self, state: LocalState, number: int) -> LocalState:
        """Moves the shared weights of a fragment by the mean of the workers' changes of it."""
        before, own = self._select(state.params, number), self._select(state.local.params, number)
        changes = [{path: before[path] - own[path][w] for path in own} for w in range(self.virtual_workers or 1)]
        changes = collectives.vary_over(changes, self.fast_axis_names)
        outer, shared, local = map(list, (state.outer, state.reducers, state.local.reducers))
        carried = CompressedMeanState(state.count, shared[number], local[number])
        mean, carried = self.mean.update(rounded(changes, state.count), carried)
        shared[number], local[number] = carried.shared, carried.local
        updates, moved = self.outer.update(rounded(mean, state.count), outer[number], before)
        outer[number] = jax.tree.map(_like, moved, outer[number])
        params = _put(state.params, optax.apply_updates(before, updates))
        return state._replace(params=params, outer=outer, reducers=shared, local=state.local._replace(reducers=local))

    def _merge(self, state: LocalState, number: int) -> LocalState:
        """Sets each worker's weights of a fragment to the shared ones, and its moments to the mean of all."""
        shared, own = self._select(state.params, number), self._select(state.local.params, number)
        merged = {path: _mix(shared[path], own[path], self.mixing) for path in shared}
        each = [jax.tree.map(lambda leaf, w=w: leaf[w], state.local.moments) for w in range(self.virtual_workers or 1)]
        each = collectives.vary_over(each, self.fast_axis_names)
        moments, _ = self.float_mean.update(each, CompressedMeanState(state.count))
        of_all = jax.tree.map(lambda mean, leaf: _mix(mean, leaf, 0.0), moments, state.local.moments)
        local = state.local._replace(params=_put(state.local.params, merged), moments=of_all)
        return state._replace(moments=moments, local=local)

    def _select(self, tree: Any, number: int) -> dict[str, jax.Array]:
        """Tensors of a fragment by path."""
        layout, leaves = layout_of(tree), jax.tree.leaves(tree)
        return {layout.paths[place]: leaves[place] for place in split_layout(layout, self.timing.fragments)[number]}


def _put(tree: Any, tensors: Any) -> Any:
    """Returns the tree with these tensors, by path, at their places."""
    treedef, paths = jax.tree.structure(tree), layout_of(tree).paths
    return treedef.unflatten([tensors.get(*pair) for pair in zip(paths, jax.tree.leaves(tree), strict=True)])


def _like(new: Any, old: jax.Array) -> jax.Array:
    """`new` in the dtype of `old`, and varying like it, as branches need."""
    return collectives.vary_as(jnp.asarray(new).astype(old.dtype), old)


def _mix(shared: jax.Array, own: jax.Array, share: float) -> jax.Array:
    """shared + share * (own - shared) for each worker of `own` [V, ...]."""
    shared = collectives.vary_as(jnp.broadcast_to(shared, own.shape), own)
    return shared + share * (own - shared) if share else shared
