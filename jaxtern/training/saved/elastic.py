"""A checkpoint of one recipe as the state of a run of another: of more workers, or fewer, or another exchange.

A state is the same on every worker but for what each has sent, where means are delayed. That is exchanged here, and the
mean of it goes on as `CompressedMeanState.carried`, whatever the workers that go on will send each other.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtern.compression.cost import Network
from jaxtern.compression.mean import Pending
from jaxtern.compression.transform import CompressedMeanState
from jaxtern.models import MODELS
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.saved.arrange import MisfitError, arrange, describe
from jaxtern.training.saved.checkpoints import Checkpoint
from jaxtern.training.step.mean import create_mean
from jaxtern.training.step.mesh import DEVICE_AXIS, FAST_AXIS
from jaxtern.training.step.state import TrainState

# what decides which mean words stand for, besides the links where the exchange is "auto"
_OF_WORDS = (
    "run.num_workers", "run.seed", "mean.method", "mean.exchange", "mean.devices_per_worker", "mean.bucket_size",
    "mean.scale", "mean.block_size", "mean.levels", "mean.min_size", "mean.float_last_layer", "mean.exclude",
)  # fmt: skip


def carry_over(saved: Checkpoint, like: TrainState, recipe: Recipe, network: Network | None) -> TrainState:
    """The state of a checkpoint as one of this recipe.

    Args:
      saved: as it was saved, with the recipe and the links of its run in its metadata.
      like: a first state of this recipe.
      recipe: of the run that goes on.
      network: the links by which that chooses its exchange.

    Returns:
      Arrays as NumPy has them, in the structure of `like`; but where workers had sent what these cannot read,
      `compressor.carried` is the mean of it, and `pending` what is sent at a start.

    Raises:
      MisfitError: for what cannot be carried over, as the moments of another optimiser.
    """
    rest, sent = dict(saved.state), dict(saved.state.get("compressor") or {})
    rest.pop("compressor", None)
    state, own = arrange(rest, like._replace(compressor=None)), jax.tree.map(np.asarray, like.compressor)
    compressor = own._replace(count=arrange(sent.get("count"), own.count))
    if own.statistics is not None and sent.get("statistics") is not None:
        compressor = compressor._replace(statistics=arrange(sent["statistics"], own.statistics))
    if sent.get("pending") is not None:
        before, links = _origin(saved.metadata, recipe, network)
        if _reads_alike(before, recipe, links, network) and _is_like(sent["pending"], own.pending):
            compressor = compressor._replace(pending=arrange(sent["pending"], own.pending))
        else:
            mean = pending_mean(sent["pending"], compressor.count, before, state.params, links)
            compressor = compressor._replace(carried=mean)
    return state._replace(compressor=compressor)


def pending_mean(pending: Any, count: np.ndarray, recipe: Recipe, params: Any, network: Network | None) -> Any:
    """The mean of what workers have sent, the bits that they would have got of it.

    Args:
      pending: as a checkpoint has it, each worker's own along a leading axis.
      count: int32 scalar, updates before the one that would take it.
      recipe: of those workers, with delayed means.
      params: what the gradients look like.
      network: the links by which they chose their exchange.

    Returns:
      float arrays as `params`.

    Raises:
      MisfitError: if it is not what such workers send.
    """
    zeros = jax.tree.map(np.zeros_like, params)
    mean: Any = create_mean(recipe.mean, MODELS[recipe.model.name].last_layer, 1, recipe.run.seed, network)
    size = jax.tree.leaves(pending["local"])[0].shape[0]  # workers, or devices where their floats are added up on each
    place = functools.partial(_place, size=size, devices=recipe.mean.worker_devices)
    like = jax.eval_shape(place(lambda own: mean.init(own).pending, in_axes=None), zeros)

    def receive(local: Any, shared: Any, count: jax.Array) -> Any:
        return mean.update([zeros], CompressedMeanState(count, None, Pending(local, shared)))[0]

    try:
        sent = arrange(pending, Pending(_without_axis(1, like.local), _without_axis(0, like.shared)))
    except MisfitError as error:
        raise MisfitError(f"holds words that its own recipe does not send: {error}") from None
    local = jax.tree.map(lambda leaf: leaf[:, None], sent.local)
    received = place(receive, in_axes=(0, None, None))
    first = jax.jit(lambda *arguments: jax.tree.map(lambda leaf: leaf[0], received(*arguments)))
    return jax.device_get(first(local, sent.shared, jnp.asarray(count)))


def _place(function: Any, *, in_axes: Any, size: int, devices: int) -> Any:
    """`function` on so many workers, along a leading axis, each of so many devices; all on one device."""
    placed = jax.vmap(function, in_axes, axis_name=DEVICE_AXIS, axis_size=size)
    if devices == 1:
        return placed
    alike = jax.vmap(placed, None, axis_name=FAST_AXIS, axis_size=devices)
    return lambda *arguments: jax.tree.map(lambda leaf: leaf[0], alike(*arguments))


def _without_axis(axis: int, tree: Any) -> Any:
    """Shapes and dtypes, less one axis."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[:axis] + x.shape[axis + 1 :], x.dtype), tree)


def _origin(metadata: dict[str, Any], recipe: Recipe, network: Network | None) -> tuple[Recipe, Network | None]:
    """Recipe and links of the run that wrote a checkpoint; those given, where it does not say."""
    before = Recipe.from_dict(metadata["recipe"]) if "recipe" in metadata else recipe
    if "network" in metadata:
        network = None if metadata["network"] is None else Network(**metadata["network"])
    return before, network


def _reads_alike(before: Recipe, after: Recipe, links: Network | None, network: Network | None) -> bool:
    one, other, same_links = before.by_name(), after.by_name(), after.mean.exchange != "auto" or links == network
    return after.mean.delayed and same_links and all(one[name] == other[name] for name in _OF_WORDS)


def _is_like(saved: Any, like: Any) -> bool:
    return [describe(leaf) for leaf in jax.tree.leaves(saved)] == [describe(leaf) for leaf in jax.tree.leaves(like)]
