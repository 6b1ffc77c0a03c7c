"""Networks with fresh weights, exported in this process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from flax import nnx

from jaxtern.artifact.storage import Artifact
from jaxtern.data.dataset import Dataset, Split
from jaxtern.data.tasks import create_task
from jaxtern.models import create_model
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.run.exporting import export_network
from jaxtern.training.run.inputs import Inputs, facts_of

CLASSES = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu")


class Network(NamedTuple):
    """A network, and what it is evaluated with."""

    graph: Any
    variables: Any
    split: Split
    recipe: Recipe
    inputs: Inputs
    artifact: Artifact


def make_network(model: str, preprocessing: str, shape: tuple[int, int, int], size: int | None, count: int) -> Network:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, len(CLASSES), count, np.int32)
    split = Split(generator.integers(0, 256, (count, *shape), np.uint8), labels)
    task = create_task(preprocessing, size)
    given = task.view_shape or shape
    inputs = Inputs(Dataset(split, split, len(CLASSES), CLASSES), task, given, task.input_shape(given), True, 1)
    data = {"preprocessing": preprocessing, "image_size": size}
    recipe = Recipe.from_dict({"model": {"name": model}, "data": data})
    graph, variables = nnx.split(create_model(model, inputs.input_shape, len(CLASSES), seed=0))
    variables = nnx.to_pure_dict(variables)
    artifact = export_network(recipe, facts_of(inputs.task, inputs.dataset), graph, variables, 7)
    return Network(graph, variables, split, recipe, inputs, artifact)


@pytest.fixture(scope="session", name="make_network")
def _make_network() -> Callable[..., Network]:
    return make_network


@pytest.fixture(scope="session")
def lenet() -> Network:
    """Of whole grey images of 12 by 8 pixels."""
    return make_network("lenet", "mnist", (12, 8, 1), None, 23)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "exported"
