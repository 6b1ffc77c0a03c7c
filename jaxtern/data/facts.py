"""What is known of a dataset without reading it."""

from pathlib import Path
from typing import NamedTuple


class Facts(NamedTuple):
    """Of a training split.

    Attributes:
      image_shape: height, width, channels; None where images differ, or are text.
      num_classes: of them.
      num_examples: in an epoch.
      source: who says so, for messages.
    """

    image_shape: tuple[int, int, int] | None
    num_classes: int
    num_examples: int
    source: str


_PUBLISHED: dict[str, tuple[tuple[int, int, int] | None, int, int]] = {
    "mnist": ((28, 28, 1), 10, 60_000),
    "cifar10": ((32, 32, 3), 10, 50_000),
    "cifar100": ((32, 32, 3), 100, 50_000),
    "imagenet": (None, 1000, 1_281_167),
    "imagenet2012": (None, 1000, 1_281_167),
}


def published_facts(dataset: str) -> Facts | None:
    """Of a dataset that goes by its usual name, or a folder of that name; None for another.

    Args:
      dataset: a recipe's, "mnist" or "./data/imagenet".
    """
    name = Path(dataset).name
    if name not in _PUBLISHED:
        return None
    return Facts(*_PUBLISHED[name], f"{name} as published")
