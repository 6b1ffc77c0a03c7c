"""Inception v3, with its auxiliary head."""

import re
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from jaxtern.models.model import Model, unpack_image_shape
from jaxtern.models.pooling import max_pool

_normal = nnx.initializers.truncated_normal  # cut off at two standard deviations

# Layers by height x width x features. With "/2" they take every second position, without padding; "valid" ones have no
# padding either. "max" is of 3x3, every second position, without padding; "mean" of 3x3, over what is there of it. Of
# layers with "|" between them each gets the same input, and their features lie side by side.
_STEM = ("3x3x32/2", "3x3x32 valid", "3x3x64", "max", "1x1x80", "3x3x192 valid", "max")


def _block35(pooled: int) -> tuple[tuple[str, ...], ...]:
    """Branches on 35x35 positions."""
    return ("1x1x64",), ("1x1x48", "5x5x64"), ("1x1x64", "3x3x96", "3x3x96"), ("mean", f"1x1x{pooled}")


def _block17(width: int) -> tuple[tuple[str, ...], ...]:
    """Branches on 17x17 positions."""
    across, down = f"1x7x{width}", f"7x1x{width}"
    once = (f"1x1x{width}", across, "7x1x192")
    twice = (f"1x1x{width}", down, across, down, "1x7x192")
    return ("1x1x192",), once, twice, ("mean", "1x1x192")


def _block8() -> tuple[tuple[str, ...], ...]:
    """Branches on 8x8 positions."""
    fork = "1x3x384|3x1x384"
    return ("1x1x320",), ("1x1x384", fork), ("1x1x448", "3x3x384", fork), ("mean", "1x1x192")


_BLOCKS = {
    "mixed_5b": _block35(32),
    "mixed_5c": _block35(64),
    "mixed_5d": _block35(64),
    "mixed_6a": (("3x3x384/2",), ("1x1x64", "3x3x96", "3x3x96/2"), ("max",)),
    "mixed_6b": _block17(128),
    "mixed_6c": _block17(160),
    "mixed_6d": _block17(160),
    "mixed_6e": _block17(192),
    "mixed_7a": (("1x1x192", "3x3x320/2"), ("1x1x192", "1x7x192", "7x1x192", "3x3x192/2"), ("max",)),
    "mixed_7b": _block8(),
    "mixed_7c": _block8(),
}


class InceptionV3(Model):
    """A stem of convolutions, eleven blocks of branches side by side, mean over all positions, dropout, linear C.

    Convolutions are followed by batch norm without a scale (and have no bias), then ReLU. On 299x299x3 images with 1000
    classes it has 27,143,152 parameters, of which 3,325,800 are the auxiliary head's: mean 5x5/3 of the last block on
    17x17 positions, 1x1x128, conv 5x5x768, linear C. Smaller images shrink the windows of that head to what there is.
    (Szegedy et al. 2015, Rethinking the Inception Architecture for Computer Vision; names, initial deviations and batch
    norm of TensorFlow's slim.)

    Attributes:
      auxiliary_weight: of the auxiliary logits' loss, beside 1 for that of the logits.
    """

    last_layer = "fc"
    auxiliary_weight: ClassVar[float] = 0.4

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, *, dropout_rate: float = 0.5, rngs: nnx.Rngs):
        height, width, channels = unpack_image_shape(input_shape, least=75)
        self.stem = _Branch(channels, _STEM, rngs)
        channels = self.stem.features
        for name, branches in _BLOCKS.items():
            block = _Block(channels, branches, rngs)
            setattr(self, name, block)
            if name == "mixed_6e":
                sides = _side_of_features(height), _side_of_features(width)
                self.auxiliary = _Auxiliary(block.features, sides, num_classes, rngs)
            channels = block.features
        self.dropout = nnx.Dropout(dropout_rate)
        self.fc = nnx.Linear(channels, num_classes, kernel_init=_normal(0.1), rngs=rngs)

    def __call__(self, images: jax.Array, key: jax.Array | None = None) -> jax.Array | tuple[jax.Array, jax.Array]:
        """float[B, H, W, C] images to float[B, num_classes] logits; in training (see `Model`) with the auxiliary ones.

        Returns:
          Logits, or with a key a pair of these and the auxiliary head's, likewise float[B, num_classes].
        """
        moving, auxiliary = key is None, None
        x = self.stem(images, moving)
        for name in _BLOCKS:
            x = getattr(self, name)(x, moving)
            if name == "mixed_6e" and not moving:
                auxiliary = self.auxiliary(x)
        logits = self.fc(self.dropout(jnp.mean(x, axis=(1, 2)), deterministic=moving, rngs=key))
        return logits if auxiliary is None else (logits, auxiliary)


class _Auxiliary(nnx.Module):
    """A second classifier, in training alone, whose loss reaches the early layers by a shorter way."""

    def __init__(self, channels: int, sides: tuple[int, int], num_classes: int, rngs: nnx.Rngs):
        self.window = tuple(min(side, 5) for side in sides)
        pooled = ((side - window) // 3 + 1 for side, window in zip(sides, self.window, strict=True))
        height, width = (min(side, 5) for side in pooled)
        self.layer1 = _Convolution(channels, "1x1x128", rngs)
        self.layer2 = _Convolution(128, f"{height}x{width}x768 valid", rngs, deviation=0.01)
        self.fc = nnx.Linear(768, num_classes, kernel_init=_normal(0.001), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.avg_pool(x, self.window, strides=(3, 3))
        x = self.layer2(self.layer1(x, moving=False), moving=False)
        return self.fc(jnp.mean(x, axis=(1, 2)))  # of one position, but for images larger than usual


class _Block(nnx.Module):
    """Branches with the same input, whose features lie side by side."""

    def __init__(self, channels: int, branches: tuple[tuple[str, ...], ...], rngs: nnx.Rngs):
        self.names = tuple(f"branch{i}" for i in range(len(branches)))
        self.features = 0
        for name, layers in zip(self.names, branches, strict=True):
            branch = _Branch(channels, layers, rngs)
            setattr(self, name, branch)
            self.features += branch.features

    def __call__(self, x: jax.Array, moving: bool) -> jax.Array:
        return jnp.concatenate([getattr(self, name)(x, moving) for name in self.names], axis=-1)


class _Branch(nnx.Module):
    """Layers one behind another, by the names layer1, layer2, ...; in a fork, layer2a and layer2b."""

    def __init__(self, channels: int, layers: tuple[str, ...], rngs: nnx.Rngs):
        self.steps: tuple[tuple[str, ...], ...] = ()
        for i, layer in enumerate(layers):
            if layer in ("max", "mean"):
                self.steps += ((layer,),)
                continue
            fork, features = layer.split("|"), 0
            names = tuple(f"layer{i + 1}{letter}" for letter in ("ab" if len(fork) > 1 else ("",)))
            for name, convolution in zip(names, fork, strict=True):
                setattr(self, name, _Convolution(channels, convolution, rngs))
                features += getattr(self, name).conv.out_features
            self.steps += (names,)
            channels = features
        self.features = channels

    def __call__(self, x: jax.Array, moving: bool) -> jax.Array:
        for step in self.steps:
            if step == ("max",):
                x = max_pool(x, (3, 3), strides=(2, 2))
            elif step == ("mean",):
                x = nnx.avg_pool(x, (3, 3), strides=(1, 1), padding="SAME", count_include_pad=False)
            else:
                x = jnp.concatenate([getattr(self, name)(x, moving) for name in step], axis=-1)
        return x


class _Convolution(nnx.Module):
    """Convolution without a bias, batch norm without a scale, ReLU."""

    def __init__(self, channels: int, layer: str, rngs: nnx.Rngs, deviation: float = 0.1):
        window, stride, valid = re.findall(r"(\d+x\d+x\d+)(/2)?( valid)?", layer)[0]
        height, width, features = map(int, window.split("x"))
        strides, padding = (2, 2) if stride else (1, 1), "VALID" if stride or valid else "SAME"
        options = {"strides": strides, "padding": padding, "use_bias": False, "kernel_init": _normal(deviation)}
        self.conv = nnx.Conv(channels, features, (height, width), **options, rngs=rngs)
        self.norm = nnx.BatchNorm(features, momentum=0.9997, epsilon=0.001, use_scale=False, rngs=rngs)

    def __call__(self, x: jax.Array, moving: bool) -> jax.Array:
        return nnx.relu(self.norm(self.conv(x), use_running_average=moving))


def _side_of_features(side: int) -> int:
    """Positions of the blocks that have 17 of images of 299 pixels."""
    for lost in (0, 2, 2, 0):
        side = (side - lost - 3) // 2 + 1
    return side
