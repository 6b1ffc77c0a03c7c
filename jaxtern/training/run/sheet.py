"""Contact sheets of a dataset: images as the model sees them in training and in evaluation."""

import contextlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtern.data.durable import naming
from jaxtern.data.feed import evaluation_batches
from jaxtern.data.rendering import Batch
from jaxtern.data.sources import load_dataset
from jaxtern.data.tasks import ImageTask, Task
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.run.inputs import Feed, Inputs, open_inputs
from jaxtern.training.step.gradients import example_keys
from jaxtern.training.step.mesh import create_mesh

_COLUMNS, _ROWS = 10, 4  # in each half
_INCH = 1.15  # side of an image


def draw_sheet(recipe: Recipe, path: Path) -> None:
    """Draws the first training batch as the model sees it, and below it the first images of the test split.

    Each image is stretched between its least and greatest value. The path's suffix gives the picture's format, .png or
    another that matplotlib writes. Raises ValueError or OSError if something cannot be read or written.
    """
    from matplotlib.figure import Figure  # here, because the import takes a second

    inputs = open_inputs(recipe.data)
    names = inputs.dataset.class_names
    feed = Feed(recipe.data, recipe.run, inputs, create_mesh(recipe))
    with contextlib.closing(feed.batches(0)) as batches:
        augmented = augment(recipe, inputs.task, feed.examples, jax.tree.map(np.asarray, next(batches)))
    halves = {"training": augmented, "evaluation": _standardized(recipe, inputs)}
    figure = Figure(figsize=(_COLUMNS * _INCH, (2 * _ROWS + 1) * _INCH * 1.15), layout="constrained")
    upper_and_lower: Any = figure.subfigures(2, 1)
    for half, (title, (images, labels)) in zip(upper_and_lower, halves.items(), strict=True):
        half.suptitle(f"{recipe.data.name}, {recipe.data.preprocessing}, {title}", fontsize=10)
        panels = half.subplots(_ROWS, _COLUMNS)
        for panel in panels.flat:
            panel.set_axis_off()
        for panel, image, label in zip(panels.flat, images, labels, strict=False):
            panel.imshow(_stretch(image), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            panel.set_title(names[label] if names else str(label), fontsize=7, pad=2)
    with naming(path):
        figure.savefig(path, dpi=110)


def augment(recipe: Recipe, task: Task, examples: Any, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of a batch on the host, as the model sees them in training.

    `examples` are all that lie on the devices, or None if the batch itself holds them.
    """
    images = batch.examples if examples is None else np.asarray(examples[batch.examples])
    keys = example_keys(recipe.run.seed, batch.epochs, batch.places)
    shown, labels = task.in_training(jnp.asarray(images), batch.labels, keys)
    return np.asarray(shown), np.asarray(labels)


def tile(images: np.ndarray, columns: int = 4) -> np.ndarray:
    """Joins images side by side, each stretched as in `draw_sheet`; leaves out a last row that is not full.

    Of images with neither one channel nor three, it shows only the first channel.
    """
    columns, images = min(columns, len(images)), images if images.shape[-1] in (1, 3) else images[..., :1]
    starts = range(0, len(images) - columns + 1, columns)
    return np.concatenate([np.concatenate(list(map(_stretch, images[i : i + columns])), axis=1) for i in starts])


def _standardized(recipe: Recipe, inputs: Inputs) -> tuple[np.ndarray, np.ndarray]:
    task, test = inputs.task, inputs.dataset.test
    assert isinstance(task, ImageTask)
    batches = evaluation_batches(test, recipe.run.batch_size, task.preprocessing, task.size, inputs.threads)
    images, labels, present = next(batches)
    batches.close()
    return np.asarray(task.in_evaluation(jnp.asarray(images[present]), None)[0]), labels[present]


def sheet_recipe(folder: str, preprocessing: str | None = None, test_split: str | None = None) -> Recipe:
    """A recipe of a prepared folder for `draw_sheet`, whose batch fills a half; raises ValueError or OSError.

    If the preprocessing is None, it is "mnist" for grey images of one shape, "cifar10" for 32x32 pixels, else
    "vgg_f". `test_split` is the split of the lower half, as in a recipe.
    """
    train = load_dataset(folder, test_split=test_split).train
    if preprocessing is None:
        *sides, channels = train.image_shape
        preprocessing = "cifar10" if sides == [32, 32] else "vgg_f"
        if channels == 1 and None not in sides:
            preprocessing = "mnist"
    size = min(_ROWS * _COLUMNS, train.size)
    run = {"batch_size": size, "num_workers": 1, "num_devices": 1}
    data = {"name": folder, "preprocessing": preprocessing, "test_split": test_split}
    return Recipe.from_dict({"data": data, "run": run})


def _stretch(image: np.ndarray) -> np.ndarray:
    least, greatest = image.min(), image.max()
    return (image - least) / max(greatest - least, 1e-6)
