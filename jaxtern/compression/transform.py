"""The optax transformations, which turn local gradients into their mean on every worker."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec

from jaxtern.compression import collectives, wrappers
from jaxtern.compression.arguments import as_integer
from jaxtern.compression.collectives import Axes
from jaxtern.compression.float_mean import float_mean
from jaxtern.compression.methods import as_reducer
from jaxtern.compression.network.links import Network
from jaxtern.compression.radix.reducer import quantized
from jaxtern.compression.reducer import Group, Layout, Reduced, Reducer, State, Tensors
from jaxtern.compression.statistics import Statistics, measure
from jaxtern.compression.wrappers import hierarchical, partition, require_match

PathPredicate = Callable[[str], bool]


class CompressedMeanState(NamedTuple):
    """State of `compressed_mean`, the same on every worker except for `local`.

    Attributes:
      count: int32 scalar, updates so far; with the seed it fixes all noise to come.
      shared: state of the reducer that all workers share.
      local: each worker's own state of the reducer, with a leading axis over the workers of a device.
      statistics: statistics of the last update, or None if not requested.
    """

    count: jax.Array
    shared: Any = ()
    local: Any = ()
    statistics: Statistics | None = None


def state_specs(axis_name: str | tuple[str, ...]) -> CompressedMeanState:
    """PartitionSpecs over a mesh for the state of a `compressed_mean` whose workers have state of their own.

        specs = (jaxtern.state_specs("data"), P())  # of optax.chain(compressed_mean("data", low_rank(4)), sgd)
        state = jax.jit(jax.shard_map(optimizer.init, mesh=mesh, in_specs=P(), out_specs=specs))(params)

    Args:
      axis_name: as in `compressed_mean`, without the fast axes.

    Returns:
      P() for what all workers share, P(axis_name) for what each has of its own. For a state without `local`, such as
      `ternary`'s, P() is enough.
    """
    own, everywhere = PartitionSpec(collectives.as_axis_names(axis_name)), PartitionSpec()
    return CompressedMeanState(everywhere, everywhere, own, everywhere)  # pyright: ignore[reportArgumentType]


def ternary_mean(
    axis_name: str | tuple[str, ...],
    *,
    clip_sigmas: Any = None,
    min_size: int = 1,
    exclude: PathPredicate | None = None,
    block_size: int | None = None,
    levels: int = 1,
    rotation: bool = True,
    rounding: str = "dither",
    exchange: str = "auto",
    fast_axis_name: str | tuple[str, ...] | None = None,
    network: Network | None = None,
    seed: Any = 0,
) -> optax.GradientTransformation:
    """The mean of ternary gradients over `axis_name`, in place of `lax.pmean`.

        optimizer = optax.chain(jaxtern.ternary_mean("data"), optax.adam(1e-3))

    Args:
      axis_name, min_size, exclude, fast_axis_name, seed: as in `compressed_mean`.
      clip_sigmas, block_size, levels, rotation, rounding, exchange, network: as in `quantized`; one level by default.

    Returns:
      An optax transformation whose updates are the mean, the same bits on every worker.

    Raises:
      ValueError: for an argument out of its range; from `update`, for gradients that are not floating-point or are
        already summed, and for an axis that does not exist.

    Reference:
      Wen et al., TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning, NIPS 2017.
    """
    reducer = quantized(levels, clip_sigmas, block_size, rotation, rounding, exchange, network=network)
    options: dict[str, Any] = {"fast_axis_name": fast_axis_name, "min_size": min_size, "exclude": exclude, "seed": seed}
    return compressed_mean(axis_name, reducer, **options)


def compressed_mean(
    axis_name: str | tuple[str, ...],
    reducer: Reducer | str = "ternary",
    *,
    fast_axis_name: str | tuple[str, ...] | None = None,
    min_size: int = 1,
    exclude: PathPredicate | None = None,
    seed: Any = 0,
    virtual_workers: int | None = None,
    delayed: bool = False,
    statistics: bool = False,
) -> optax.GradientTransformation:
    """The mean of gradients over `axis_name`, by any reducer: the same bits on every worker, wherever workers lie.

    Args:
      axis_name: axis or axes of `shard_map`, `pmap` or `vmap` over the workers.
      reducer: a reducer such as `jaxtern.top_k(0.001)`, or a name in `jaxtern.METHODS`, with its defaults.
      fast_axis_name: axes of `shard_map` over the devices of one worker, such as those inside a host. Gradients are
        first averaged over them as floats: `hierarchical(float_mean(), reducer, fast_axis_name)`.
      min_size: tensors with fewer elements stay float.
      exclude: says for a path, such as "conv1/kernel", whether that tensor stays float; it must do so for at least one.
      seed: seed of the noise, 0 to 2^32 - 1; it may be traced.
      virtual_workers: V: `updates` are a sequence of V trees, the gradients of V workers on each device, and the result
        has the same bits as from V times as many devices. None: they are the gradients of one worker.
      delayed: whether to return the previous update's mean, which is zero in the first update (see `jaxtern.delayed`).
      statistics: whether to measure zeros, error and angle of what is sent; costs a float all-reduce in each step.

    Returns:
      An optax transformation with a `CompressedMeanState`. If the reducer keeps state of each worker's own, `init` must
      run inside `shard_map`, too, with `state_specs` as the specs of the state.

    Raises:
      ValueError: as `ternary_mean`; also for a reducer that breaks its protocol.
    """
    axes = _as_axes(axis_name, fast_axis_name)
    reducer = keep_float(as_reducer(reducer), as_integer("min_size", min_size, 1), exclude)
    reducer = wrappers.delayed(reducer) if delayed else reducer
    reducer = hierarchical(float_mean(), reducer, axes.fast) if axes.fast else reducer
    is_array = isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jnp.integer) and not seed.ndim
    seed = seed if is_array else as_integer("seed", seed, 0, 2**32 - 1)
    count = as_integer("virtual_workers", 1 if virtual_workers is None else virtual_workers, 1)

    def init(params: Any) -> CompressedMeanState:
        return _first_state(reducer, layout_of(params, axes, exclude, require_floats=False), axes, count, statistics)

    def update(updates: Any, state: CompressedMeanState, params: Any = None) -> tuple[Any, CompressedMeanState]:
        workers = [updates] if virtual_workers is None else list(updates)
        if virtual_workers is not None and (isinstance(updates, dict) or len(workers) != count):
            given = f"a {type(updates).__name__} of {len(workers)}"
            raise ValueError(f"updates: {given}: must be a list of virtual_workers={count} trees")
        if not isinstance(state, CompressedMeanState):
            raise ValueError(f"state: is {type(state).__name__}: must be the CompressedMeanState of `init`")
        collectives.count_workers(axes.workers + axes.fast)  # raises for an axis that does not exist
        layout = layout_of(workers[0], axes, exclude)
        group = Group(layout, Axes(axes.workers), len(workers), seed, state.count, tracks=statistics)
        return _update(reducer, workers, state, group, axes)

    # optax types a state as a tree of arrays, which has no place for None.
    return optax.GradientTransformation(init, update)  # pyright: ignore[reportArgumentType]


def _first_state(
    reducer: Reducer, layout: Layout, axes: Axes, local_workers: int, statistics: bool
) -> CompressedMeanState:
    """The first state, for `local_workers` workers on this device."""
    devices, unbound = 1, ""
    try:
        collectives.count_workers(axes.fast)
        devices = collectives.count_workers(axes.workers)
    except ValueError as error:
        unbound = str(error)
    state = reducer.init(layout, devices * local_workers)
    if not isinstance(state, State):
        raise ValueError(f"reducer: its `init` returned {type(state).__name__}: must be a jaxtern.State")
    if unbound and jax.tree.leaves(state.local):
        where = "as each worker has a state of its own, `init` must run inside shard_map or pmap, too"
        raise ValueError(f"{unbound}; {where}")
    local = jax.tree.map(lambda x: collectives.vary_over(jnp.stack([x] * local_workers), axes.workers), state.local)
    measured = Statistics(*[jnp.float32(0)] * 3) if statistics else None
    return CompressedMeanState(jnp.zeros((), jnp.int32), jax.tree.map(jnp.asarray, state.shared), local, measured)


def _update(
    reducer: Reducer, workers: Sequence[Any], state: CompressedMeanState, group: Group, axes: Axes
) -> tuple[Any, CompressedMeanState]:
    """Updates with the trees of the workers on this device."""
    layout = group.layout
    for number, own in enumerate(workers[1:], start=1):
        if layout_of(own, axes)[:3] != layout[:3]:
            raise ValueError(f"updates[{number}]: must have the paths, shapes and dtypes of updates[0]")
    _require_local(workers, layout.paths, axes)
    _require_state(state, reducer, group)
    treedef = jax.tree.structure(workers[0])
    tensors = _undifferentiable([[jnp.asarray(x) for x in treedef.flatten_up_to(own)] for own in workers])
    own = [jax.tree.map(lambda leaf, w=w: leaf[w], state.local) for w in range(len(workers))]
    reduced = reducer.reduce(tensors, State(state.shared, own), group)
    new = _require_protocol(reduced, state, group)
    if group.tracks:
        new = new._replace(statistics=measure(tensors, reduced, group, axes))
    pairs = zip(reduced.mean, layout.dtypes, strict=True)  # tensors without elements are not sent, and made anew
    return treedef.unflatten([x.astype(dtype) if x.size else jnp.zeros(x.shape, dtype) for x, dtype in pairs]), new


def keep_float(reducer: Reducer, min_size: int, exclude: PathPredicate | None) -> Reducer:
    """Wraps a reducer so that tensors below `min_size` elements, and those with excluded paths, stay float."""
    if exclude is not None and not callable(exclude):
        raise ValueError(f"exclude={exclude!r}: must be None or a function of a path")
    if min_size == 1 and exclude is None:
        return reducer

    def stays_float(path: str, shape: tuple[int, ...]) -> bool:
        return math.prod(shape) < min_size or (exclude is not None and exclude(path))

    return partition([(stays_float, reducer.floats or float_mean(in_order=True))], reducer, may_be_empty=True)


def layout_of(
    tree: Any, axes: Axes | None = None, exclude: PathPredicate | None = None, require_floats: bool = True
) -> Layout:
    """The layout of a tree of gradients, weights or shapes, without absent tensors (None).

    Raises ValueError for tensors that are not floating-point, if `require_floats`, or if `exclude` excludes none.
    """
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    paths = tuple(jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves)
    arrays = [leaf if hasattr(leaf, "dtype") and hasattr(leaf, "shape") else jnp.asarray(leaf) for _, leaf in leaves]
    for path, array in zip(paths, arrays, strict=True):
        if require_floats and not jnp.issubdtype(array.dtype, jnp.floating):
            raise ValueError(f"gradient {path!r} is {array.dtype}: only floating-point gradients can be averaged")
    varying = tuple(collectives.other_axes(a, axes) if axes is not None else () for a in arrays)
    dtypes = tuple(array.dtype for array in arrays)
    layout = Layout(paths, tuple(tuple(array.shape) for array in arrays), dtypes, varying)
    if exclude is not None:
        require_match("exclude", lambda path, _: exclude(path), layout)
    return layout


def _as_axes(axis_name: str | tuple[str, ...], fast_axis_name: str | tuple[str, ...] | None) -> Axes:
    fast = () if fast_axis_name is None else collectives.as_axis_names(fast_axis_name)
    axes = Axes(collectives.as_axis_names(axis_name), fast)
    if set(axes.workers) & set(axes.fast):
        raise ValueError(f"fast_axis_name={fast_axis_name!r}: must name other axes than axis_name={axis_name!r}")
    return axes


def _require_local(workers: Sequence[Any], paths: tuple[str, ...], axes: Axes) -> None:
    """Raises ValueError for gradients that shard_map has summed already, as it does for weights that do not vary."""
    checked = set(collectives.checked_axes(axes.fast + axes.workers))
    for tree in workers if checked else ():
        for path, leaf in zip(paths, jax.tree.leaves(tree), strict=True):
            if not checked <= collectives.varying_axes(leaf):
                raise ValueError(
                    f"gradient {path!r} is the same on all workers of axis {'/'.join(sorted(checked))!r}: shard_map has"
                    " summed it already. Differentiate with respect to jax.lax.pcast(params, axis, to='varying'), or"
                    " pass check_vma=False to shard_map. optax.MultiSteps must come after the mean, not around it."
                )


def _require_state(state: CompressedMeanState, reducer: Reducer, group: Group) -> None:
    """Raises ValueError for the state of another reducer, of other tensors, or of another number of workers."""
    first, count = jax.eval_shape(lambda: reducer.init(group.layout, group.size)), group.local_workers
    local = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype), first.local)
    difference = _difference(State(state.shared, state.local), State(first.shared, local))
    if difference:
        raise ValueError(
            f"state: {difference}; it is not of this reducer, these gradients and so many workers: `init` must be given"
            " the same tensors, over the same axes, as `update`"
        )


def _require_protocol(reduced: Reduced, state: CompressedMeanState, group: Group) -> CompressedMeanState:
    """The next state; raises ValueError if the reducer breaks its protocol."""
    if not isinstance(reduced, Reduced):
        raise ValueError(f"reducer: its `reduce` returned {type(reduced).__name__}: must be a jaxtern.Reduced")
    if not isinstance(reduced.state, State):
        raise ValueError(f"reducer: its new state is {type(reduced.state).__name__}: must be a jaxtern.State")
    shapes = tuple(tuple(tensor.shape) for tensor in reduced.mean)
    if shapes != group.layout.shapes or not all(jnp.issubdtype(tensor.dtype, jnp.floating) for tensor in reduced.mean):
        found = ", ".join(f"{tensor.dtype}{list(tensor.shape)}" for tensor in reduced.mean) or "nothing"
        raise ValueError(f"reducer: its mean is {found}: must be floats of {list(map(list, group.layout.shapes))}")
    own = reduced.state.local
    if len(own) != group.local_workers:
        raise ValueError(f"reducer: its state.local has {len(own)} entries: must be a list of {group.local_workers}")
    shared = jax.tree.map(jnp.asarray, reduced.state.shared)
    new = State(shared, jax.tree.map(lambda *leaves: jnp.stack(leaves), *own))
    difference = _difference(new, State(state.shared, state.local))
    if difference:
        raise ValueError(f"reducer: its new state {difference}; must keep structure, shapes and dtypes")
    return CompressedMeanState(jnp.maximum(state.count + 1, 0), *new)


def _difference(found: Any, wanted: Any) -> str:
    """Describes the first array of `found` that differs from `wanted`; "" if all are alike."""
    mine, other = (
        {jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in
         jax.tree_util.tree_flatten_with_path(tree)[0]}
        for tree in (found, wanted)
    )  # fmt: skip
    for name in [*mine, *other]:
        if mine.get(name) != other.get(name):
            return f"holds {mine.get(name, 'nothing')} at {name} where {other.get(name, 'nothing')} is expected"
    return ""


@jax.custom_jvp
def _undifferentiable(tensors: list[Tensors]) -> list[Tensors]:
    return tensors


@_undifferentiable.defjvp
def _refuse_to_differentiate(primals: Any, tangents: Any) -> Any:
    raise ValueError("compressed_mean: has no derivative; differentiate the loss of each worker, then average")
