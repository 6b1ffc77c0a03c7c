"""What a recipe demands of the links: its tensors, and the time of a step without exchange."""

import statistics
import time
from typing import NamedTuple

import jax
import numpy as np
from flax import nnx

from jaxtern.compression.reducer import Layout
from jaxtern.compression.transform import layout_of
from jaxtern.data.rendering import Batch
from jaxtern.models import create_model
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.run.inputs import Inputs, create_network
from jaxtern.training.step.mean import stays_float
from jaxtern.training.step.mesh import create_mesh
from jaxtern.training.step.state import create_run, split_variables
from jaxtern.training.step.step import create_train_step

STEPS, WARM_UP = 7, 2


class Workload(NamedTuple):
    """A recipe's gradients."""

    layout: Layout  # tensors that are compressed
    num_floats: int  # elements of tensors that stay float
    examples: int  # examples of one device in a step


def read_workload(recipe: Recipe, inputs: Inputs) -> Workload:
    """Reads a recipe's workload from shapes, without making weights; raises ValueError as the recipe's model does."""
    model = nnx.eval_shape(
        lambda: create_model(recipe.model.name, inputs.input_shape, inputs.dataset.num_classes, recipe.run.seed)
    )
    _, params, _, _ = split_variables(model, recipe)
    layout = layout_of(params)
    named = enumerate(zip(layout.paths, layout.sizes, strict=True))
    large = [(place, path) for place, (path, size) in named if size >= recipe.mean.min_size]
    compressed = layout.select([place for place, path in large if not stays_float(recipe.mean, model.last_layer, path)])
    examples = recipe.run.batch_size // recipe.run.num_workers // recipe.mean.worker_devices
    return Workload(compressed, sum(layout.sizes) - sum(compressed.sizes), examples)


def measure_step_seconds(recipe: Recipe, inputs: Inputs, examples: int) -> float:
    """The median seconds of a few steps of one device here, of so many examples: gradients and update, no exchange."""
    alone = recipe.replace(
        run={"num_workers": 1, "num_devices": 1, "batch_size": examples},
        mean={"method": "float", "devices_per_worker": 1, "delayed": False, "statistics": False},
        local={"steps": 0},
    )
    mesh = create_mesh(alone)
    model = create_network(alone.model, inputs.input_shape, inputs.dataset.num_classes, alone.run.seed)
    program, state = create_run(alone, model, inputs.dataset.train.size, mesh)
    step = create_train_step(alone, program, mesh)
    made = inputs.task.make(inputs.example_shape, inputs.dataset.num_classes, examples).train
    places = np.zeros(examples, np.int32)
    batch = jax.device_put(Batch(made.examples, made.labels, places, places))
    times = []
    for _ in range(STEPS + WARM_UP):
        begin = time.perf_counter()
        state, metrics = step(state, None, batch)
        jax.block_until_ready((state, metrics))
        times.append(time.perf_counter() - begin)
    return statistics.median(times[WARM_UP:])
