"""A checkpoint to a network that predicts without this package's training code."""

from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from jaxtern import __version__
from jaxtern.artifact.storage import Artifact, Manifest
from jaxtern.training.evaluation import compute_logits
from jaxtern.training.inputs import Inputs
from jaxtern.training.recipe import Recipe
from jaxtern.training.saved_run import SavedRun
from jaxtern.training.selection import path_of
from jaxtern.training.state import variables_of
from jaxtern.training.workdir import read_recipe

PLATFORMS = ("cpu", "cuda")


def export_run(
    workdir: Path, step: int | None = None, averaged: bool = True, data_dir: str | None = None, best: bool = False
) -> Artifact:
    """The network of a run as it is evaluated.

    Args:
      workdir: the run's folder.
      step: of the checkpoint; None: the newest that is whole.
      averaged: whether to take moving averages, where the run keeps them.
      data_dir: of the dataset, where it has moved since training.
      best: whether to take the checkpoint of best precision@1, of those that were evaluated as they were saved.

    Raises:
      ValueError, OSError: if there is no such run or checkpoint, its data cannot be read, or it is one of text.
    """
    if read_recipe(workdir).preprocessing == "text":
        raise ValueError(f"workdir={str(workdir)!r}: preprocessing='text': networks of text cannot be exported yet")
    run = SavedRun(workdir, data_dir)
    if best:
        step = run.best_step()
    if step is None:
        step, state = run.use_latest(lambda newest: (newest, run.restore(newest)))
    elif step in run.steps():
        state = run.restore(step)
    else:
        there = ", ".join(map(str, run.steps())) or "none"
        raise ValueError(f"step={step}: workdir={str(workdir)!r} holds no such checkpoint; available: {there}")
    averaged = averaged and run.recipe.average_decay > 0
    return export_network(run.recipe, run.inputs, run.graph, variables_of(state, averaged), step, averaged)


def export_network(
    recipe: Recipe, inputs: Inputs, graph: Any, variables: Any, step: int = 0, averaged: bool = False
) -> Artifact:
    """A network as `evaluate` has it.

    Args:
      recipe: of the model and its preprocessing.
      inputs: the recipe's.
      graph: static part of the model.
      variables: the rest of it.
      step: updates of them.
      averaged: whether they are moving averages.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(variables)
    weights = {path_of(keys): np.asarray(leaf) for keys, leaf in leaves}
    names = tuple(weights)

    def predict(weights: dict[str, jax.Array], images: jax.Array) -> jax.Array:
        variables = structure.unflatten([weights[name] for name in names])
        return compute_logits(graph, inputs.preprocessing, recipe.image_size, variables, images)

    height, width, channels = inputs.raw_shape
    shape = jax.export.symbolic_shape(f"b, {height}, {width}, {channels}")
    likes = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in weights.items()}
    program = jax.export.export(jax.jit(predict), platforms=PLATFORMS)(likes, jax.ShapeDtypeStruct(shape, jnp.uint8))
    manifest = Manifest(
        jaxtern_version=__version__,
        jax_version=jax.__version__,
        model=recipe.model,
        recipe=recipe.to_dict(),
        step=step,
        averaged=averaged,
        num_classes=inputs.dataset.num_classes,
        class_names=inputs.dataset.class_names,
        preprocessing=recipe.preprocessing,
        image_size=recipe.image_size,
        input_shape=inputs.raw_shape,
        platforms=PLATFORMS,
    )
    return Artifact(manifest, bytes(program.serialize()), weights)
