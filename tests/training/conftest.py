"""Small runs: LeNet on some of the digits, in this process."""

import functools
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxtern.data.dataset import Split
from jaxtern.data.digits import load_digits
from jaxtern.data.feed import ResidentFeed
from jaxtern.data.preprocessing.families import get_preprocessing
from jaxtern.models import create_model
from jaxtern.training import loop
from jaxtern.training.recipe import Recipe
from jaxtern.training.state import Program, TrainState, create_run
from jaxtern.training.step import create_mesh, create_train_step

SMALL = {"num_workers": 1, "num_devices": 1, "batch_size": 8, "num_steps": 6, "log_every": 1, "seed": 5}


class Trained(NamedTuple):
    """States (the first included) and metrics of some steps, on the host."""

    program: Program
    states: list[TrainState]
    metrics: list[dict[str, Any]]
    batches: list[np.ndarray]


@pytest.fixture(scope="session")
def digits() -> Split:
    train = load_digits().train
    assert isinstance(train, Split)
    return train


@pytest.fixture(scope="session")
def small_recipe() -> Callable[..., Recipe]:
    """A recipe of a few steps of one worker, with these fields."""

    def make(**fields: Any) -> Recipe:
        return Recipe(**SMALL | fields)

    return make


@pytest.fixture(scope="session")
def take_steps(digits: Split, small_recipe: Callable[..., Recipe]) -> Callable[..., Trained]:
    """The first steps of a run, without a folder; a run that was asked for before is not made again."""

    @functools.cache
    def run(num_steps: int, **fields: Any) -> Trained:
        recipe = small_recipe(**fields)
        mesh = create_mesh(recipe)
        everywhere = NamedSharding(mesh, PartitionSpec())
        shape = get_preprocessing(recipe.preprocessing).output_shape(digits.image_shape, recipe.image_size)
        model = create_model(recipe.model, shape, 10, recipe.seed)
        program, state = create_run(recipe, model, digits.size, mesh)
        train_step = create_train_step(recipe, program, mesh)
        feed = ResidentFeed(digits, recipe.batch_size, recipe.seed).batches(0)
        images = jax.device_put(digits.images, everywhere)
        states, metrics, batches = [to_host(state)], [], []
        for batch in itertools.islice(feed, num_steps):
            batches.append(batch.images)
            state, measured = train_step(state, images, batch)
            states.append(to_host(state))
            metrics.append(to_host(measured))
        return Trained(program, states, metrics, batches)

    return run


def to_host(tree: Any) -> Any:
    """A copy: the state is donated to the next step."""
    return jax.tree.map(np.array, jax.device_get(tree))


@pytest.fixture
def prepare(tmp_path: Path, small_recipe: Callable[..., Recipe]) -> Iterator[Callable[..., loop.Run]]:
    """Prepares a run with these fields in `<tmp_path>/run`; what it holds is given back at the end."""
    runs = []

    def make(workdir: Path = tmp_path / "run", allow_config_change: bool = False, **fields: Any) -> loop.Run:
        runs.append(loop.prepare_run(small_recipe(**fields), workdir, allow_config_change))
        return runs[-1]

    yield make
    for run in runs:
        run.claim.close()
        run.checkpoints.close()


@pytest.fixture(scope="session")
def read_jsonl() -> Callable[[Path], list[dict]]:
    """The records of a file of one JSON object a line."""

    def read(path: Path) -> list[dict]:
        return [json.loads(line) for line in path.read_text().splitlines()]

    return read
