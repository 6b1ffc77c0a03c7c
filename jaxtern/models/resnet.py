"""ResNets of He et al.: with bottlenecks for ImageNet, with plain blocks for CIFAR-10."""

import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from jaxtern.models.model import Model, unpack_image_shape
from jaxtern.models.normalization import BatchNorm
from jaxtern.models.pooling import max_pool

_he_normal = nnx.initializers.variance_scaling(2.0, "fan_out", "normal")


class _Stage(nnx.Module):
    """A sequence of blocks, named block1, block2, ...; the first has the stride."""

    def __init__(self, block: type, depth: int, channels: int, width: int, stride: int, norm: functools.partial):
        self.depth = depth
        for i in range(depth):
            setattr(self, f"block{i + 1}", block(channels, width, stride if i == 0 else 1, norm))
            channels = width * block.expansion

    def __call__(self, x: jax.Array, moving: bool) -> jax.Array:
        for i in range(self.depth):
            x = getattr(self, f"block{i + 1}")(x, moving)
        return x


class _Bottleneck(nnx.Module):
    """conv 1x1, 3x3 with the stride, 1x1 to four times the width; the shortcut has weights if the shape changes."""

    expansion: ClassVar[int] = 4

    def __init__(self, channels: int, width: int, stride: int, norm: functools.partial):
        rngs, features = norm.keywords["rngs"], width * self.expansion
        self.conv1, self.norm1 = _convolution(channels, width, 1, 1, rngs), norm(width)
        self.conv2, self.norm2 = _convolution(width, width, 3, stride, rngs), norm(width)
        self.conv3, self.norm3 = _convolution(width, features, 1, 1, rngs), norm(features)
        self.projects = stride != 1 or channels != features
        if self.projects:
            self.shortcut, self.shortcut_norm = _convolution(channels, features, 1, stride, rngs), norm(features)

    def __call__(self, x: jax.Array, moving: bool) -> jax.Array:
        y = nnx.relu(self.norm1(self.conv1(x), use_running_average=moving))
        y = nnx.relu(self.norm2(self.conv2(y), use_running_average=moving))
        y = self.norm3(self.conv3(y), use_running_average=moving)
        if self.projects:
            x = self.shortcut_norm(self.shortcut(x), use_running_average=moving)
        return nnx.relu(x + y)


class _Plain(nnx.Module):
    """conv 3x3 with the stride, 3x3; the shortcut has no weights."""

    expansion: ClassVar[int] = 1

    def __init__(self, channels: int, width: int, stride: int, norm: functools.partial):
        rngs = norm.keywords["rngs"]
        self.stride, self.added = stride, width - channels
        self.conv1, self.norm1 = _convolution(channels, width, 3, stride, rngs), norm(width)
        self.conv2, self.norm2 = _convolution(width, width, 3, 1, rngs), norm(width)

    def __call__(self, x: jax.Array, moving: bool) -> jax.Array:
        y = nnx.relu(self.norm1(self.conv1(x), use_running_average=moving))
        y = self.norm2(self.conv2(y), use_running_average=moving)
        kept = x[:, :: self.stride, :: self.stride]
        return nnx.relu(jnp.pad(kept, ((0, 0), (0, 0), (0, 0), (0, self.added))) + y)


class ResNet(Model):
    """conv 7x7x64/2, max 3/2, four stages of bottlenecks (64, 128, 256, 512 wide, with four times as many outputs),
    mean over all positions, linear C.

    Batch norm with a scale follows each convolution, which has no bias. From the second stage on, a stage's first block
    halves the sides in its 3x3 convolution, not in its first 1x1 as in the paper. This and the symmetric padding are as
    in torchvision, so its weights give the same logits. Images may have any size. (He et al. 2015, Deep Residual
    Learning for Image Recognition; initial weights by the fan-out of He et al. 2015, Delving Deep into Rectifiers.)
    """

    last_layer = "fc"
    depths: ClassVar[tuple[int, ...]]  # blocks of each stage
    widths: ClassVar[tuple[int, ...]] = (64, 128, 256, 512)
    block: ClassVar[type] = _Bottleneck
    stem: ClassVar[tuple[int, int, int]] = (7, 2, 64)  # side, stride and features of the first convolution
    pools: ClassVar[bool] = True  # after the first convolution
    momentum: ClassVar[float] = 0.997  # of batch norm

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, *, rngs: nnx.Rngs):
        *_, channels = unpack_image_shape(input_shape)
        norm = functools.partial(BatchNorm, momentum=self.momentum, epsilon=1e-5, rngs=rngs)
        size, stride, features = self.stem
        self.conv1, self.norm1 = _convolution(channels, features, size, stride, rngs), norm(features)
        for i, (depth, width) in enumerate(zip(self.depths, self.widths, strict=True)):
            setattr(self, f"stage{i + 1}", _Stage(self.block, depth, features, width, 1 if i == 0 else 2, norm))
            features = width * self.block.expansion
        self.fc = nnx.Linear(features, num_classes, rngs=rngs)

    def __call__(self, images: jax.Array, key: jax.Array | None = None) -> jax.Array:
        moving = key is None
        x = nnx.relu(self.norm1(self.conv1(images), use_running_average=moving))
        if self.pools:
            x = max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
        for i in range(len(self.depths)):
            x = getattr(self, f"stage{i + 1}")(x, moving)
        return self.fc(jnp.mean(x, axis=(1, 2)))


class ResNet50(ResNet):
    """ResNet-50: 25,557,032 parameters for 1000 classes."""

    depths = (3, 4, 6, 3)


class ResNet101(ResNet):
    """ResNet-101: 44,549,160 parameters for 1000 classes."""

    depths = (3, 4, 23, 3)


class ResNet152(ResNet):
    """ResNet-152: 60,192,808 parameters for 1000 classes."""

    depths = (3, 8, 36, 3)


class CifarResNet(ResNet):
    """conv 3x3x16, three stages of n blocks of two 3x3 convolutions (16, 32, 64 channels), mean over all positions,
    linear C: 6 n + 2 layers.

    Shortcuts have no weights (option A): if a stage halves the sides and doubles the channels, they take every second
    pixel and zeros for the new channels. The moving moments of batch norm span tens of steps, as an epoch has only 391
    batches of 128. (He et al. 2015, Deep Residual Learning for Image Recognition, 4.2.)
    """

    widths = (16, 32, 64)
    block = _Plain
    stem = (3, 1, 16)
    pools = False
    momentum = 0.9


class ResNet20(CifarResNet):
    """ResNet-20: 269,722 parameters for ten classes."""

    depths = (3, 3, 3)


class ResNet56(CifarResNet):
    """ResNet-56: 853,018 parameters for ten classes."""

    depths = (9, 9, 9)


def _convolution(channels: int, features: int, size: int, stride: int, rngs: nnx.Rngs) -> nnx.Conv:
    """A convolution without bias, padded equally on both sides."""
    options = {"strides": (stride, stride), "padding": size // 2, "use_bias": False, "kernel_init": _he_normal}
    return nnx.Conv(channels, features, (size, size), **options, rngs=rngs)
