"""The two tasks: the class of an image, and the next character of a text.

A task opens or makes its examples, and turns them into a network's inputs and targets.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtern.data.dataset import Dataset
from jaxtern.data.feed import evaluation_batches
from jaxtern.data.preprocessing.families import Preprocessing, get_preprocessing
from jaxtern.data.rendering import CHARACTER, Share, evaluation_batch_size, whole_image_shape
from jaxtern.data.sources import load_dataset
from jaxtern.data.synthetic import make_synthetic, make_synthetic_text
from jaxtern.data.text import open_text

TEXT = "text"  # the preprocessing of a recipe whose task is text
Batches = Generator[tuple[np.ndarray, Any, np.ndarray]]  # examples, labels, and False for padding


@dataclass(frozen=True)
class ImageTask:
    """The class of an image: uint8[B, H, W, C] become float32[B, H', W', C] inputs; targets are int32[B] labels."""

    preprocessing: Preprocessing  # of the images
    size: int | None = None  # side of the inputs in pixels; None: the preprocessing's own

    of_images = True
    open = staticmethod(load_dataset)
    make = staticmethod(make_synthetic)
    example_shape = staticmethod(whole_image_shape)  # of uint8 examples that are taken whole

    @property
    def view_shape(self) -> tuple[int, ...] | None:
        """The shape of the views cut out of images of any shape; None if images are taken whole."""
        own = self.preprocessing
        return None if own.takes_whole_images else own.output_shape(None, self.size)

    def input_shape(self, example_shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a network's input, for examples of a shape; raises as `Preprocessing.output_shape`."""
        return self.preprocessing.output_shape(example_shape, self.size)

    def in_training(self, examples: jax.Array, labels: Any, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Inputs, each augmented by its own key, and targets."""
        return self.preprocessing.augment(examples, keys, self.size), labels

    def in_evaluation(self, examples: jax.Array, labels: Any) -> tuple[jax.Array, jax.Array]:
        """Inputs and targets."""
        return self.preprocessing.standardize(examples, self.size), labels

    def evaluation_batches(self, split: Any, threads: int = 1, share: Share | None = None) -> Batches:
        """Batches of this host's part of a split, as `feed.evaluation_batches` yields them."""
        height, width, *_ = self.view_shape or whole_image_shape(split)
        size = evaluation_batch_size(split.size, height, width)
        return evaluation_batches(split, size, self.preprocessing, self.size, threads, share)


@dataclass(frozen=True)
class TextTask:
    """The next character: uint8[B, T + 1] windows become int32[B, T] inputs and int32[B, T] targets, one place later.

    The methods are those of `ImageTask`.
    """

    sequence_length: int  # T

    of_images = False
    view_shape = None

    def open(self, name: str, data_dir: str | None, train_split: str, test_split: str | None) -> Dataset:
        return open_text(name, self.sequence_length, data_dir, train_split, test_split)

    def make(self, _: tuple[int, ...], num_classes: int, num_examples: int) -> Dataset:
        return make_synthetic_text(self.sequence_length, num_classes, num_examples)

    def example_shape(self, _: Any) -> tuple[int, ...]:
        return (self.sequence_length + 1,)

    def input_shape(self, _: tuple[int, ...]) -> tuple[int, ...]:
        return (self.sequence_length,)

    def in_training(self, examples: jax.Array, labels: Any, _: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self.in_evaluation(examples, labels)

    def in_evaluation(self, examples: jax.Array, _: Any) -> tuple[jax.Array, jax.Array]:
        characters = examples.astype(jnp.int32)
        return characters[:, :-1], characters[:, 1:]

    def evaluation_batches(self, split: Any, _: int = 1, share: Share | None = None) -> Batches:
        first, count = (share or Share()).of(0, split.size)
        size = evaluation_batch_size(split.size, self.sequence_length, CHARACTER)
        for start in range(first, first + count, size):
            own = split.examples[start : min(start + size, first + count)]
            yield np.pad(own, [(0, size - len(own)), (0, 0)]), None, np.arange(size) < len(own)


Task = ImageTask | TextTask


def create_task(preprocessing: str, size: int | None = None, sequence_length: int = 1) -> Task:
    """The task for a preprocessing, "text" or a family's name; raises ValueError if unknown, or for text of a size."""
    if preprocessing != TEXT:
        return ImageTask(get_preprocessing(preprocessing), size)
    if size is not None:
        raise ValueError(f"image_size={size}: preprocessing={preprocessing!r} takes no images")
    return TextTask(sequence_length)
