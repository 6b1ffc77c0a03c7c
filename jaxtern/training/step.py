"""One step: local gradients of every worker, their mean, one update."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec

from jaxtern.compression.statistics import Statistics
from jaxtern.data.rendering import Batch
from jaxtern.training import masks, precision
from jaxtern.training.gradients import Local, create_local_gradients
from jaxtern.training.recipe import Recipe
from jaxtern.training.state import DEVICE_AXIS, FAST_AXIS, Averages, Program, TrainState, specs_of_state

Metrics = dict[str, jax.Array]
TrainStep = Callable[[TrainState, jax.Array | None, Batch], tuple[TrainState, Metrics]]
_ALL_AXES = (DEVICE_AXIS, FAST_AXIS)


def create_mesh(recipe: Recipe) -> Mesh:
    """A mesh over the recipe's number of devices: workers by devices of a worker.

    Raises:
      ValueError: if there are fewer, or if the workers do not divide among them.
    """
    devices, fast = jax.devices(), recipe.devices_per_worker
    size = recipe.num_devices
    if size is None:
        fitting = (fast * m for m in range(1, len(devices) // fast + 1) if recipe.num_workers % m == 0)
        size = max(fitting, default=fast)
    if size > len(devices):
        name = "num_devices" if recipe.num_devices else "devices_per_worker"
        raise ValueError(f"{name}={size}: there are {len(devices)}")
    if size % fast:
        raise ValueError(f"num_devices={size}: must be a multiple of devices_per_worker={fast}")
    if recipe.num_workers % (size // fast):
        groups = f"{size // fast} groups of " if fast > 1 else ""
        raise ValueError(f"num_workers={recipe.num_workers}: must divide among {groups}num_devices={size}")
    mesh = Mesh(np.array(devices[:size]).reshape(-1, fast), (DEVICE_AXIS, FAST_AXIS))
    if recipe.batch_norm == "sync" and recipe.virtual_workers == "unrolled" and recipe.num_workers > size // fast:
        raise ValueError(
            "batch_norm='sync': with several workers on a device, virtual_workers='unrolled' must be 'vmapped'"
        )
    return mesh


def create_train_step(
    recipe: Recipe, program: Program, mesh: Mesh, *, compresses: bool = True, num_steps: int | None = None
) -> TrainStep:
    """The compiled step (state, images that lie on the devices or None, batch) -> (state, metrics).

    Of the batch, worker w takes the w-th of N equal runs, each of its devices an equal part of that. Every example is
    augmented by a key of its own. The state is donated. Metrics, means over all workers: loss (with weight decay in it)
    and accuracy; nonfinite, bool[tensors], which mean gradients or new weights hold a NaN or an infinity; the
    compressor's statistics where they are asked for; and in float16 loss_scale, learning_rate, and overflow, 1 where it
    was skipped.

    Args:
      recipe: of the run.
      program: likewise.
      mesh: of `create_mesh`.
      compresses: False for the steps of the recipe whose mean is to be float.
      num_steps: K, to take so many steps at once: of batches [K, ...], with metrics [K, ...]; None: one.
    """
    update, is_cpu = _create_update(recipe, program, compresses), mesh.devices.flat[0].platform == "cpu"
    local_workers = recipe.num_workers // mesh.shape[DEVICE_AXIS]
    own_examples = recipe.batch_size // recipe.num_workers // recipe.devices_per_worker
    local_gradients = create_local_gradients(recipe, program, local_workers, is_cpu)

    def take_own(leaf: jax.Array) -> jax.Array:
        """[examples of this device's workers, ...] to [workers, examples of this device, ...]."""
        first = jax.lax.axis_index(FAST_AXIS) * own_examples
        by_worker = leaf.reshape(local_workers, -1, *leaf.shape[1:])
        return jax.lax.dynamic_slice_in_dim(by_worker, first, own_examples, axis=1)

    def step(state: TrainState, images: jax.Array | None, batch: Batch) -> tuple[TrainState, Metrics]:
        batch = jax.tree.map(take_own, batch)
        if images is not None:
            batch = batch._replace(images=images[batch.images])
        return update(state, local_gradients(state, batch, jax.lax.axis_index(DEVICE_AXIS) * local_workers))

    def steps(state: TrainState, images: jax.Array | None, batches: Batch) -> tuple[TrainState, Metrics]:
        # a convolution in a loop is slow on CPUs
        unroll = num_steps if is_cpu and num_steps else 1
        return jax.lax.scan(lambda state, batch: step(state, images, batch), state, batches, unroll=unroll)

    replicated, state_specs = PartitionSpec(), specs_of_state(recipe)
    sharded = PartitionSpec(DEVICE_AXIS) if num_steps is None else PartitionSpec(None, DEVICE_AXIS)
    in_specs, out_specs = (state_specs, replicated, sharded), (state_specs, replicated)
    return jax.jit(
        jax.shard_map(
            step if num_steps is None else steps, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        ),
        donate_argnums=0,
    )


def _create_update(
    recipe: Recipe, program: Program, compresses: bool
) -> Callable[[TrainState, list[Local]], tuple[TrainState, Metrics]]:
    """(state, what every worker of this device has) -> (state, metrics)."""
    transformation = program.mean if compresses else program.float_mean

    def update(state: TrainState, local: list[Local]) -> tuple[TrainState, Metrics]:
        gradients = [masks.mask_slices(each.gradients, program.slices) for each in local]
        skips = overflow = None
        if state.loss_scale is not None:
            overflow = _overflow(gradients)
            skips = jnp.any(overflow)
            gradients = [_zero_where(skips, precision.unscale(each, state.loss_scale)) for each in gradients]
        mean, compressor = transformation.update(gradients, state.compressor)
        updates, optimizer = program.optimizer.update(mean, state.optimizer, state.params)
        params = optax.apply_updates(state.params, masks.mask_slices(updates, program.slices))
        new = TrainState(
            state.step + 1, params, state.frozen, _join_moments(recipe, local), optimizer, compressor, state.averages,
            state.loss_scale,
        )  # fmt: skip
        new = _average(new, recipe.average_decay)
        loss, accuracy = jax.lax.pmean(jnp.mean(jnp.array([each.measured for each in local]), axis=0), _ALL_AXES)
        metrics = {"loss": loss, "accuracy": accuracy, "nonfinite": _nonfinite(mean) | _nonfinite(params)}
        if compressor.statistics is not None and compresses:
            metrics |= statistics_as_metrics(compressor.statistics)
        if skips is not None:
            metrics["learning_rate"] = program.schedule(_count_updates(state.optimizer))
            return _skip_overflow(state, new, metrics, overflow, skips)
        return new, metrics

    return update


def _join_moments(recipe: Recipe, local: list[Local]) -> Any:
    """The moving moments that all workers go on with: their mean, or those of worker 0."""
    moments = [each.moments for each in local]
    if not jax.tree.leaves(moments) or recipe.batch_norm == "sync":  # those of all are the same already
        return moments[0]
    if recipe.batch_norm == "first":
        is_first = jax.lax.axis_index(DEVICE_AXIS) == 0
        return jax.lax.psum(jax.tree.map(lambda leaf: jnp.where(is_first, leaf, 0), moments[0]), DEVICE_AXIS)
    return jax.lax.pmean(jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *moments), DEVICE_AXIS)


def _average(state: TrainState, decay: float) -> TrainState:
    """Moves the averages towards weights and moments: a <- d a + (1 - d) x, d = min(decay, (1 + t) / (10 + t)).

    t counts steps, of which this is one: it is 1 in the first (Abadi et al. 2016, ExponentialMovingAverage).
    """
    if state.averages is None:
        return state
    t = state.step.astype(jnp.float32)
    d = jnp.minimum(decay, (1 + t) / (10 + t))
    new = Averages(state.params, state.moments)
    return state._replace(averages=jax.tree.map(lambda a, x: a * d + x * (1 - d), state.averages, new))


def _skip_overflow(
    state: TrainState, new: TrainState, metrics: Metrics, overflow: Any, skips: jax.Array
) -> tuple[TrainState, Metrics]:
    """The state as it was, but for its counts, where any worker's gradients overflowed."""
    assert state.loss_scale is not None
    kept = new._replace(params=state.params, moments=state.moments, optimizer=state.optimizer, averages=state.averages)
    chosen = jax.tree.map(lambda old, changed: jnp.where(skips, old, changed), kept, new)
    # at the least factor, it is no overflow, but what ends a run
    hopeless = ~precision.can_shrink(state.loss_scale)
    metrics["nonfinite"] = jnp.where(skips, overflow & hopeless, metrics["nonfinite"])
    metrics |= {"overflow": (skips & ~hopeless).astype(jnp.float32), "loss_scale": state.loss_scale.factor}
    return chosen._replace(loss_scale=precision.adjust_scale(state.loss_scale, skips)), metrics


def _count_updates(optimizer: optax.OptState) -> jax.Array:
    """Of a state that has seen so many: steps less those that were skipped."""
    return optax.tree_utils.tree_get_all_with_path(optimizer, "count")[0][1]


def _overflow(workers: list[Any]) -> jax.Array:
    """bool[tensors]: whose gradients hold a NaN or an infinity on any worker; the same on all."""
    own = jnp.any(jnp.stack([_nonfinite(gradients) for gradients in workers]), axis=0)
    return jax.lax.pmax(own.astype(jnp.int32), _ALL_AXES) > 0


def _zero_where(condition: jax.Array, tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.where(condition, 0, leaf), tree)


def statistics_as_metrics(statistics: Statistics) -> Metrics:
    return {f"compression/{name}": value for name, value in statistics._asdict().items()}


def _nonfinite(tree: Any) -> jax.Array:
    """bool[leaves]: which leaves hold a NaN or an infinity."""
    return jnp.stack([~jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)])
