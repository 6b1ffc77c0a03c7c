"""The optax transformations: local gradients in, their mean on every worker out."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec

from jaxtern.compression import buckets, exchange as exchange_lib, mean as mean_lib, schedule
from jaxtern.compression.codecs import Codec, Ternary
from jaxtern.compression.cost import Network
from jaxtern.compression.mean import Pending
from jaxtern.compression.statistics import Statistics
from jaxtern.compression.wire import Axes


class CompressedMeanState(NamedTuple):
    """State of `compressed_mean`; the same on every worker, but for `pending.local`.

    Attributes:
      count: int32 scalar, updates so far; with the seed it fixes all noise to come.
      statistics: of the last update, or None where they were not asked for.
      pending: what was sent in the last update, where means are delayed; else None.
      carried: a mean, float[...] as the gradients, that other workers sent before these took over; the next update is
        by it where means are delayed, else by it and its own. None where there is none, as after every update.
    """

    count: jax.Array
    statistics: Statistics | None
    pending: Pending | None = None
    carried: Any = None


def state_specs(axis_name: str | tuple[str, ...]) -> CompressedMeanState:
    """PartitionSpecs over a mesh of the state of a delayed `compressed_mean`, for `shard_map`; of any other it is P().

        specs = (jaxtern.state_specs("data"), P())  # of optax.chain(compressed_mean("data", delayed=True), adam)
        state = jax.jit(jax.shard_map(optimizer.init, mesh=mesh, in_specs=P(), out_specs=specs))(params)

    Args:
      axis_name: of `compressed_mean`, without the fast axes.

    Returns:
      P() for what all workers share, P(axis_name) for what each has of its own.
    """
    own = PartitionSpec(exchange_lib.as_axis_names(axis_name))
    everywhere = PartitionSpec()
    shared = everywhere, everywhere  # of optional fields, too: a spec may stand for nothing
    return CompressedMeanState(*shared, Pending(own, everywhere), everywhere)  # pyright: ignore[reportArgumentType]


def ternary_mean(
    axis_name: str | tuple[str, ...],
    *,
    clip_sigmas: float = 2.5,
    min_size: int = 1,
    exclude: buckets.PathPredicate | None = None,
    scale: str = "exact",
    block_size: int | None = None,
    levels: int = 1,
    exchange: str = "auto",
    fast_axis_name: str | tuple[str, ...] | None = None,
    network: Network | None = None,
    seed: int = 0,
) -> optax.GradientTransformation:
    """The mean of ternary gradients over `axis_name`, in place of `lax.pmean`.

    Every worker's tensor g becomes s t with trits t in {-1, 0, 1}: s = max over workers of min(c sigma, max|g|), and
    P(t != 0) = min(|g|/s, 1), so the mean is an unbiased estimate of the mean of the clipped gradients.

        optimizer = optax.chain(jaxtern.ternary_mean("data"), optax.adam(1e-3))

    Args:
      axis_name: the axis of `shard_map`, `pmap` or `vmap` over which the workers lie, or a tuple of them.
      clip_sigmas: c, in standard deviations of a worker's tensor; 0: no clipping.
      min_size: tensors with fewer elements stay float.
      exclude: takes a tensor's path, as "conv1/kernel"; where true, the tensor stays float.
      scale: "exact", or "pow2" to round scales up to powers of two.
      block_size: elements under one scale; None: the whole tensor.
      levels: L, levels a side; 1 is ternary.
      exchange: "gather", "sum" and "scatter" give the same mean, bit for bit, over different collectives; "auto" is
        whichever of them is fastest by `network`. "two_way" sends fewest bits from four workers on, by rounding the
        mean once more before it is sent back: unbiased still, but noisier. "float" compresses nothing.
      fast_axis_name: axes of `shard_map` over the devices of one worker, such as those inside a host. Gradients are
        first averaged over them as floats; then each device exchanges its part of the words (hierarchical).
      network: the links by which "auto" chooses; None: 1 Gbit/s and 0.1 ms. `jaxtern.calibrate` measures them.
      seed: of the noise, 0 to 2^32 - 1.

    Returns:
      An optax transformation whose updates are the mean, the same bits on every worker.

    Raises:
      ValueError: for an argument out of its range; from `update`, for gradients that are not floating-point or are
        already summed, and for an axis that does not exist.

    Reference:
      Wen et al., TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning, NIPS 2017.
    """
    codec = Ternary(clip_sigmas=clip_sigmas, scale=scale, block_size=block_size, levels=levels)
    return compressed_mean(
        axis_name,
        codec=codec,
        exchange=exchange,
        fast_axis_name=fast_axis_name,
        network=network,
        min_size=min_size,
        exclude=exclude,
        seed=seed,
    )


def compressed_mean(
    axis_name: str | tuple[str, ...],
    *,
    codec: Codec | str = "ternary",
    exchange: str = "auto",
    fast_axis_name: str | tuple[str, ...] | None = None,
    network: Network | None = None,
    bucket_size: int | None = buckets.BUCKET_SIZE,
    delayed: bool = False,
    min_size: int = 1,
    exclude: buckets.PathPredicate | None = None,
    seed: int = 0,
    virtual_workers: int | None = None,
    statistics: bool = False,
) -> optax.GradientTransformation:
    """The mean of compressed gradients over `axis_name`: a maximum of scales, an exchange of words for each bucket.

    Tensors that stay float are added in the order of the workers, so that all results are the same bits whatever the
    exact exchange and however workers lie on devices.

    Args:
      axis_name: as in `ternary_mean`, with `fast_axis_name`, `network`, `min_size`, `exclude`, `exchange` and `seed`.
      codec: a `Codec`, "ternary", or "float" for a plain pmean.
      bucket_size: elements; gradients travel in buckets of about so many, the last tensors of the tree first, so that
        one can be on its way while others are still computed, encoded or decoded. On a CPU, buckets that are larger
        travel in pieces. None: all in one. Noise, and so the mean's last digits, depend on it.
      delayed: the mean that is returned is that of the update before (zero in the first): what is sent in an update is
        exchanged in the next, beside its computation. The state then holds each worker's own words: run `init` inside
        `shard_map` too, with `state_specs` as the specs of the state.
      virtual_workers: None: `updates` are the gradients of one worker; V: a sequence of V trees, the gradients of V
        workers that live on each device. The result is the same bits as from V times as many devices.
      statistics: also measure zero trits, scale, and the angle to the float mean; costs a float all-reduce a step.

    Returns:
      An optax transformation with a `CompressedMeanState`.

    Raises:
      ValueError: as `ternary_mean`.
    """
    axes = _as_axes(axis_name, fast_axis_name)
    codec, exchange = schedule.resolve(codec, exchange)
    _require_arguments(min_size, exclude, seed, virtual_workers)
    _require_schedule(bucket_size, delayed, statistics)

    def plan(tree: Any) -> schedule.Plan:
        layout = buckets.plan_layout(tree, min_size, exclude, bucket_size)
        links = network or Network()
        return schedule.plan_update(layout, codec, exchange, axes, links, virtual_workers or 1, bucket_size)

    return _create_transformation(plan, axes, seed, virtual_workers, delayed, statistics)


def _create_transformation(
    plan: Callable[[Any], schedule.Plan],
    axes: Axes,
    seed: int,
    virtual_workers: int | None,
    delayed: bool,
    statistics: bool,
) -> optax.GradientTransformation:
    """`compressed_mean`, its arguments checked; `plan` decides how a tree of gradients travels."""

    def init(params: Any) -> CompressedMeanState:
        if not delayed:
            return _first_state(statistics, None)
        _require_axes_for_init(axes)
        return _first_state(statistics, mean_lib.nothing_sent(plan(params), params))

    def update(updates: Any, state: CompressedMeanState, params: Any = None) -> tuple[Any, CompressedMeanState]:
        del params
        workers = (updates,) if virtual_workers is None else tuple(updates)
        if virtual_workers is not None and len(workers) != virtual_workers:
            raise ValueError(f"updates: {len(workers)} trees of gradients for virtual_workers={virtual_workers}")
        planned = plan(workers[0])
        _require_local(workers, planned.layout.paths, axes.fast + axes.workers)
        if delayed or statistics:
            mean, new = _update_by_halves(planned, workers, state, seed, delayed=delayed)
        else:
            mean = mean_lib.average(planned, workers, seed, state.count)
            new = CompressedMeanState(state.count + 1, None)
        if state.carried is not None:
            mean = state.carried if delayed else jax.tree.map(jnp.add, mean, state.carried)
        return mean, new

    # optax types a state as a tree of arrays, which has no place for None.
    return optax.GradientTransformation(init, update)  # pyright: ignore[reportArgumentType]


def _first_state(statistics: bool, pending: Pending | None) -> CompressedMeanState:
    zeros = Statistics(*(jnp.zeros((), jnp.float32) for _ in Statistics._fields))
    return CompressedMeanState(jnp.zeros((), jnp.int32), zeros if statistics else None, pending)


def _update_by_halves(
    plan: schedule.Plan, workers: Sequence[Any], state: CompressedMeanState, seed: int, *, delayed: bool
) -> tuple[Any, CompressedMeanState]:
    """Where what is sent is needed after it was: in the next update, or to be measured."""
    if delayed and not plan.exchanges:  # a state has no place for what differs between the devices of a worker
        workers = [mean_lib.average_fast(plan, own) for own in workers]
    sent = mean_lib.send(plan, workers, seed, state.count)
    arrived = _require_pending(state.pending, sent) if delayed else sent
    mean = mean_lib.receive(plan, arrived, seed, state.count)
    measured = state.statistics
    if measured is not None and plan.exchanges:
        measured = mean_lib.measure(plan, workers, sent, mean)
    return mean, CompressedMeanState(state.count + 1, measured, sent if delayed else None)


def _require_arguments(
    min_size: int, exclude: buckets.PathPredicate | None, seed: int, virtual_workers: int | None
) -> None:
    if virtual_workers is not None and (not isinstance(virtual_workers, int) or virtual_workers < 1):
        raise ValueError(f"virtual_workers={virtual_workers!r}: must be None or an integer of 1 or more")
    if isinstance(min_size, bool) or not isinstance(min_size, int) or min_size < 1:
        raise ValueError(f"min_size={min_size!r}: must be an integer of 1 or more")
    if exclude is not None and not callable(exclude):
        raise ValueError(f"exclude={exclude!r}: must be None or a function of a path")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise ValueError(f"seed={seed!r}: must be an integer from 0 to 2^32 - 1")


def _as_axes(axis_name: str | tuple[str, ...], fast_axis_name: str | tuple[str, ...] | None) -> Axes:
    if axis_name is None:
        raise ValueError("axis_name=None: must be the name of an axis, or a tuple of different names")
    axes = Axes(exchange_lib.as_axis_names(axis_name), exchange_lib.as_axis_names(fast_axis_name))
    if set(axes.workers) & set(axes.fast):
        raise ValueError(f"fast_axis_name={fast_axis_name!r}: must name other axes than axis_name={axis_name!r}")
    return axes


def _require_axes_for_init(axes: Axes) -> None:
    """Refuses a delayed mean's `init` where the axes are not."""
    try:
        exchange_lib.count_workers(axes.workers + axes.fast)
    except ValueError as error:
        where = "with delayed=True, `init` must run inside shard_map, too (see jaxtern.state_specs)"
        raise ValueError(f"{error}; {where}") from None


def _require_schedule(bucket_size: int | None, delayed: bool, statistics: bool) -> None:
    is_integer = isinstance(bucket_size, int) and not isinstance(bucket_size, bool)
    if bucket_size is not None and not (is_integer and bucket_size >= 1):
        raise ValueError(f"bucket_size={bucket_size!r}: must be None or an integer of 1 or more")
    if delayed and statistics:
        raise ValueError("statistics=True: must be False where delayed=True, whose means are of other gradients")


def _require_pending(pending: Pending | None, sent: Pending) -> Pending:
    """What the state has pending, unless its words were made for other gradients, workers or options."""
    described = [jax.tree.map(lambda x: (x.shape, str(x.dtype)), tree) for tree in (pending, sent)]
    if pending is None or described[0] != described[1]:
        raise ValueError(
            "state.pending: not what these gradients send; with delayed=True, `init` must be given the same tensors,"
            " over the same axes, as `update`"
        )
    return pending


def _require_local(workers: Sequence[Any], paths: tuple[str, ...], names: exchange_lib.AxisNames) -> None:
    """Refuses gradients that shard_map has already summed, as it does for weights that do not vary."""
    checked = set(exchange_lib.checked_axes(names))
    for tree in workers:
        for path, leaf in zip(paths, jax.tree.leaves(tree), strict=True):
            if not checked <= exchange_lib.varying_axes(leaf):
                raise ValueError(
                    f"gradient {path!r} is the same on all workers of axis {'/'.join(sorted(checked))!r}: shard_map has"
                    " summed it already. Differentiate with respect to jax.lax.pcast(params, axis, to='varying'), or"
                    " pass check_vma=False to shard_map."
                )
