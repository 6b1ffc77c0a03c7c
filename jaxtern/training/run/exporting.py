"""Exports a checkpoint as a network that predicts without this package's training code."""

from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from jaxtern import __version__
from jaxtern.artifact.storage import Artifact, Manifest
from jaxtern.data.facts import Facts
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.recipe.selection import by_path
from jaxtern.training.run.evaluation import compute_logits
from jaxtern.training.run.inputs import create_network, example_shape_of, facts_of, task_of
from jaxtern.training.run.saved_run import SavedRun, open_run
from jaxtern.training.saved.workdir import read_facts, read_recipe
from jaxtern.training.step.state import variables_of

PLATFORMS = ("cpu", "cuda")


def export_run(
    workdir: Path, step: int | None = None, averaged: bool = True, data_dir: str | None = None, best: bool = False
) -> Artifact:
    """Exports a run's network; raises ValueError or OSError if the run, the checkpoint or its data cannot be read.

    Args:
      workdir: the run's folder. The data are not opened if it has their facts.
      step, best: the checkpoint, as in `SavedRun.restore`.
      averaged: whether to take moving averages, if the run keeps them.
      data_dir: folder of the dataset, to read its facts instead of the run's.
    """
    recipe, facts = read_recipe(workdir), read_facts(workdir) if data_dir is None else None
    if facts is None:
        run, inputs = open_run(workdir, data_dir)
        facts = facts_of(inputs.task, inputs.dataset)
    else:
        task = task_of(recipe.data)
        shape = task.input_shape(example_shape_of(recipe.data, facts) if task.of_images else ())
        run = SavedRun(workdir, recipe, create_network(recipe.model, shape, facts.num_classes, recipe.run.seed))
    state = run.restore(step, best)
    averaged = averaged and recipe.model.average_decay > 0
    return export_network(recipe, facts, run.graph, variables_of(state, averaged), int(state.step), averaged)


def export_network(
    recipe: Recipe, facts: Facts, graph: Any, variables: Any, step: int = 0, averaged: bool = False
) -> Artifact:
    """Exports the program that `evaluate` runs, for the static part of a model and its variables.

    `step` and `averaged` say how many updates the weights have had, and whether they are moving averages.
    """
    structure, task, leaves = jax.tree.structure(variables), task_of(recipe.data), by_path(variables)
    dtypes = {path: leaf.dtype for path, leaf in leaves.items()}
    # NumPy's files have none of JAX's own types, such as bfloat16.
    weights = {path: np.asarray(leaf, np.float32 if leaf.dtype.kind == "V" else None) for path, leaf in leaves.items()}

    def predict(weights: dict[str, jax.Array], inputs: jax.Array) -> jax.Array:
        variables = structure.unflatten([weights[path].astype(kind) for path, kind in dtypes.items()])
        # An example of text has one character more, the label of the last one.
        return compute_logits(graph, task, variables, inputs if task.of_images else jnp.pad(inputs, [(0, 0), (0, 1)]))

    input_shape = example_shape_of(recipe.data, facts) if task.of_images else task.input_shape(())
    shape = jax.export.symbolic_shape(f"b, {', '.join(map(str, input_shape))}")
    likes = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in weights.items()}
    program = jax.export.export(jax.jit(predict), platforms=PLATFORMS)(likes, jax.ShapeDtypeStruct(shape, jnp.uint8))
    if (given := program.out_avals[0].shape[-1]) != facts.num_classes:
        raise ValueError(f"model.name={recipe.model.name!r}: gives {given} logits: must be {facts.num_classes}")
    manifest = Manifest(
        jaxtern_version=__version__,
        jax_version=jax.__version__,
        model=recipe.model.name,
        recipe=recipe.to_dict(),
        step=step,
        averaged=averaged,
        num_classes=facts.num_classes,
        class_names=facts.class_names,
        preprocessing=recipe.data.preprocessing,
        image_size=recipe.data.image_size,
        input_shape=input_shape,
        platforms=PLATFORMS,
    )
    return Artifact(manifest, bytes(program.serialize()), weights)
