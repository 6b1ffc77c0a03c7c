"""The interface between a network and the trainer."""

from typing import Any, ClassVar

import jax
from flax import nnx


class Model(nnx.Module):
    """A network whose only variables are weights (nnx.Param) and moments of batch norm (nnx.BatchStat).

    It is called with a batch and a key. With a key it trains: batch norm uses the batch's moments and updates its own,
    and the key draws the dropout. With None it evaluates: batch norm uses its own moments, and nothing is dropped.

    Attributes:
      last_layer: path of the layer that gives the logits.
      decayed: regular expressions; weight decay applies to tensors whose whole path matches one.
      takes_text: whether inputs are characters, not images.
      auxiliary_weight: weight of the loss of auxiliary logits.
    """

    last_layer: ClassVar[str]
    decayed: ClassVar[tuple[str, ...]] = (r"(.*/)?kernel",)
    takes_text: ClassVar[bool] = False
    auxiliary_weight: ClassVar[float] = 0.0

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, *, rngs: nnx.Rngs):
        """Draws weights for inputs of this shape; networks with dropout also take a `dropout_rate`."""
        raise NotImplementedError

    def __call__(self, inputs: jax.Array, key: jax.Array | None = None) -> Any:
        """[B, *input_shape] inputs to float[B, num_classes] logits; for t characters of text, float[B, t, num_classes].

        In training, a network with auxiliary logits returns a tuple: the logits, then these.
        """
        raise NotImplementedError


def unpack_image_shape(input_shape: tuple[int, ...], least: int = 1) -> tuple[int, int, int]:
    """Height, width and channels of images with sides of at least `least` pixels; ValueError for other shapes."""
    if len(input_shape) != 3 or min(input_shape) < 1 or min(input_shape[:2]) < least:
        rule = f"must be height, width and channels, height and width (data.image_size) {least} or more"
        raise ValueError(f"input_shape={input_shape}: {rule}")
    height, width, channels = input_shape
    return height, width, channels


def split_key(key: jax.Array | None, count: int) -> list[jax.Array | None]:
    """Splits a key into `count` keys for dropouts; None gives `count` times None."""
    return [None] * count if key is None else list(jax.random.split(key, count))
