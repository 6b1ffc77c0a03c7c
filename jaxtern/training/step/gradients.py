"""The first half of a step: each worker's gradients of its own examples."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxtern.data.rendering import Batch
from jaxtern.data.tasks import create_task
from jaxtern.models import MODELS
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.recipe.selection import mask
from jaxtern.training.step.loss import measure
from jaxtern.training.step.mesh import FAST_AXIS, VIRTUAL_AXIS
from jaxtern.training.step.optimizers import decays_in_loss
from jaxtern.training.step.state import Program, TrainState

_DROPOUT_STREAM = 2**32 - 1  # folded into the seed; augmentation folds in the epochs' numbers


class Local(NamedTuple):
    """One worker's part of a step."""

    measured: dict[str, jax.Array]  # means over its examples by name; the loss includes weight decay
    moments: Any  # moments of batch norm after these examples
    gradients: Any  # gradients of the loss times the loss scale


def create_local_gradients(
    recipe: Recipe, program: Program, local_workers: int, is_cpu: bool
) -> Callable[[TrainState, Batch, jax.Array], list[Local]]:
    """(state, this device's batch [workers, examples, ...], number of its first worker) -> `Local` of each worker."""
    loss_and_gradient = jax.value_and_grad(_create_loss(recipe, program), has_aux=True)

    def of_part(state: TrainState, batch: Batch, key: jax.Array) -> Local:
        (_, (measured, moments)), gradients = loss_and_gradient(state.params, state, batch, key)
        return Local(measured, moments, gradients)

    def of_worker(state: TrainState, batch: Batch, worker: jax.Array) -> Local:
        key = dropout_key(recipe.run.seed, state.step, worker)
        if recipe.run.accumulation == 1:
            return of_part(state, batch, key)
        return _accumulate(of_part, state, batch, key, recipe.run.accumulation, is_cpu)

    def views(state: TrainState) -> list[TrainState]:
        """The state of each worker here; under local steps each has its own weights."""
        if not recipe.local.steps:
            return [state] * local_workers
        own = program.means[0].workers(state.compressor)
        return [state._replace(params=each.params, moments=each.moments) for each in own]

    def of_device(state: TrainState, batch: Batch, first: jax.Array) -> list[Local]:
        if recipe.run.virtual_workers == "unrolled":
            own = [jax.tree.map(lambda leaf, w=w: leaf[w], batch) for w in range(local_workers)]
            return [of_worker(view, own[w], first + w) for w, view in enumerate(views(state))]
        numbers = first + jnp.arange(local_workers)
        stacked = jax.vmap(of_worker, in_axes=(None, 0, 0), axis_name=VIRTUAL_AXIS)(state, batch, numbers)
        return [jax.tree.map(lambda leaf, w=w: leaf[w], stacked) for w in range(local_workers)]

    return of_device


def _accumulate(
    of_part: Callable[..., Local], state: TrainState, batch: Batch, key: jax.Array, num_parts: int, is_cpu: bool
) -> Local:
    """Means over equal parts of a batch, taken one after another; each part starts with the moments of the last."""

    def add(total: Local, part: tuple[Batch, jax.Array]) -> tuple[Local, None]:
        examples, number = part
        own = of_part(state._replace(moments=total.moments), examples, jax.random.fold_in(key, number))
        means = jax.tree.map(lambda s, x: s + x / num_parts, total._replace(moments=()), own._replace(moments=()))
        return means._replace(moments=own.moments), None

    parts = jax.tree.map(lambda leaf: leaf.reshape(num_parts, -1, *leaf.shape[1:]), batch)
    shapes = jax.eval_shape(of_part, state, jax.tree.map(lambda leaf: leaf[0], parts), key)
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)._replace(moments=state.moments)
    return jax.lax.scan(add, zero, (parts, jnp.arange(num_parts)), unroll=num_parts if is_cpu else 1)[0]


def _create_loss(recipe: Recipe, program: Program) -> Callable:
    """(weights, state, batch of uint8 examples, key) -> (scaled loss, (measured, new moments))."""
    task = create_task(recipe.data.preprocessing, recipe.data.image_size, recipe.data.sequence_length)
    auxiliary_weight = MODELS[recipe.model.name].auxiliary_weight

    def loss(
        params: Any, state: TrainState, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, tuple[dict[str, jax.Array], Any]]:
        keys = example_keys(recipe.run.seed, batch.epochs, batch.places)
        inputs, targets = task.in_training(batch.examples, batch.labels, keys)
        model = nnx.merge(program.graph, params, state.frozen, state.moments)
        measured = measure(recipe.model, model(inputs, key), targets, auxiliary_weight)
        if decays_in_loss(recipe.optimizer):
            decayed = mask(program.decayed, params)
            squares = jax.tree.map(lambda w, counts: jnp.sum(w * w) if counts else 0.0, params, decayed)
            decay = recipe.optimizer.weight_decay * sum(jax.tree.leaves(squares), start=jnp.zeros(())) / 2
            measured |= {"loss": measured["loss"] + decay, "loss/weight_decay": decay}
        scale = 1.0 if state.loss_scale is None else state.loss_scale.factor
        return measured["loss"] * scale, (measured, nnx.to_pure_dict(nnx.state(model, nnx.BatchStat)))

    return loss


def example_keys(seed: int, epochs: jax.Array, places: jax.Array) -> jax.Array:
    """A random key for each example, a function of (seed, epoch, place in the epoch) alone."""
    key = jax.random.key(seed)
    return jax.vmap(lambda epoch, place: jax.random.fold_in(jax.random.fold_in(key, epoch), place))(epochs, places)


def dropout_key(seed: int, step: jax.Array, worker: jax.Array) -> jax.Array:
    """A random key for each step, each worker and each of its devices."""
    key = jax.random.fold_in(jax.random.key(seed), _DROPOUT_STREAM)
    for number in (step, worker, jax.lax.axis_index(FAST_AXIS)):
        key = jax.random.fold_in(key, number)
    return key
