"""The second half of a local step: each worker's own update, and the exchanges that are due.

`TrainState.params` and `moments` hold what is shared; its compressor holds only what each worker has of its own.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxtern.local.local_steps import LocalState
from jaxtern.training.recipe import masks
from jaxtern.training.recipe.model import ModelSection
from jaxtern.training.step.gradients import Local
from jaxtern.training.step.mesh import DEVICE_AXIS, FAST_AXIS
from jaxtern.training.step.state import Program, TrainState
from jaxtern.training.step.update import Metrics, move_averages, nonfinite


def create_local_update(
    model: ModelSection, program: Program, phase: int
) -> Callable[[TrainState, list[Local], jax.Array | None], tuple[TrainState, Metrics]]:
    """As `create_update`, but metrics are of this device's workers alone, with leaves [1, ...]."""
    steps = program.means[phase]

    def update(state: TrainState, local: list[Local], stops: jax.Array | None) -> tuple[TrainState, Metrics]:
        gradients = [masks.mask_slices(each.gradients, program.slices) for each in local]
        whole = state.compressor._replace(params=state.params, moments=state.moments)
        after: LocalState = steps.update(gradients, whole, [each.moments for each in local])
        own = after._replace(params=(), moments=())
        new = state._replace(step=state.step + 1, params=after.params, moments=after.moments, compressor=own)
        new = move_averages(new, model.average_decay, steps.timing.period)
        metrics = jax.tree.map(lambda *each: sum(each) / len(each), *[each.measured for each in local])
        metrics["nonfinite"] = nonfinite(after.local.params)
        metrics["weight_norm"] = optax.tree.norm(after.params)
        metrics["gradient_norm"] = sum(map(optax.tree.norm, gradients)) / len(gradients)
        if stops is not None:  # exchanged only when weights are merged, as nothing is sent in between
            is_merged = steps.timing.due(after.count) < steps.timing.fragments
            metrics["stops"] = jax.lax.cond(
                is_merged, lambda: jax.lax.pmax(jnp.max(stops), (DEVICE_AXIS, FAST_AXIS)) > 0, lambda: jnp.bool_(False)
            )
        return new, jax.tree.map(lambda leaf: leaf[None], metrics)

    return update


def fetch_own(metrics: Metrics, num_steps: int) -> Metrics:
    """Reduces metrics [devices, ...] or [steps, devices, ...] over this process's devices: means; of flags, any."""
    axis = 0 if num_steps == 1 else 1

    def fetch(leaf: jax.Array) -> np.ndarray:
        rows = np.concatenate([np.asarray(shard.data) for shard in leaf.addressable_shards], axis=axis)
        return np.any(rows, axis=axis) if rows.dtype == bool else np.mean(rows, axis=axis, dtype=rows.dtype)

    return jax.tree.map(fetch, metrics)
