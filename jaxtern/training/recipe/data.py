"""The section `data` of a recipe."""

import dataclasses
from typing import Annotated, Literal

from jaxtern.training.recipe.field_types import Positive, Section, between


@dataclasses.dataclass(frozen=True)
class DataSection(Section):
    """The dataset, its preprocessing and feed.

    Attributes:
      name: dataset: "digits" (of scikit-learn), "synthetic", the path of a prepared folder or a text file (with a slash
        in it), or a name that TFDS knows ("mnist" also from its four idx files in `dir`).
      dir: folder of TFDS's datasets, or of idx files; None: none, or TFDS's default.
      train_split: split of a prepared dataset to train on, or a part of one: "train[:90%]".
      test_split: split to evaluate on, likewise; None: "test", or "validation" if there is no "test".
      synthetic_shape: height, width, channels of the images of "synthetic".
      synthetic_classes: number of classes of "synthetic".
      synthetic_examples: number of training examples of "synthetic".
      preprocessing: "mnist", "cifar10", "alexnet", "vgg", "vgg_f", "inception" (also for GoogLeNet, ResNet) or "text".
      image_size: side of the model's input in pixels; None: the preprocessing's own.
      sequence_length: characters in an example of text.
      feed: "resident" (examples stay on the devices), "streaming" (images are read and decoded during training) or
        "auto": resident if the preprocessing takes whole images, which are at most 1 GiB together.
      decode_threads: decoding threads of each process; None: 1, or one for each core without decoding processes.
      decode_processes: decoding processes; 0: the trainer decodes. Neither field changes any bit of a run.
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
