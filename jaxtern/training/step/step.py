"""One step, compiled over a mesh: local gradients of every worker, their mean, one update."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from jaxtern.data.rendering import Batch
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.step.compiler import step_options
from jaxtern.training.step.gradients import create_local_gradients
from jaxtern.training.step.local import create_local_update
from jaxtern.training.step.mesh import DEVICE_AXIS, FAST_AXIS
from jaxtern.training.step.state import Program, TrainState, specs_of_state
from jaxtern.training.step.update import Metrics, create_update


class TrainStep:
    """A compiled step: (state, examples on the devices or None, batch, stops) -> (next state, metrics).

    If several processes train, `stops` is float32[devices of different workers], 1 on those that ask for a stop. The
    step reuses the memory of the given state; on CPUs only that of the compressor, as XLA would copy the rest.
    """

    def __init__(self, step: Callable[[TrainState, Any, Batch, Any], tuple[TrainState, Metrics]], platform: str):
        """Wraps a step, which is compiled at its first call."""

        def step_of_parts(compressor: Any, rest: TrainState, *others: Any) -> tuple[TrainState, Metrics]:
            return step(rest._replace(compressor=compressor), *others)

        donated = 0 if platform == "cpu" else (0, 1)
        self._jitted = jax.jit(step_of_parts, donate_argnums=donated, compiler_options=step_options(platform))

    def __call__(
        self, state: TrainState, examples: jax.Array | None, batch: Batch, stops: jax.Array | None = None
    ) -> tuple[TrainState, Metrics]:
        return self._jitted(*self.arguments(state, examples, batch, stops))

    def lower(self, state: TrainState, examples: jax.Array | None, batch: Batch) -> jax.stages.Lowered:
        """Lowers the step as jax.jit does; the compiled program takes `arguments`."""
        return self._jitted.lower(*self.arguments(state, examples, batch))

    def arguments(
        self, state: TrainState, examples: jax.Array | None, batch: Batch, stops: jax.Array | None = None
    ) -> tuple:
        """Arguments of the program, which takes the compressor's state apart from the rest."""
        return state.compressor, state._replace(compressor=None), examples, batch, stops


def create_train_step(recipe: Recipe, program: Program, mesh: Mesh, *, phase: int = 1, num_steps: int = 1) -> TrainStep:
    """Creates the compiled step of a recipe and its program.

    Worker w takes the w-th of N equal runs of the batch, and each of its devices an equal part of that. Metrics are
    means over all workers: those of `loss.measure`, with the part "loss/weight_decay" if decay is in the loss;
    gradient_norm of the mean; weight_norm of the trained weights; nonfinite, bool[tensors], which new weights hold a
    NaN or an infinity. On request there are also the compressor's statistics; histograms, of all weights and then of
    all mean gradients; and stops, whether any process asks for a stop. In float16 there are loss_scale, learning_rate
    and overflow, 1 if the step was skipped. Under local steps, metrics are of each device's workers, with a leading
    axis of devices (see `local.fetch_own`), as workers exchange nothing in between.

    Args:
      recipe, program: recipe and program of the run.
      mesh: result of `create_mesh`.
      phase: phase of the run, the index into `program.means`.
      num_steps: K, steps to take at once, with batches and metrics [K, ...]; 1: without that axis.
    """
    if recipe.local.steps:
        update = create_local_update(recipe.model, program, phase)
    else:
        update = create_update(recipe.model, program, phase, recipe.run.histograms_every)
    platform = mesh.devices.flat[0].platform
    is_cpu = platform == "cpu"
    local_workers = recipe.run.num_workers // mesh.shape[DEVICE_AXIS]
    own_examples = recipe.run.batch_size // recipe.run.num_workers // recipe.mean.worker_devices
    local_gradients = create_local_gradients(recipe, program, local_workers, is_cpu)

    def take_own(leaf: jax.Array) -> jax.Array:
        """[examples of this device's workers, ...] to [workers, examples of this device, ...]."""
        first = jax.lax.axis_index(FAST_AXIS) * own_examples
        by_worker = leaf.reshape(local_workers, -1, *leaf.shape[1:])
        return jax.lax.dynamic_slice_in_dim(by_worker, first, own_examples, axis=1)

    def step(state: TrainState, examples: Any, batch: Batch, stops: Any) -> tuple[TrainState, Metrics]:
        batch = jax.tree.map(take_own, batch)
        if examples is not None:
            batch = batch._replace(examples=examples[batch.examples])
        return update(state, local_gradients(state, batch, jax.lax.axis_index(DEVICE_AXIS) * local_workers), stops)

    def steps(state: TrainState, examples: Any, batches: Batch, stops: Any) -> tuple[TrainState, Metrics]:
        unroll = num_steps if is_cpu else 1  # a convolution in a loop is slow on CPUs
        return jax.lax.scan(lambda state, batch: step(state, examples, batch, stops), state, batches, unroll=unroll)

    state_specs, by_device = specs_of_state(recipe.local.steps > 0), PartitionSpec(DEVICE_AXIS)
    sharded = by_device if num_steps == 1 else PartitionSpec(None, DEVICE_AXIS)
    in_specs = state_specs, PartitionSpec(), sharded, by_device
    out_specs = state_specs, sharded if recipe.local.steps else PartitionSpec()
    mapped = jax.shard_map(
        step if num_steps == 1 else steps, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )
    return TrainStep(mapped, platform)
