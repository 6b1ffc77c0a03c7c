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
from jaxtern.data.dataset import Split
from jaxtern.data.preprocess import normalize
from jaxtern.training.optimizers import is_kernel
from jaxtern.training.recipe import Recipe
from jaxtern.training.state import DEVICE_AXIS, Program, TrainState

Metrics = dict[str, jax.Array]
TrainStep = Callable[[TrainState, Split, np.ndarray], tuple[TrainState, Metrics]]


def create_mesh(recipe: Recipe) -> Mesh:
    """A mesh of one axis over the recipe's number of devices.

    Raises:
      ValueError: if there are fewer, or if the workers do not divide among them.
    """
    devices = jax.devices()
    size = recipe.num_devices
    if size is None:
        size = max(m for m in range(1, len(devices) + 1) if recipe.num_workers % m == 0)
    if size > len(devices):
        raise ValueError(f"num_devices={size}: there are {len(devices)}")
    if recipe.num_workers % size:
        raise ValueError(f"num_workers={recipe.num_workers}: must divide among num_devices={size}")
    return Mesh(np.array(devices[:size]), (DEVICE_AXIS,))


def create_train_step(recipe: Recipe, program: Program, mesh: Mesh) -> TrainStep:
    """The compiled step (state, training split on the device, indices of the batch) -> (state, metrics).

    `indices` are int32[batch_size]; worker w takes the w-th of N equal runs of them. The state is donated. Metrics:
    loss (with weight decay in it) and accuracy, means over all workers; nonfinite, bool[tensors], which mean gradients
    or new weights hold a NaN or an infinity; and the compressor's statistics where they are asked for.
    """
    loss_and_gradient = jax.value_and_grad(_create_loss(recipe, program), has_aux=True)
    local_workers = recipe.num_workers // mesh.size

    def local_gradients(params: Any, images: jax.Array, labels: jax.Array) -> list[Any]:
        """((loss, accuracy), gradients) of every worker of this device."""
        workers = range(local_workers)
        if recipe.virtual_workers == "unrolled":
            return [loss_and_gradient(params, images[w], labels[w]) for w in workers]
        stacked = jax.vmap(loss_and_gradient, in_axes=(None, 0, 0))(params, images, labels)
        return [jax.tree.map(lambda leaf, w=w: leaf[w], stacked) for w in workers]

    def step(state: TrainState, split: Split, indices: jax.Array) -> tuple[TrainState, Metrics]:
        indices = indices.reshape(local_workers, -1)
        measured, gradients = zip(
            *local_gradients(state.params, split.images[indices], split.labels[indices]), strict=True
        )
        mean, compressor = program.mean.update(gradients, state.compressor)
        updates, optimizer = program.optimizer.update(mean, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        loss, accuracy = jax.lax.pmean(jnp.mean(jnp.array(measured), axis=0), DEVICE_AXIS)
        metrics = {"loss": loss, "accuracy": accuracy, "nonfinite": _nonfinite(mean) | _nonfinite(params)}
        if compressor.statistics is not None:
            metrics |= statistics_as_metrics(compressor.statistics)
        return TrainState(state.step + 1, params, optimizer, compressor), metrics

    replicated, sharded = PartitionSpec(), PartitionSpec(DEVICE_AXIS)
    return jax.jit(
        jax.shard_map(
            step, mesh=mesh, in_specs=(replicated, replicated, sharded), out_specs=replicated, check_vma=False
        ),
        donate_argnums=0,
    )


def _create_loss(recipe: Recipe, program: Program) -> Callable:
    """(params, uint8 images, labels) -> (cross-entropy with weight decay if it belongs there, accuracy)."""

    def loss(params: Any, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = nnx.merge(program.graph, params)(normalize(images))
        value = jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))
        if recipe.weight_decay and recipe.weight_decay_mode == "loss":
            value += recipe.weight_decay * sum_of_squares(params) / 2
        return value, jnp.mean((jnp.argmax(logits, axis=-1) == labels).astype(jnp.float32))

    return loss


def sum_of_squares(params: Any) -> jax.Array:
    """Of all kernels."""
    squares = jax.tree.map(lambda w, kernel: jnp.sum(w * w) if kernel else 0.0, params, is_kernel(params))
    return sum(jax.tree.leaves(squares), start=jnp.zeros(()))


def statistics_as_metrics(statistics: Statistics) -> Metrics:
    return {f"compression/{name}": value for name, value in statistics._asdict().items()}


def _nonfinite(tree: Any) -> jax.Array:
    """bool[leaves]: which leaves hold a NaN or an infinity."""
    return jnp.stack([~jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)])
