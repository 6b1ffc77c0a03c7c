"""The second half of a step: the mean of all workers' gradients, one update, and metrics of both."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxtern.compression.collectives import pmean
from jaxtern.training.recipe import masks
from jaxtern.training.recipe.model import ModelSection
from jaxtern.training.step import precision
from jaxtern.training.step.gradients import Local
from jaxtern.training.step.histograms import count_where
from jaxtern.training.step.mesh import DEVICE_AXIS, FAST_AXIS
from jaxtern.training.step.state import Averages, Program, TrainState

Metrics = dict[str, Any]
_ALL_AXES = (DEVICE_AXIS, FAST_AXIS)


def create_update(
    model: ModelSection, program: Program, phase: int, histograms_every: int = 0
) -> Callable[[TrainState, list[Local], jax.Array | None], tuple[TrainState, Metrics]]:
    """(state, `Local` of each worker here, 1 if this device asks for a stop) -> (state, metrics)."""
    transformation = program.means[phase]

    def update(state: TrainState, local: list[Local], stops: jax.Array | None) -> tuple[TrainState, Metrics]:
        gradients = [masks.mask_slices(each.gradients, program.slices) for each in local]
        skips = overflow = None
        if state.loss_scale is not None:
            own = jnp.any(jnp.stack(list(map(nonfinite, gradients))), axis=0)
            overflow = jax.lax.pmax(own.astype(jnp.int32), _ALL_AXES) > 0  # bool[tensors], of any worker
            skips = jnp.any(overflow)
            factor = state.loss_scale.factor
            gradients = jax.tree.map(lambda leaf: jnp.where(skips, 0, leaf / factor), gradients)
        mean, compressor = transformation.update(gradients, state.compressor)
        updates, optimizer = program.optimizer.update(mean, state.optimizer, state.params)
        params = optax.apply_updates(state.params, masks.mask_slices(updates, program.slices))
        moments = _join_moments(model.batch_norm, local)
        new = TrainState(
            state.step + 1, params, state.frozen, moments, optimizer, compressor, state.averages, state.loss_scale
        )
        new = move_averages(new, model.average_decay)
        metrics = _measure(local, stops) | {"nonfinite": nonfinite(params)}
        # The barrier keeps XLA from fusing the optimiser's squares with these, which would round them differently.
        seen = jax.lax.optimization_barrier((params, mean))
        metrics |= dict(zip(("weight_norm", "gradient_norm"), map(optax.tree.norm, seen), strict=True))
        if histograms_every:
            metrics["histograms"] = count_where(new.step % histograms_every == 0, jax.tree.leaves(seen))
        if compressor.statistics is not None and phase > 0:
            metrics |= {f"compression/{name}": value for name, value in compressor.statistics._asdict().items()}
        if skips is not None:
            metrics["learning_rate"] = jnp.asarray(program.schedule(state.compressor.count))
            return _skip_overflow(state, new, metrics, overflow, skips)
        return new, metrics

    return update


def _measure(local: list[Local], stops: jax.Array | None) -> Metrics:
    """Means over all workers, and whether a host asks to stop; far hosts wait half as long as for an all-reduce."""
    names = list(local[0].measured)
    measured = jnp.mean(jnp.array([[each.measured[name] for name in names] for each in local]), axis=0)
    of_all = jax.lax.all_gather(measured if stops is None else jnp.append(measured, stops), _ALL_AXES)
    means = jnp.mean(of_all, axis=0)
    metrics = dict(zip(names, means, strict=False))
    return metrics if stops is None else metrics | {"stops": means[-1] > 0}


def _join_moments(batch_norm: str, local: list[Local]) -> Any:
    """The moving moments with which all workers continue: their mean, or those of worker 0."""
    moments = [each.moments for each in local]
    if not jax.tree.leaves(moments) or batch_norm == "sync":  # already the same on all workers
        return moments[0]
    if batch_norm == "first":
        is_first = jax.lax.axis_index(DEVICE_AXIS) == 0
        return jax.lax.psum(jax.tree.map(lambda leaf: jnp.where(is_first, leaf, 0), moments[0]), DEVICE_AXIS)
    return pmean(jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *moments), (DEVICE_AXIS,))


def move_averages(state: TrainState, decay: float, first: int = 1) -> TrainState:
    """Moves the averages towards weights and moments.

        a <- d a + (1 - d) x,  d = min(decay, (1 + t) / (10 + t))

    t counts steps and is 1 in the first one (Abadi et al. 2016, ExponentialMovingAverage). For moments d is 0 up to
    update `first`, the first that changes them, as earlier moments may be of no batch; skipped updates do not count.
    """
    if state.averages is None:
        return state
    t = state.step.astype(jnp.float32)
    d = jnp.minimum(decay, (1 + t) / (10 + t))
    of_moments = jnp.where(state.compressor.count <= first, 0.0, d)
    params = optax.tree.update_moment(state.params, state.averages.params, d, order=1)
    moments = optax.tree.update_moment(state.moments, state.averages.moments, of_moments, order=1)
    return state._replace(averages=Averages(params, moments))


def _skip_overflow(
    state: TrainState, new: TrainState, metrics: Metrics, overflow: Any, skips: jax.Array
) -> tuple[TrainState, Metrics]:
    """Keeps the old state, except for its counts, if any worker's gradients overflowed."""
    assert state.loss_scale is not None
    kept = state._replace(step=new.step)
    chosen = jax.tree.map(lambda old, changed: jnp.where(skips, old, changed), kept, new)
    # At the least factor, the gradients are not finite by themselves, which ends the run.
    hopeless = state.loss_scale.factor <= precision.LEAST
    metrics["nonfinite"] = jnp.where(skips, overflow & hopeless, metrics["nonfinite"])
    metrics |= {"overflow": (skips & ~hopeless).astype(jnp.float32), "loss_scale": state.loss_scale.factor}
    return chosen._replace(loss_scale=precision.adjust_scale(state.loss_scale, skips)), metrics


def nonfinite(tree: Any) -> jax.Array:
    """bool[leaves]: which leaves hold a NaN or an infinity, as x - x is then NaN; XLA adds these floats in one pass."""
    return jnp.stack([jnp.isnan(jnp.sum(leaf - leaf)) for leaf in jax.tree.leaves(tree)])
