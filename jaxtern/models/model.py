"""What every network is to the trainer."""

from typing import Any, ClassVar

import jax
from flax import nnx


class Model(nnx.Module):
    """A network whose variables are weights (nnx.Param) and moments of batch norm (nnx.BatchStat), and nothing else.

    A network is called with a batch and a key. With a key it is in training: batch norm takes the moments of the batch
    and updates its own, and the key decides what is dropped. With None it is in evaluation: batch norm takes its own
    moments, and nothing is dropped.

    Attributes:
      last_layer: whole path of the layer that gives the logits.
      decayed: regular expressions; a tensor whose whole path matches one takes part in weight decay.
      takes_text: whether inputs are characters, not images.
      auxiliary_weight: of the loss of auxiliary logits, which in training come behind the logits, in a tuple.
    """

    last_layer: ClassVar[str]
    decayed: ClassVar[tuple[str, ...]] = (r"(.*/)?kernel",)
    takes_text: ClassVar[bool] = False
    auxiliary_weight: ClassVar[float] = 0.0

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, *, rngs: nnx.Rngs):
        """With fresh weights, for inputs of this shape; networks with dropout also take a `dropout_rate`."""
        raise NotImplementedError

    def __call__(self, inputs: jax.Array, key: jax.Array | None = None) -> Any:
        """[B, *input_shape] inputs to float[B, num_classes] logits; of text, float[B, t, num_classes] of t characters.

        In training a network with auxiliary logits gives a tuple, with these behind the logits.
        """
        raise NotImplementedError


def unpack_image_shape(input_shape: tuple[int, ...], least: int = 1) -> tuple[int, int, int]:
    """Height, width and channels, for a network that leaves nothing of an image with a side below `least` pixels.

    Raises:
      ValueError: for another shape, or too small a side.
    """
    if len(input_shape) != 3 or min(input_shape) < 1 or min(input_shape[:2]) < least:
        raise ValueError(
            f"input_shape={input_shape}: must be height, width and channels, height and width {least} or more"
        )
    height, width, channels = input_shape
    return height, width, channels


def split_key(key: jax.Array | None, count: int) -> list[jax.Array | None]:
    """Splits a key into one for each of so many dropouts; None gives None for each."""
    return [None] * count if key is None else list(jax.random.split(key, count))
