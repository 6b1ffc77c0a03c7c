"""One step: local gradients of every worker, their mean, one update."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, PartitionSpec

from jaxtern.compression.statistics import Statistics
from jaxtern.data.preprocessing.families import get_preprocessing
from jaxtern.data.rendering import Batch
from jaxtern.training.loss import inputs_and_targets, measure
from jaxtern.training.optimizers import is_kernel
from jaxtern.training.recipe import Recipe
from jaxtern.training.state import DEVICE_AXIS, FAST_AXIS, Program, TrainState, specs_of_state

Metrics = dict[str, jax.Array]
TrainStep = Callable[[TrainState, jax.Array | None, Batch], tuple[TrainState, Metrics]]


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
    return Mesh(np.array(devices[:size]).reshape(-1, fast), (DEVICE_AXIS, FAST_AXIS))


def create_train_step(recipe: Recipe, program: Program, mesh: Mesh) -> TrainStep:
    """The compiled step (state, images that lie on the devices or None, batch) -> (state, metrics).

    Of the batch, worker w takes the w-th of N equal runs, each of its devices an equal part of that. Every example is
    augmented by a key of its own. The state is donated. Metrics:
    loss (with weight decay in it) and accuracy, means over all workers; nonfinite, bool[tensors], which mean gradients
    or new weights hold a NaN or an infinity; and the compressor's statistics where they are asked for.
    """
    loss_and_gradient = jax.value_and_grad(_create_loss(recipe, program), has_aux=True)
    local_workers = recipe.num_workers // mesh.shape[DEVICE_AXIS]
    own_examples = recipe.batch_size // recipe.num_workers // recipe.devices_per_worker

    def take_own(leaf: jax.Array) -> jax.Array:
        """[examples of this device's workers, ...] to [workers, examples of this device, ...]."""
        first = jax.lax.axis_index(FAST_AXIS) * own_examples
        by_worker = leaf.reshape(local_workers, -1, *leaf.shape[1:])
        return jax.lax.dynamic_slice_in_dim(by_worker, first, own_examples, axis=1)

    def local_gradients(params: Any, batch: Batch) -> list[Any]:
        """((loss, accuracy), gradients) of every worker of this device."""
        if recipe.virtual_workers == "unrolled":
            each = (jax.tree.map(lambda leaf, w=w: leaf[w], batch) for w in range(local_workers))
            return [loss_and_gradient(params, own) for own in each]
        stacked = jax.vmap(loss_and_gradient, in_axes=(None, 0))(params, batch)
        return [jax.tree.map(lambda leaf, w=w: leaf[w], stacked) for w in range(local_workers)]

    def step(state: TrainState, images: jax.Array | None, batch: Batch) -> tuple[TrainState, Metrics]:
        batch = jax.tree.map(take_own, batch)
        if images is not None:
            batch = batch._replace(images=images[batch.images])
        measured, gradients = zip(*local_gradients(state.params, batch), strict=True)
        mean, compressor = program.mean.update(gradients, state.compressor)
        updates, optimizer = program.optimizer.update(mean, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        loss, accuracy = jax.lax.pmean(jnp.mean(jnp.array(measured), axis=0), (DEVICE_AXIS, FAST_AXIS))
        metrics = {"loss": loss, "accuracy": accuracy, "nonfinite": _nonfinite(mean) | _nonfinite(params)}
        if compressor.statistics is not None:
            metrics |= statistics_as_metrics(compressor.statistics)
        return TrainState(state.step + 1, params, optimizer, compressor), metrics

    replicated, sharded, state_specs = PartitionSpec(), PartitionSpec(DEVICE_AXIS), specs_of_state(recipe)
    in_specs, out_specs = (state_specs, replicated, sharded), (state_specs, replicated)
    return jax.jit(
        jax.shard_map(step, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False), donate_argnums=0
    )


def _create_loss(recipe: Recipe, program: Program) -> Callable:
    """(params, batch of uint8 images) -> (cross-entropy with weight decay if it belongs there, accuracy)."""
    preprocessing = get_preprocessing(recipe.preprocessing)

    def loss(params: Any, batch: Batch) -> tuple[jax.Array, jax.Array]:
        keys = example_keys(recipe.seed, batch.epochs, batch.places)
        prepared = preprocessing.augment(batch.images, keys, recipe.image_size)
        inputs, targets = inputs_and_targets(preprocessing, prepared, batch.labels)
        value, accuracy = measure(nnx.merge(program.graph, params)(inputs), targets, recipe.label_smoothing)
        if recipe.weight_decay and recipe.weight_decay_mode == "loss":
            value += recipe.weight_decay * sum_of_squares(params) / 2
        return value, accuracy

    return loss


def example_keys(seed: int, epochs: jax.Array, places: jax.Array) -> jax.Array:
    """A random key for each example: of (seed, epoch, place in the epoch) alone, so the same on any number of hosts."""
    key = jax.random.key(seed)
    return jax.vmap(lambda epoch, place: jax.random.fold_in(jax.random.fold_in(key, epoch), place))(epochs, places)


def sum_of_squares(params: Any) -> jax.Array:
    """Of all kernels."""
    squares = jax.tree.map(lambda w, kernel: jnp.sum(w * w) if kernel else 0.0, params, is_kernel(params))
    return sum(jax.tree.leaves(squares), start=jnp.zeros(()))


def statistics_as_metrics(statistics: Statistics) -> Metrics:
    return {f"compression/{name}": value for name, value in statistics._asdict().items()}


def _nonfinite(tree: Any) -> jax.Array:
    """bool[leaves]: which leaves hold a NaN or an infinity."""
    return jnp.stack([~jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)])
