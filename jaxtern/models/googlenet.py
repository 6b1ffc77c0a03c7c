"""GoogLeNet with batch norm and two auxiliary heads; and as TernGrad trains it, without heads."""

import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxtern.models.branches import BranchedModel, Convolution, Layers

_DEVIATION = 0.01
_linear = functools.partial(nnx.Linear, kernel_init=nnx.initializers.truncated_normal(_DEVIATION))


def _block(first: int, second: tuple[int, int], third: tuple[int, int], fourth: int) -> dict[str, Layers]:
    """Four branches with these numbers of features; the second and third reduce theirs first."""
    branch2, branch3 = ((f"1x1x{few}", f"3x3x{many}") for few, many in (second, third))
    return {"branch1": (f"1x1x{first}",), "branch2": branch2, "branch3": branch3, "branch4": ("max", f"1x1x{fourth}")}


_PARTS = {
    "conv1": "7x7x64/2",
    "conv2": "1x1x64",
    "conv3": "3x3x192",
    "inception3a": _block(64, (96, 128), (16, 32), 32),
    "inception3b": _block(128, (128, 192), (32, 96), 64),
    "inception4a": _block(192, (96, 208), (16, 48), 64),
    "inception4b": _block(160, (112, 224), (24, 64), 64),
    "inception4c": _block(128, (128, 256), (24, 64), 64),
    "inception4d": _block(112, (144, 288), (32, 64), 64),
    "inception4e": _block(256, (160, 320), (32, 128), 128),
    "inception5a": _block(256, (160, 320), (32, 128), 128),
    "inception5b": _block(384, (192, 384), (48, 128), 128),
}


class _Auxiliary(nnx.Module):
    """An auxiliary classifier on inner activations, used only in training."""

    def __init__(self, channels: int, _: list[int], num_classes: int, dropout_rate: float | None, rngs: nnx.Rngs):
        self.conv = Convolution(channels, "1x1x128", deviation=_DEVIATION, rngs=rngs)
        self.fc1, self.fc2 = _linear(2048, 1024, rngs=rngs), _linear(1024, num_classes, rngs=rngs)
        self.dropout = nnx.Dropout(0.7 if dropout_rate is None else dropout_rate)

    def __call__(self, x: jax.Array, key: jax.Array | None) -> jax.Array:
        rows, columns = (_shares(side, 4).astype(x.dtype) for side in x.shape[1:3])
        x = self.conv(jnp.einsum("bhwc,ih,jw->bijc", x, rows, columns), moving=False)
        x = nnx.relu(self.fc1(jnp.reshape(x, (x.shape[0], -1))))
        return self.fc2(self.dropout(x, deterministic=key is None, rngs=key))


class GoogLeNet(BranchedModel):
    """conv 7x7x64/2, max 3/2, conv 1x1x64, conv 3x3x192, max 3/2, blocks 3a and 3b, max 3/2, blocks 4a to 4e, max 2/2,
    blocks 5a and 5b, mean over all positions, dropout, linear C.

    A block concatenates conv 1x1; conv 1x1, conv 3x3; the same again; max 3/1, conv 1x1. In training, a head follows
    blocks 4a and 4d: mean to 4x4, conv 1x1x128, linear 1024, ReLU, dropout, linear C. Batch norm, then ReLU, follow
    each convolution, which has no bias. Images may have any size. For 1000 classes it has 13,004,888 parameters,
    6,379,984 of them in the heads. (Szegedy et al. 2015. Batch norm, poolings, and 3x3 instead of 5x5 convolutions are
    as in torchvision, so its weights give the same logits.)

    Args of __init__:
      dropout_rate: before the last layers; None: .5, and .7 in the heads.
    """

    parts = _PARTS
    pooled: ClassVar = {"conv1": "max/2", "conv3": "max/2", "inception3b": "max/2", "inception4e": "max2/2"}
    heads: ClassVar[dict[str, str]] = {"inception4a": "auxiliary1", "inception4d": "auxiliary2"}
    auxiliary_weight = 0.3
    head = _Auxiliary
    deviation = _DEVIATION


class TernGradGoogLeNet(GoogLeNet):
    """GoogLeNet without heads, and with batch norm without a scale: 6,617,624 parameters (Wen et al. 2017)."""

    auxiliary_weight = 0.0
    heads: ClassVar[dict[str, str]] = {}
    use_scale = False


def _shares(side: int, count: int) -> np.ndarray:
    """float64[count, side]: the weights of `side` positions in `count` means, cut as torch's AdaptiveAvgPool2d."""
    starts, ends = (np.arange(count) * side) // count, -(-np.arange(1, count + 1) * side // count)
    place = np.arange(side)
    inside = (starts[:, None] <= place) & (place < ends[:, None])
    return inside / inside.sum(axis=1, keepdims=True)
