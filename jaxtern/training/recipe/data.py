"""The section `data` of a recipe."""

import dataclasses
from typing import Annotated, Literal

from jaxtern.training.recipe.field_types import Positive, Section, between


@dataclasses.dataclass(frozen=True)
class DataSection(Section):
    """What is trained on, and what becomes of it on the way.

    Attributes:
      name: what to train on: "digits" (carried by scikit-learn), "synthetic", the path of a prepared folder or of a
        text file (with a slash in it), or a name that TFDS knows ("mnist" also from its four idx files in `dir`).
      dir: folder of TFDS's datasets, or of idx files; None for a dataset that needs none, or TFDS's default.
      train_split: what of a prepared dataset to train on, a split or a part of one: "train[:90%]".
      test_split: what to evaluate on, likewise; None: "test", or "validation" where there is no such split.
      synthetic_shape: height, width, channels of the images of "synthetic".
      synthetic_classes: their classes.
      synthetic_examples: how many to train on.
      preprocessing: "mnist", "cifar10", "alexnet", "vgg", "vgg_f", "inception" (also for GoogLeNet, ResNet) or "text".
      image_size: pixels, side of the images after that; None: as the preprocessing has it.
      sequence_length: characters of an example of text.
      feed: "resident" (images lie on the devices), "streaming" (they are read and decoded beside training) or "auto":
        resident where the preprocessing takes whole images, and all of them together are at most 1 GiB.
      decode_threads: that decode at the same time, in each process; None: one, without processes one a core.
      decode_processes: to decode in; 0: in the trainer's own. Neither changes any bit of a run.
    """

    name: str = "digits"
    dir: str | None = None
    train_split: str = "train"
    test_split: str | None = None
    synthetic_shape: tuple[int, ...] = (224, 224, 3)
    synthetic_classes: Positive = 1000
    synthetic_examples: Positive = 1024
    preprocessing: str = "mnist"
    image_size: Annotated[int, between(1, 2**14)] | None = None
    sequence_length: Positive = 128
    feed: Literal["auto", "resident", "streaming"] = "auto"
    decode_threads: Annotated[int, between(1, 4096)] | None = None
    decode_processes: Annotated[int, between(0, 4096)] = 0
