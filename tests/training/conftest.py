"""Small runs: two layers on some of the digits, in this process."""

import functools
import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from jaxtern.data.dataset import Split
from jaxtern.data.digits import load_digits
from jaxtern.data.feed import ResidentFeed
from jaxtern.data.tasks import Task, create_task
from jaxtern.models import MODELS, create_model
from jaxtern.models.model import Model
from jaxtern.models.normalization import BatchNorm
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.run.run import Run, prepare_run
from jaxtern.training.step import step
from jaxtern.training.step.compiler import step_options
from jaxtern.training.step.mesh import create_mesh
from jaxtern.training.step.state import Program, TrainState, create_run
from jaxtern.training.step.step import create_train_step

SMALL = {
    "model": "tiny", "num_workers": 1, "num_devices": 1, "batch_size": 8, "num_steps": 6, "log_every": 1, "seed": 5
}  # fmt: skip


@pytest.fixture
def emitters(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is compiled by XLA's emitters, as a user's: what it fuses decides its last bits."""
    own = {"xla_cpu_use_fusion_emitters": True} if "fusion_emitters=false" in os.environ.get("XLA_FLAGS", "") else {}
    monkeypatch.setattr(step, "step_options", lambda platform: (step_options(platform) or {}) | own)


class Tiny(Model):
    """linear 12, ReLU, linear C: what compiles in a second."""

    last_layer = "fc2"

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, *, rngs: nnx.Rngs):
        self.fc1 = nnx.Linear(int(np.prod(input_shape)), 12, rngs=rngs)
        self.fc2 = nnx.Linear(12, num_classes, rngs=rngs)

    def __call__(self, images: jax.Array, key: jax.Array | None = None) -> Any:
        return self.fc2(nnx.relu(self.hidden(images.reshape(images.shape[0], -1), key)))

    def hidden(self, x: jax.Array, key: jax.Array | None) -> jax.Array:
        return self.fc1(x)


class TinyNorm(Tiny):
    """With batch norm before the ReLU."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, *, rngs: nnx.Rngs):
        super().__init__(input_shape, num_classes, rngs=rngs)
        self.fc1 = nnx.Linear(int(np.prod(input_shape)), 12, use_bias=False, rngs=rngs)
        self.norm = BatchNorm(12, momentum=0.75, rngs=rngs)

    def hidden(self, x: jax.Array, key: jax.Array | None) -> jax.Array:
        return self.norm(self.fc1(x), use_running_average=key is None)


class TinyDrop(Tiny):
    """With dropout of the inputs."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, *, dropout_rate: float = 0.5, rngs: nnx.Rngs):
        super().__init__(input_shape, num_classes, rngs=rngs)
        self.dropout = nnx.Dropout(dropout_rate)

    def hidden(self, x: jax.Array, key: jax.Array | None) -> jax.Array:
        return self.fc1(self.dropout(x, deterministic=key is None, rngs=key))


class TinyPair(Tiny):
    """With auxiliary logits in training."""

    auxiliary_weight = 0.25

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, *, rngs: nnx.Rngs):
        super().__init__(input_shape, num_classes, rngs=rngs)
        self.side = nnx.Linear(int(np.prod(input_shape)), num_classes, rngs=rngs)

    def __call__(self, images: jax.Array, key: jax.Array | None = None) -> Any:
        logits = super().__call__(images)
        return logits if key is None else (logits, self.side(images.reshape(images.shape[0], -1)))


class TinyBlocks(Tiny):
    """With its layers in a list: paths "blocks/0/kernel" whose keys are integers."""

    last_layer = "blocks/1"

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, *, rngs: nnx.Rngs):
        sizes = int(np.prod(input_shape)), 12, num_classes
        self.blocks = nnx.List([nnx.Linear(*pair, rngs=rngs) for pair in itertools.pairwise(sizes)])

    def __call__(self, images: jax.Array, key: jax.Array | None = None) -> Any:
        first, last = self.blocks
        return last(nnx.relu(first(images.reshape(images.shape[0], -1))))


@pytest.fixture(scope="session", autouse=True)
def tiny_models() -> Iterator[None]:
    """Networks for these tests among those that a recipe can name."""
    models = {
        "tiny": Tiny, "tiny_norm": TinyNorm, "tiny_drop": TinyDrop, "tiny_pair": TinyPair, "tiny_blocks": TinyBlocks
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name, model in models.items():
            patch.setitem(MODELS, name, model)
        yield


class Trained(NamedTuple):
    """States (the first included) and metrics of some steps, on the host."""

    program: Program
    states: list[TrainState]
    metrics: list[dict[str, Any]]
    batches: list[np.ndarray]
    task: Task


@pytest.fixture(scope="session")
def digits() -> Split:
    train = load_digits().train
    assert isinstance(train, Split)
    return train


@pytest.fixture(scope="session")
def small_recipe(recipe_of: Callable[..., Recipe]) -> Callable[..., Recipe]:
    """A recipe of a few steps of one worker, with these fields."""

    def make(**fields: Any) -> Recipe:
        return recipe_of(**SMALL | fields)

    return make


@pytest.fixture(scope="session")
def take_steps(digits: Split, small_recipe: Callable[..., Recipe]) -> Callable[..., Trained]:
    """The first steps of a run, without a folder; a run that was asked for before is not made again."""

    @functools.cache
    def run(num_steps: int, **fields: Any) -> Trained:
        recipe = small_recipe(**fields)
        mesh = create_mesh(recipe)
        everywhere = NamedSharding(mesh, PartitionSpec())
        task = create_task(recipe.data.preprocessing, recipe.data.image_size)
        shape = task.input_shape(digits.image_shape)
        model = create_model(recipe.model.name, shape, 10, recipe.run.seed)
        program, state = create_run(recipe, model, digits.size, mesh)
        train_step = create_train_step(recipe, program, mesh)
        feed = ResidentFeed(digits, recipe.run.batch_size, recipe.run.seed).batches(0)
        images = jax.device_put(digits.images, everywhere)
        states, metrics, batches = [to_host(state)], [], []
        for batch in itertools.islice(feed, num_steps):
            batches.append(batch.examples)
            state, measured = train_step(state, images, batch)
            states.append(to_host(state))
            metrics.append(to_host(measured))
        return Trained(program, states, metrics, batches, task)

    return run


def to_host(tree: Any) -> Any:
    """A copy: the state is donated to the next step."""
    return jax.tree.map(np.array, jax.device_get(tree))


@pytest.fixture
def prepare(tmp_path: Path, small_recipe: Callable[..., Recipe]) -> Iterator[Callable[..., Run]]:
    """Prepares a run with these fields in `<tmp_path>/run`; what it holds is given back at the end."""
    runs = []

    def make(workdir: Path = tmp_path / "run", allow_config_change: bool = False, **fields: Any) -> Run:
        runs.append(prepare_run(small_recipe(**fields), workdir, allow_config_change))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


@pytest.fixture(scope="session")
def read_jsonl() -> Callable[[Path], list[dict]]:
    """The records of a file of one JSON object a line."""

    def read(path: Path) -> list[dict]:
        return [json.loads(line) for line in path.read_text().splitlines()]

    return read
