"""Parallel branches of convolutions, the building blocks of GoogLeNet and Inception v3.

A convolution is written as height x width x features, "3x3x64", with "/2" for stride 2. It is padded by half its window
on each side, or not at all if "valid" follows. Poolings have the names in POOLINGS. Layers joined by "|" get the same
input, and their outputs are concatenated.
"""

import functools
import re
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from jaxtern.models.model import Model, split_key, unpack_image_shape
from jaxtern.models.normalization import BatchNorm
from jaxtern.models.pooling import max_pool

Layers = tuple[str, ...]


def _max_to_the_end(x: jax.Array, size: int) -> jax.Array:
    """Max pooling with stride 2, padded only at the end, so that the last window reaches it."""
    behind = [(0, max(size - side, (side - size) % 2)) for side in x.shape[1:3]]
    return max_pool(x, (size, size), strides=(2, 2), padding=behind)


_around = {"window_shape": (3, 3), "strides": (1, 1), "padding": ((1, 1), (1, 1))}
POOLINGS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "max/2 valid": functools.partial(max_pool, window_shape=(3, 3), strides=(2, 2)),
    "max/2": functools.partial(_max_to_the_end, size=3),
    "max2/2": functools.partial(_max_to_the_end, size=2),
    "max": functools.partial(max_pool, **_around),
    "mean": functools.partial(nnx.avg_pool, **_around),  # padding counts as zeros, as in torchvision
}


class Convolution(nnx.Module):
    """Convolution without a bias, batch norm, ReLU."""

    def __init__(self, channels: int, layer: str, *, deviation: float, rngs: nnx.Rngs, use_scale: bool = True):
        """Draws weights from a normal distribution truncated at two deviations."""
        window, stride, valid = re.findall(r"(\d+x\d+x\d+)(/2)?( valid)?", layer)[0]
        *sides, self.features = map(int, window.split("x"))
        padding: Any = "VALID" if valid else [(side // 2, side // 2) for side in sides]
        options = {"strides": (2, 2) if stride else (1, 1), "padding": padding, "use_bias": False}
        initial = nnx.initializers.truncated_normal(deviation)
        self.conv = nnx.Conv(channels, self.features, sides, kernel_init=initial, **options, rngs=rngs)
        self.norm = BatchNorm(self.features, momentum=0.9997, epsilon=0.001, use_scale=use_scale, rngs=rngs)

    def __call__(self, x: jax.Array, moving: bool) -> jax.Array:
        return nnx.relu(self.norm(self.conv(x), use_running_average=moving))


class Block(nnx.Module):
    """Branches with the same input, whose outputs are concatenated.

    A convolution is named by its branch and its number in it, "branch5x5_1"; without a number if it is the branch's
    only one, and with a letter if it was joined by "|", "branch3x3_2a".
    """

    def __init__(self, channels: int, branches: dict[str, Layers], make: Callable[[int, str], Convolution]):
        self.branches: tuple[tuple[Layers, ...], ...] = ()
        self.features = 0
        for branch, layers in branches.items():
            steps, features, is_single = [], channels, sum(layer not in POOLINGS for layer in layers) == 1
            for i, layer in enumerate(layers, 1):
                names = [layer]
                if layer not in POOLINGS:
                    name, fork = branch if is_single else f"{branch}_{i}", layer.split("|")
                    names = [name] if len(fork) == 1 else [f"{name}a", f"{name}b"]
                    made = [make(features, each) for each in fork]
                    for own, convolution in zip(names, made, strict=True):
                        setattr(self, own, convolution)
                    features = sum(convolution.features for convolution in made)
                steps.append(tuple(names))
            self.branches += (tuple(steps),)
            self.features += features

    def __call__(self, x: jax.Array, moving: bool) -> jax.Array:
        return jnp.concatenate([self._follow(steps, x, moving) for steps in self.branches], axis=-1)

    def _follow(self, steps: tuple[Layers, ...], x: jax.Array, moving: bool) -> jax.Array:
        for names in steps:
            if names[0] in POOLINGS:
                x = POOLINGS[names[0]](x)
            else:
                x = jnp.concatenate([getattr(self, name)(x, moving) for name in names], axis=-1)
        return x


class BranchedModel(Model):
    """Convolutions and blocks in sequence, mean over all positions, dropout, linear C; in training also heads."""

    last_layer = "fc"
    parts: ClassVar[dict[str, str | dict[str, Layers]]]  # convolutions, and the branches of blocks, by name
    pooled: ClassVar[dict[str, str]]  # the pooling after a part, by the part's name
    heads: ClassVar[dict[str, str]]  # the name of the auxiliary head after a part, by the part's name
    # (channels, sides of images, num_classes, dropout_rate, rngs) -> a head: (activations with this many channels, key)
    # -> float[B, num_classes] logits
    head: ClassVar[Callable[..., Any]]
    deviation: ClassVar[float]  # of the initial weights
    use_scale: ClassVar[bool] = True  # of batch norm
    least: ClassVar[int] = 1  # the smallest side of images, in pixels

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, *, dropout_rate: float | None = None, rngs: nnx.Rngs
    ):
        *sides, channels = unpack_image_shape(input_shape, self.least)
        make = functools.partial(Convolution, deviation=self.deviation, use_scale=self.use_scale, rngs=rngs)
        for name, part in self.parts.items():
            made = make(channels, part) if isinstance(part, str) else Block(channels, part, make)
            setattr(self, name, made)
            channels = made.features
            if name in self.heads:
                setattr(self, self.heads[name], self.head(channels, sides, num_classes, dropout_rate, rngs))
        initial = nnx.initializers.truncated_normal(self.deviation)
        self.fc = nnx.Linear(channels, num_classes, kernel_init=initial, rngs=rngs)
        self.dropout = nnx.Dropout(0.5 if dropout_rate is None else dropout_rate)

    def __call__(self, images: jax.Array, key: jax.Array | None = None) -> jax.Array | tuple[jax.Array, ...]:
        moving, auxiliary, x = key is None, [], images
        own, *keys = split_key(key, 1 + len(self.heads))
        for name in self.parts:
            x = getattr(self, name)(x, moving)
            if name in self.pooled:
                x = POOLINGS[self.pooled[name]](x)
            if name in self.heads and not moving:
                auxiliary.append(getattr(self, self.heads[name])(x, keys[len(auxiliary)]))
        logits = self.fc(self.dropout(jnp.mean(x, axis=(1, 2)), deterministic=moving, rngs=own))
        return (logits, *auxiliary) if auxiliary else logits
