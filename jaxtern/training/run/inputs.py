"""Opens the data that a recipe names: dataset, preprocessing, feed."""

import contextlib
import itertools
import math
import os
from collections import deque
from collections.abc import Generator, Iterable
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxtern.data.dataset import Dataset
from jaxtern.data.facts import Facts
from jaxtern.data.feed import ResidentFeed, StreamingFeed, load_split
from jaxtern.data.rendering import Batch, Share
from jaxtern.data.tasks import ImageTask, Task, create_task
from jaxtern.hosts.messages import to_devices
from jaxtern.models import create_model, draw_weights
from jaxtern.models.model import Model
from jaxtern.training.recipe.data import DataSection
from jaxtern.training.recipe.model import ModelSection
from jaxtern.training.recipe.run import RunSection
from jaxtern.training.step.mesh import DEVICE_AXIS

_RESIDENT_BYTES = 1 << 30
_BATCHES_AHEAD = 2  # on the way to the devices while a step runs


class Inputs(NamedTuple):
    """A recipe's dataset, ready for its model."""

    dataset: Dataset  # splits, in memory if the feed is resident
    task: Task  # images or text
    # shape of the compiled step's uint8 examples: height, width and channels, or characters
    example_shape: tuple[int, ...]
    input_shape: tuple[int, ...]  # shape of the model's input for one example
    resident: bool  # whether the training examples are on the devices
    threads: int  # number of threads that decode


def open_inputs(data: DataSection, steps_per_call: int | None = None, data_dir: str | None = None) -> Inputs:
    """Opens what the recipe trains on; raises ValueError or OSError if it cannot be read or does not fit.

    Args:
      data: section that names dataset, preprocessing and feed.
      steps_per_call: steps per call of the run, which must be 1 or None if images are streamed.
      data_dir: folder of the dataset, if it has moved.
    """
    task = task_of(data)
    threads = data.decode_threads or (1 if data.decode_processes else len(os.sched_getaffinity(0)))
    require_feed(data, task, steps_per_call)
    dataset, view = _open_dataset(data, data_dir, task), task.view_shape
    if view is not None and (data.name != "synthetic" or data.feed == "streaming"):
        return Inputs(dataset, task, view, view, False, threads)
    shape = task.example_shape(dataset.train)
    if view not in (None, shape):  # made images are taken as views
        raise ValueError(f"data.synthetic_shape={shape}: data.preprocessing={data.preprocessing!r} takes {view}")
    if task.input_shape(task.example_shape(dataset.test)) != task.input_shape(shape):
        other = f"its test images are {task.example_shape(dataset.test)}"
        raise ValueError(f"data.name={data.name!r}: training images are {shape}, {other}")
    is_small = (dataset.train.size + dataset.test.size) * math.prod(shape) <= _RESIDENT_BYTES
    resident = data.feed == "resident" or not task.of_images or (data.feed == "auto" and is_small)
    if resident and task.of_images:
        dataset = dataset._replace(train=load_split(dataset.train, threads), test=load_split(dataset.test, threads))
    return Inputs(dataset, task, shape, task.input_shape(shape), resident, threads)


def task_of(data: DataSection) -> Task:
    """The task of such data; raises ValueError for an unknown preprocessing."""
    return create_task(data.preprocessing, data.image_size, data.sequence_length)


def require_feed(data: DataSection, task: Task, steps_per_call: int | None) -> None:
    """Raises ValueError, before data are opened, for a feed that does not suit the preprocessing or steps per call."""
    if not task.of_images and data.feed == "streaming":
        raise ValueError(f"data.feed='streaming': preprocessing={data.preprocessing!r} takes text, which is resident")
    crops = task.view_shape is not None and data.name != "synthetic"
    if crops and data.feed == "resident":
        need = "crops images of any size, for which they must be streamed"
        raise ValueError(f"data.feed='resident': preprocessing={data.preprocessing!r} {need}")
    if crops or data.feed == "streaming":
        _require_single_steps(data, steps_per_call)


def _require_single_steps(data: DataSection, steps_per_call: int | None) -> None:
    if (steps_per_call or 1) > 1:
        need = f"must be 1 where images are streamed (data.feed={data.feed!r})"
        raise ValueError(f"run.steps_per_call={steps_per_call}: {need}")


def _open_dataset(data: DataSection, data_dir: str | None, task: Task) -> Dataset:
    if data.name == "synthetic":
        return task.make(data.synthetic_shape, data.synthetic_classes, data.synthetic_examples)
    if data_dir is not None and data.dir is None and "/" in data.name:  # a prepared folder, or a text, that has moved
        name, folder = data_dir if "/" in data_dir else f"./{data_dir}", None
    else:
        name, folder = data.name, data_dir or data.dir
    return task.open(name, folder, data.train_split, data.test_split)


def create_network(model: ModelSection, input_shape: tuple[int, ...], num_classes: int, seed: int) -> Model:
    """Creates the recipe's network with fresh weights, for inputs of this shape."""
    return draw_weights(lambda: create_model(model.name, input_shape, num_classes, seed, model.dropout_rate))


def facts_of(task: Task, dataset: Dataset) -> Facts:
    """Facts of a dataset, to be kept; with an image shape only if images are taken whole."""
    shape = task.example_shape(dataset.train) if task.of_images and task.view_shape is None else None
    return Facts(shape, dataset.num_classes, dataset.train.size, "which are there", dataset.class_names)


def example_shape_of(data: DataSection, facts: Facts) -> tuple[int, ...]:
    """Height, width and channels of the uint8 images that a network takes; raises ValueError if they are not known."""
    shape = task_of(data).view_shape or facts.image_shape
    if shape is None:
        need = f"must be known, as data.preprocessing={data.preprocessing!r} takes whole images"
        raise ValueError(f"{facts.source}: image_shape=None: {need}")
    return shape


class Feed:
    """A run's batches on the devices of its mesh."""

    def __init__(self, data: DataSection, run: RunSection, inputs: Inputs, mesh: Mesh):
        """Raises ValueError for a batch that is larger than the training split."""
        if not inputs.resident:
            _require_single_steps(data, run.steps_per_call)
        self._rows = NamedSharding(mesh, PartitionSpec(DEVICE_AXIS))
        share = Share(jax.process_index(), jax.process_count())
        split, self.examples = inputs.dataset.train, None
        if run.batch_size > split.size:
            raise ValueError(f"run.batch_size={run.batch_size}: must be at most the {split.size} training examples")
        if inputs.resident:
            self._feed = ResidentFeed(split, run.batch_size, run.seed, share)
            self.examples = to_devices(split.examples, NamedSharding(mesh, PartitionSpec()))
        else:
            assert isinstance(inputs.task, ImageTask)
            made = inputs.task.preprocessing, inputs.task.size, inputs.threads, data.decode_processes
            self._feed = StreamingFeed(split, run.batch_size, run.seed, share, *made)

    def batches(self, start: int, counts: Iterable[int] | None = None) -> Generator[Batch]:
        """Yields batches after the first `start` examples; the next ones are on their way meanwhile.

        `counts` gives how many to yield at once, [K, ...], or without that axis if K = 1; None: single ones, for ever.
        """
        on_the_way: deque[Batch] = deque()
        with contextlib.closing(self._feed.batches(start)) as batches:
            for count in itertools.repeat(1) if counts is None else counts:
                on_the_way.append(self._put(list(itertools.islice(batches, count))))
                if len(on_the_way) > _BATCHES_AHEAD:
                    yield on_the_way.popleft()
            yield from on_the_way

    def _put(self, batches: list[Batch]) -> Batch:
        """Puts batches on the devices, each with the rows of its workers."""
        if len(batches) == 1:
            return jax.tree.map(lambda leaf: _from_own_share(leaf, self._rows), batches[0])
        stacked = NamedSharding(self._rows.mesh, PartitionSpec(None, *self._rows.spec))
        return jax.tree.map(lambda *leaves: _from_own_share(np.stack(leaves), stacked), *batches)


def _from_own_share(rows: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """Makes a global array of each process's part; a single process takes a shortcut, in a quarter of the time."""
    if jax.process_count() == 1:
        return to_devices(rows, sharding)
    return jax.make_array_from_process_local_data(sharding, rows)
