"""What a run is at a step: all that a checkpoint holds."""

import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, PartitionSpec

from jaxtern.compression.codecs import Ternary
from jaxtern.compression.cost import Network
from jaxtern.compression.transform import CompressedMeanState, compressed_mean, state_specs
from jaxtern.training.optimizers import create_optimizer
from jaxtern.training.recipe import Recipe
from jaxtern.training.schedules import create_schedule

DEVICE_AXIS = "data"  # over the devices of different workers
FAST_AXIS = "fast"  # over the devices of one worker


class TrainState(NamedTuple):
    """Arrays of a run, the same on every device but for what the compressor has pending.

    Attributes:
      step: int32 scalar, updates so far.
      params: weights, a dict of dicts.
      optimizer: state of the optimiser.
      compressor: state of the mean; its count keys the noise.
    """

    step: jax.Array
    params: Any
    optimizer: optax.OptState
    compressor: CompressedMeanState


class Program(NamedTuple):
    """The functions of a run.

    Attributes:
      graph: static part of the model, for nnx.merge(graph, params).
      mean: an optax transformation, gradients of the workers on a device to the mean of all.
      optimizer: mean gradients to updates.
      schedule: learning rate of a step.
    """

    graph: Any
    mean: Any
    optimizer: optax.GradientTransformation
    schedule: optax.Schedule


def create_run(
    recipe: Recipe, model: Any, num_examples: int, mesh: Mesh, network: Network | None = None
) -> tuple[Program, TrainState]:
    """Program and first state for a model with fresh weights, on the devices of the mesh.

    Raises:
      ValueError: for codec options out of their range.
    """
    graph, variables = nnx.split(model, nnx.Param)
    params = nnx.to_pure_dict(variables)
    schedule = create_schedule(recipe, num_examples)
    mean: Any = create_mean(recipe, model.last_layer, recipe.num_workers // mesh.shape[DEVICE_AXIS], network)
    program = Program(graph, mean, create_optimizer(recipe, schedule, (r"(.*/)?kernel",)), schedule)

    def first_state(params: Any) -> TrainState:
        return TrainState(jnp.zeros((), jnp.int32), params, program.optimizer.init(params), mean.init(params))

    # Where means are delayed, the first state holds what each worker has sent, which depends on how many there are.
    start = jax.shard_map(
        first_state, mesh=mesh, in_specs=PartitionSpec(), out_specs=specs_of_state(recipe), check_vma=False
    )
    return program, jax.jit(start)(params)


def specs_of_state(recipe: Recipe) -> TrainState:
    """How the state lies on the mesh: alike everywhere, but for what each worker has sent where means are delayed."""
    everywhere: Any = PartitionSpec()
    return TrainState(everywhere, everywhere, everywhere, state_specs(DEVICE_AXIS) if recipe.delayed else everywhere)


def create_codec(recipe: Recipe) -> Ternary:
    """The recipe's codec."""
    return Ternary(
        clip_sigmas=recipe.clip_sigmas, scale=recipe.scale, block_size=recipe.block_size, levels=recipe.levels
    )


def stays_float(recipe: Recipe, last_layer: str, path: str) -> bool:
    """Whether the recipe keeps a tensor's gradients float whatever its size."""
    in_last_layer = recipe.float_last_layer and path.startswith(f"{last_layer}/")
    return in_last_layer or any(re.fullmatch(pattern, path) for pattern in recipe.exclude)


def create_mean(
    recipe: Recipe, last_layer: str, virtual_workers: int, network: Network | None = None
) -> optax.GradientTransformation:
    """The recipe's mean over devices with so many workers on each."""
    return compressed_mean(
        DEVICE_AXIS,
        fast_axis_name=FAST_AXIS if recipe.devices_per_worker > 1 else None,
        network=network,
        bucket_size=recipe.bucket_size,
        delayed=recipe.delayed,
        codec="float" if recipe.codec == "float" else create_codec(recipe),
        exchange=recipe.exchange,
        min_size=recipe.min_size,
        exclude=lambda path: stays_float(recipe, last_layer, path),
        seed=recipe.seed,
        virtual_workers=virtual_workers,
        statistics=recipe.log_compression,
    )
