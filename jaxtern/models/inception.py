"""Inception v3, with its auxiliary head."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from jaxtern.models.branches import BranchedModel, Convolution, Layers

_normal = nnx.initializers.truncated_normal  # at two standard deviations


def _block35(pooled: int) -> dict[str, Layers]:
    """The branches of a block on 35x35 positions."""
    double, pool = ("1x1x64", "3x3x96", "3x3x96"), ("mean", f"1x1x{pooled}")
    return {"branch1x1": ("1x1x64",), "branch5x5": ("1x1x48", "5x5x64"), "branch3x3dbl": double, "branch_pool": pool}


def _block17(width: int) -> dict[str, Layers]:
    """The branches of a block on 17x17 positions."""
    across, down = f"1x7x{width}", f"7x1x{width}"
    once = (f"1x1x{width}", across, "7x1x192")
    twice = (f"1x1x{width}", down, across, down, "1x7x192")
    return {"branch1x1": ("1x1x192",), "branch7x7": once, "branch7x7dbl": twice, "branch_pool": ("mean", "1x1x192")}


_FORK = "1x3x384|3x1x384"
_BLOCK8 = {
    "branch1x1": ("1x1x320",),
    "branch3x3": ("1x1x384", _FORK),
    "branch3x3dbl": ("1x1x448", "3x3x384", _FORK),
    "branch_pool": ("mean", "1x1x192"),
}
_PARTS: dict[str, str | dict[str, Layers]] = {
    "Conv2d_1a_3x3": "3x3x32/2 valid",
    "Conv2d_2a_3x3": "3x3x32 valid",
    "Conv2d_2b_3x3": "3x3x64",
    "Conv2d_3b_1x1": "1x1x80",
    "Conv2d_4a_3x3": "3x3x192 valid",
    "Mixed_5b": _block35(32),
    "Mixed_5c": _block35(64),
    "Mixed_5d": _block35(64),
    "Mixed_6a": {
        "branch3x3": ("3x3x384/2 valid",),
        "branch3x3dbl": ("1x1x64", "3x3x96", "3x3x96/2 valid"),
        "branch_pool": ("max/2 valid",),
    },
    "Mixed_6b": _block17(128),
    "Mixed_6c": _block17(160),
    "Mixed_6d": _block17(160),
    "Mixed_6e": _block17(192),
    "Mixed_7a": {
        "branch3x3": ("1x1x192", "3x3x320/2 valid"),
        "branch7x7x3": ("1x1x192", "1x7x192", "7x1x192", "3x3x192/2 valid"),
        "branch_pool": ("max/2 valid",),
    },
    "Mixed_7b": _BLOCK8,
    "Mixed_7c": _BLOCK8,
}


class _Auxiliary(nnx.Module):
    """An auxiliary classifier, used only in training: its loss reaches the early layers by a shorter path."""

    def __init__(self, channels: int, sides: list[int], num_classes: int, _: float | None, rngs: nnx.Rngs):
        sides = [_side_of_features(side) for side in sides]
        self.window = tuple(min(side, 5) for side in sides)
        pooled = ((side - window) // 3 + 1 for side, window in zip(sides, self.window, strict=True))
        height, width = (min(side, 5) for side in pooled)
        self.conv0 = Convolution(channels, "1x1x128", deviation=0.1, rngs=rngs)
        self.conv1 = Convolution(128, f"{height}x{width}x768 valid", deviation=0.01, rngs=rngs)
        self.fc = nnx.Linear(768, num_classes, kernel_init=_normal(0.001), rngs=rngs)

    def __call__(self, x: jax.Array, _: jax.Array | None) -> jax.Array:
        x = nnx.avg_pool(x, self.window, strides=(3, 3))
        x = self.conv1(self.conv0(x, moving=False), moving=False)
        return self.fc(jnp.mean(x, axis=(1, 2)))  # a single position, unless images are larger than 299 pixels


class InceptionV3(BranchedModel):
    """A stem of convolutions, eleven blocks of parallel branches, mean over all positions, dropout, linear C.

    Batch norm, then ReLU, follow each convolution, which has no bias. The auxiliary head takes the last block on 17x17
    positions: mean 5x5/3, conv 1x1x128, conv 5x5x768, linear C; smaller images shrink its windows. For 299x299x3 images
    and 1000 classes it has 27,161,264 parameters, 3,326,696 of them in the head. (Szegedy et al. 2015, Rethinking the
    Inception Architecture for Computer Vision; initial deviations of TensorFlow's slim. Names, batch norm and poolings
    are as in torchvision, so its weights give the same logits.)
    """

    parts = _PARTS
    pooled: ClassVar = dict.fromkeys(("Conv2d_2b_3x3", "Conv2d_4a_3x3"), "max/2 valid")
    heads: ClassVar = {"Mixed_6e": "auxiliary"}
    auxiliary_weight = 0.4
    head = _Auxiliary
    deviation = 0.1
    least = 75


def _side_of_features(side: int) -> int:
    """The side, for images of this side, of the blocks that have 17x17 positions for 299 pixels."""
    for lost in (0, 2, 2, 0):
        side = (side - lost - 3) // 2 + 1
    return side
