"""The state of a run at a step: all that a checkpoint holds."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxtern.compression.network.links import Network
from jaxtern.compression.transform import CompressedMeanState, state_specs
from jaxtern.hosts.messages import to_devices
from jaxtern.local.local_steps import LocalState, local_specs
from jaxtern.training.recipe import masks
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.recipe.selection import by_path, require_match
from jaxtern.training.step.mean import create_local_steps, create_mean, create_reducers
from jaxtern.training.step.mesh import DEVICE_AXIS, FAST_AXIS, VIRTUAL_AXIS
from jaxtern.training.step.optimizers import create_optimizer, decay_patterns
from jaxtern.training.step.precision import LossScale
from jaxtern.training.step.schedules import create_schedule


class Averages(NamedTuple):
    """Moving averages over the steps."""

    params: Any  # averages of the weights
    moments: Any  # averages of the moving moments of batch norm


class TrainState(NamedTuple):
    """Arrays of a run. All devices hold the same, except for `compressor.local`, which is each worker's own."""

    step: jax.Array  # int32 scalar, updates so far
    params: Any  # trained weights, a dict of dicts
    frozen: Any  # weights that are not trained, a dict of dicts
    moments: Any  # moving moments of batch norm, a dict of dicts
    optimizer: optax.OptState  # state of the optimiser; () under local steps
    # state of the mean, or of local steps without what is in `params` and `moments`
    compressor: CompressedMeanState | LocalState
    averages: Averages | None  # moving averages, or None
    loss_scale: LossScale | None  # scale of the loss, or None


class Program(NamedTuple):
    """The functions of a run."""

    graph: Any  # static part of the model, for nnx.merge(graph, variables_of(state))
    # an optax transformation, or `LocalSteps`, for each phase of a run: without compression, with the method, and with
    # that of each warm-up epoch. All have the same state.
    means: list[Any]
    optimizer: optax.GradientTransformation  # turns mean gradients into updates
    schedule: optax.Schedule  # learning rate of a step
    slices: dict[str, np.ndarray]  # by path, bool arrays that are False where a part of a trained tensor is frozen
    decayed: Sequence[str]  # regular expressions of the paths of tensors that are decayed


def create_run(
    recipe: Recipe, model: Any, num_examples: int, mesh: Mesh, network: Network | None = None
) -> tuple[Program, TrainState]:
    """Creates the program and first state of a model, with its weights, on the devices of the mesh.

    Raises ValueError for patterns that match no tensor.
    """
    configure_modules(model, recipe)
    graph, params, frozen, moments = split_variables(model, recipe)
    schedule = create_schedule(recipe.optimizer, recipe.run, num_examples)
    local_workers = recipe.run.num_workers // mesh.shape[DEVICE_AXIS]
    optimizer = create_optimizer(recipe.optimizer, schedule, model.decayed, model.last_layer)
    slices = masks.slice_masks(recipe.model.freeze, params)
    reducers = create_reducers(recipe.mean, model.last_layer, network)
    if recipe.local.steps:
        means: list[Any] = [create_local_steps(recipe, each, local_workers, optimizer, slices) for each in reducers]
    else:
        means = [create_mean(recipe, each, local_workers) for each in reducers]
    program = Program(graph, means, optimizer, schedule, slices, decay_patterns(recipe.optimizer, model.decayed))

    def first_state(params: Any, frozen: Any, moments: Any) -> TrainState:
        averages = Averages(params, moments) if recipe.model.average_decay else None
        scale = None
        if recipe.model.precision == "float16":
            scale = LossScale(jnp.float32(recipe.model.loss_scale), jnp.int32(0))
        if recipe.local.steps:
            start = (), means[0].init(params, moments)._replace(params=(), moments=())
        else:
            start = optimizer.init(params), means[0].init(params)
        return TrainState(jnp.zeros((), jnp.int32), params, frozen, moments, *start, averages, scale)

    specs = specs_of_state(recipe.local.steps > 0)
    start = jax.shard_map(first_state, mesh=mesh, in_specs=PartitionSpec(), out_specs=specs, check_vma=False)
    # From the host, as arrays of one device do not fit a mesh of several processes.
    return program, jax.jit(start)(*jax.device_get((params, frozen, moments)))


def configure_modules(model: Any, recipe: Recipe) -> None:
    """Sets the precision of the model's modules, and the axes over which batch norm takes its moments."""
    axes = (DEVICE_AXIS,) if recipe.model.batch_norm == "sync" else ()
    if recipe.model.batch_norm == "sync" and recipe.run.virtual_workers == "vmapped":
        axes = (VIRTUAL_AXIS, *axes)
    if axes or recipe.mean.worker_devices > 1:
        axes = (*axes, FAST_AXIS)
    for _, module in nnx.iter_modules(model):
        if recipe.model.precision != "float32" and hasattr(module, "dtype"):
            module.dtype = jnp.dtype(recipe.model.precision)  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(module, nnx.BatchNorm) and axes:
            module.axis_name = axes  # pyright: ignore[reportAttributeAccessIssue]


def split_variables(model: Any, recipe: Recipe) -> tuple[Any, Any, Any, Any]:
    """Static part, trained weights, frozen weights, and moments of batch norm.

    Raises ValueError for patterns that match no tensor, or that leave nothing to train.
    """
    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    masks.require_trainable(recipe.model.train_only, recipe.model.freeze, params)
    paths = list(by_path(params))
    for name, patterns in (("optimizer.decay", recipe.optimizer.decay), ("mean.exclude", recipe.mean.exclude)):
        for pattern in patterns:
            require_match(name, pattern, paths)

    def is_trained(path: tuple, value: Any) -> bool:
        whole = "/".join(map(str, path))
        return isinstance(value, nnx.Param) and masks.is_trained(recipe.model.train_only, recipe.model.freeze, whole)

    graph, *variables = nnx.split(model, is_trained, nnx.Param, nnx.BatchStat)
    params, frozen, moments = map(nnx.to_pure_dict, variables)
    return graph, params, frozen, moments


def variables_of(state: TrainState, averaged: bool = True) -> Any:
    """The variables for nnx.merge(program.graph, ...), a dict of dicts; moving averages if `averaged` and kept."""
    moving = state.averages if averaged and state.averages is not None else state
    return nnx.to_pure_dict(nnx.merge_state(moving.params, state.frozen, moving.moments))


def specs_of_state(of_local_steps: bool = False) -> TrainState:
    """PartitionSpecs of a state over the mesh: all is replicated, except for the compressor's `local`."""
    everywhere: Any = PartitionSpec()
    specs = TrainState(*(everywhere for _ in TrainState._fields))
    return specs._replace(compressor=local_specs(DEVICE_AXIS) if of_local_steps else state_specs(DEVICE_AXIS))


def place_state(state: Any, mesh: Mesh) -> TrainState:
    """Puts a state of NumPy arrays, which every process holds whole, on the devices of the mesh."""
    specs = specs_of_state(isinstance(state.compressor, LocalState))
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    return to_devices(state, jax.tree.broadcast(shardings, state))
