"""What a recipe says of its data, carried out: dataset, preprocessing, feed."""

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

from jaxtern.data.dataset import Dataset, Split
from jaxtern.data.facts import Facts
from jaxtern.data.feed import ResidentFeed, StreamingFeed, load_split
from jaxtern.data.preprocessing.families import Preprocessing, get_preprocessing
from jaxtern.data.rendering import Batch, Share, whole_image_shape
from jaxtern.data.sources import load_dataset
from jaxtern.data.synthetic import make_synthetic, make_synthetic_text
from jaxtern.hosts.messages import to_devices
from jaxtern.models import create_model, draw_weights
from jaxtern.models.model import Model
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.step.state import DEVICE_AXIS

_RESIDENT_BYTES = 1 << 30
_BATCHES_AHEAD = 2  # on the way to the devices while a step runs


class Inputs(NamedTuple):
    """A recipe's dataset as its model meets it.

    Attributes:
      dataset: splits in memory where the feed is resident, else as they were opened.
      preprocessing: of the images.
      raw_shape: height, width and channels of the uint8 images that the compiled step takes.
      input_shape: likewise of what the model is given; of text, how many characters.
      resident: whether the training images lie on the devices.
      threads: that decode at the same time.
    """

    dataset: Dataset
    preprocessing: Preprocessing
    raw_shape: tuple[int, int, int]
    input_shape: tuple[int, ...]
    resident: bool
    threads: int


def open_inputs(recipe: Recipe, data_dir: str | None = None) -> Inputs:
    """Opens what the recipe trains on.

    Args:
      recipe: names dataset, preprocessing and feed.
      data_dir: in place of the recipe's, where the dataset has moved.

    Raises:
      ValueError, OSError: for a dataset that cannot be read, or a preprocessing or feed that does not fit it.
    """
    preprocessing = get_preprocessing(recipe.preprocessing)
    require_feed(recipe, preprocessing)
    dataset = _open_dataset(recipe, data_dir, preprocessing.next_token)
    threads, size = _count_threads(recipe), recipe.image_size or preprocessing.size
    if preprocessing.train_view is not None and (recipe.dataset != "synthetic" or recipe.feed == "streaming"):
        assert size is not None  # views have one
        shape = size, size, 3
        return Inputs(dataset, preprocessing, shape, shape, False, threads)
    shape = whole_image_shape(dataset.train)
    if preprocessing.train_view is not None and shape != (size, size, 3):  # made images are taken as views
        need = f"preprocessing={recipe.preprocessing!r} takes {(size, size, 3)}"
        raise ValueError(f"synthetic_shape={shape}: {need}")
    always = recipe.feed == "resident" or preprocessing.next_token
    resident = always or (recipe.feed == "auto" and _fits(dataset, shape))
    if resident:
        dataset = dataset._replace(train=load_split(dataset.train, threads), test=load_split(dataset.test, threads))
    input_shape = preprocessing.output_shape(shape, recipe.image_size)
    return Inputs(dataset, preprocessing, shape, input_shape, resident, threads)


def require_feed(recipe: Recipe, preprocessing: Preprocessing) -> None:
    """Refuses, before data are opened, a feed that its preprocessing or the steps of a call do not allow.

    Raises:
      ValueError: naming the field, its value and the rule.
    """
    if preprocessing.next_token and recipe.feed == "streaming":
        raise ValueError(f"feed='streaming': preprocessing={recipe.preprocessing!r} takes text, which is resident")
    crops = preprocessing.train_view is not None and recipe.dataset != "synthetic"
    if crops and recipe.feed == "resident":
        need = "crops images of any size, for which they must be streamed"
        raise ValueError(f"feed='resident': preprocessing={recipe.preprocessing!r} {need}")
    if crops or recipe.feed == "streaming":
        _require_single_steps(recipe)


def _require_single_steps(recipe: Recipe) -> None:
    if recipe.steps_per_call > 1:
        raise ValueError(
            f"steps_per_call={recipe.steps_per_call}: must be 1 where images are streamed (feed={recipe.feed!r})"
        )


def _open_dataset(recipe: Recipe, data_dir: str | None, text: bool) -> Dataset:
    if recipe.dataset == "synthetic":
        made = recipe.synthetic_classes, recipe.synthetic_examples
        if text:
            return make_synthetic_text(recipe.sequence_length, *made)
        return make_synthetic(recipe.synthetic_shape, *made)
    options = recipe.train_split, recipe.test_split, recipe.sequence_length if text else None
    if data_dir is not None and "/" in recipe.dataset:  # a prepared folder, or a text, that has moved
        return load_dataset(data_dir if "/" in data_dir else f"./{data_dir}", None, *options)
    return load_dataset(recipe.dataset, data_dir or recipe.data_dir, *options)


def _count_threads(recipe: Recipe) -> int:
    """In each process: one, or where there are no processes one for every core that this one may use."""
    if recipe.decode_threads is not None:
        return recipe.decode_threads
    return 1 if recipe.decode_processes else len(os.sched_getaffinity(0))


def _fits(dataset: Dataset, shape: tuple[int, int, int]) -> bool:
    return (dataset.train.size + dataset.test.size) * math.prod(shape) <= _RESIDENT_BYTES


def own_share(rows: NamedSharding, batch_size: int) -> Share:
    """The part of a batch that the devices of this process hold.

    Raises:
      ValueError: if that is no equal run of it, as where a host's devices lie apart in the mesh.
    """
    indices = rows.addressable_devices_indices_map((batch_size,)).values()
    runs = {places[0].indices(batch_size)[:2] for places in indices if places is not None}
    first, last = min(start for start, _ in runs), max(stop for _, stop in runs)
    size = last - first
    if sum(stop - start for start, stop in runs) != size or first % size or batch_size % size:
        raise ValueError(
            f"batch_size={batch_size}: the devices of this host hold rows {sorted(runs)}, which are no equal run of it"
        )
    return Share(first // size, batch_size // size)


def create_network(recipe: Recipe, inputs: Inputs) -> Model:
    """The recipe's network with fresh weights, for its inputs."""
    return create_network_for(recipe, inputs.input_shape, inputs.dataset.num_classes)


def create_network_for(recipe: Recipe, input_shape: tuple[int, ...], num_classes: int) -> Model:
    """Likewise for inputs of this shape."""
    return draw_weights(lambda: create_model(recipe.model, input_shape, num_classes, recipe.seed, recipe.dropout_rate))


def facts_of(inputs: Inputs) -> Facts:
    """What is known of them when they are no longer there."""
    dataset, family = inputs.dataset, inputs.preprocessing
    shape = inputs.raw_shape if family.takes_whole_images and not family.next_token else None
    return Facts(shape, dataset.num_classes, dataset.train.size, "which are there", dataset.class_names)


def raw_shape_of(recipe: Recipe, facts: Facts) -> tuple[int, int, int]:
    """Height, width and channels of the uint8 images that the recipe's network takes of such a dataset.

    Raises:
      ValueError: if there are none.
    """
    preprocessing = get_preprocessing(recipe.preprocessing)
    if not preprocessing.takes_whole_images:
        height, width, channels = preprocessing.output_shape(None, recipe.image_size)
        return height, width, channels
    if facts.image_shape is None:
        need = f"must be known, as preprocessing={recipe.preprocessing!r} takes whole images"
        raise ValueError(f"{facts.source}: image_shape=None: {need}")
    return facts.image_shape


class Feed:
    """A run's batches, on the devices of its mesh."""

    def __init__(self, recipe: Recipe, inputs: Inputs, mesh: Mesh):
        """Takes what `open_inputs` opened.

        Raises:
          ValueError: for a batch that is larger than the training split, or does not divide among the hosts; for steps
            without the host whose images are streamed.
        """
        if not inputs.resident:
            _require_single_steps(recipe)
        self._rows = NamedSharding(mesh, PartitionSpec(DEVICE_AXIS))
        share = own_share(self._rows, recipe.batch_size)
        split, self.images = inputs.dataset.train, None
        if inputs.resident:
            assert isinstance(split, Split)
            self._feed = ResidentFeed(split, recipe.batch_size, recipe.seed, share)
            self.images = to_devices(split.images, NamedSharding(mesh, PartitionSpec()))
        else:
            workers = inputs.threads, recipe.decode_processes
            self._feed = StreamingFeed(
                split, recipe.batch_size, recipe.seed, share, inputs.preprocessing, recipe.image_size, *workers
            )

    def batches(self, start: int, counts: Iterable[int] | None = None) -> Generator[Batch]:
        """After `start` examples have been seen; some are on their way while one is worked on.

        Args:
          start: examples.
          counts: how many batches to give at once, as [K, ...], or without that axis where K = 1; None: one, endlessly.
        """
        on_the_way: deque[Batch] = deque()
        with contextlib.closing(self._feed.batches(start)) as batches:
            for count in itertools.repeat(1) if counts is None else counts:
                on_the_way.append(self._put(list(itertools.islice(batches, count))))
                if len(on_the_way) > _BATCHES_AHEAD:
                    yield on_the_way.popleft()
            yield from on_the_way

    def _put(self, batches: list[Batch]) -> Batch:
        """On the devices, each with the rows of its workers."""
        if len(batches) == 1:
            return jax.tree.map(lambda leaf: _from_own_share(leaf, self._rows), batches[0])
        stacked = NamedSharding(self._rows.mesh, PartitionSpec(None, *self._rows.spec))
        return jax.tree.map(lambda *leaves: _from_own_share(np.stack(leaves), stacked), *batches)


def _from_own_share(rows: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """A global array of what each process holds a part of; one that holds all of it needs a quarter of the time."""
    if jax.process_count() == 1:
        return to_devices(rows, sharding)
    return jax.make_array_from_process_local_data(sharding, rows)
