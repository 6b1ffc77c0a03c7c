"""GoogLeNet as TernGrad trains it: nine blocks of four branches, batch norm on all convolutions, no auxiliary heads."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from jaxtern.models.model import Model, unpack_image_shape
from jaxtern.models.pooling import max_pool

# Features of the first branch; of the second, reduced and then; of the third, likewise; of the fourth. A stage begins
# with a pooling.
_STAGES = (
    {"3b": (64, (96, 128), (16, 32), 32), "3c": (128, (128, 192), (32, 96), 64)},
    {
        "4b": (192, (96, 208), (16, 48), 64),
        "4c": (160, (112, 224), (24, 64), 64),
        "4d": (128, (128, 256), (24, 64), 64),
        "4e": (112, (144, 288), (32, 64), 64),
        "4f": (256, (160, 320), (32, 128), 128),
    },
    {"5b": (256, (160, 320), (32, 128), 128), "5c": (384, (192, 384), (48, 128), 128)},
)
_normal = nnx.initializers.truncated_normal(0.01)  # cut off at two standard deviations
_pool = functools.partial(max_pool, padding="SAME")
_Pair = tuple[int, int]


class GoogLeNet(Model):
    """conv 7x7x64/2, max 3/2, conv 1x1x64, conv 3x3x192, max 3/2, blocks 3b and 3c, max 3/2, blocks 4b to 4f, max 2/2,
    blocks 5b and 5c, average over all that is left, dropout, linear C.

    Convolutions are followed by batch norm without a scale (and have no bias), then ReLU. Images may have any size.
    With 1000 classes it has 6,617,624 parameters (Szegedy et al. 2015; batch norm, initial deviation, and 3x3 in place
    of 5x5 convolutions as in Wen et al. 2017).
    """

    last_layer = "fc"

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, *, dropout_rate: float = 0.5, rngs: nnx.Rngs):
        _, _, channels = unpack_image_shape(input_shape)
        self.conv1 = _Convolution(channels, 64, 7, stride=2, rngs=rngs)
        self.conv2 = _Convolution(64, 64, 1, rngs=rngs)
        self.conv3 = _Convolution(64, 192, 3, rngs=rngs)
        channels = 192
        for stage in _STAGES:
            for name, features in stage.items():
                setattr(self, f"block{name}", _Block(channels, *features, rngs=rngs))
                first, (_, second), (_, third), fourth = features
                channels = first + second + third + fourth
        self.fc = nnx.Linear(channels, num_classes, kernel_init=_normal, rngs=rngs)
        self.dropout = nnx.Dropout(dropout_rate)

    def __call__(self, images: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """float[B, H, W, C] images to float[B, num_classes] logits; with a key in training (see `Model`)."""
        trains = key is not None
        x = _pool(self.conv1(images, trains), (3, 3), strides=(2, 2))
        x = self.conv3(self.conv2(x, trains), trains)
        for stage, window in zip(_STAGES, (3, 3, 2), strict=True):
            x = _pool(x, (window, window), strides=(2, 2))
            for name in stage:
                x = getattr(self, f"block{name}")(x, trains)
        features = jnp.mean(x, axis=(1, 2))
        return self.fc(self.dropout(features, deterministic=not trains, rngs=key))


class _Block(nnx.Module):
    """Four branches whose results are joined: conv 1x1; conv 1x1, conv 3x3; the same again; max 3/1, conv 1x1."""

    def __init__(self, channels: int, first: int, second: _Pair, third: _Pair, fourth: int, *, rngs: nnx.Rngs):
        self.branch1 = _Convolution(channels, first, 1, rngs=rngs)
        self.branch2_reduce = _Convolution(channels, second[0], 1, rngs=rngs)
        self.branch2 = _Convolution(*second, 3, rngs=rngs)
        self.branch3_reduce = _Convolution(channels, third[0], 1, rngs=rngs)
        self.branch3 = _Convolution(*third, 3, rngs=rngs)
        self.branch4 = _Convolution(channels, fourth, 1, rngs=rngs)

    def __call__(self, x: jax.Array, trains: bool) -> jax.Array:
        branches = [
            self.branch1(x, trains),
            self.branch2(self.branch2_reduce(x, trains), trains),
            self.branch3(self.branch3_reduce(x, trains), trains),
            self.branch4(_pool(x, (3, 3), strides=(1, 1)), trains),
        ]
        return jnp.concatenate(branches, axis=-1)


class _Convolution(nnx.Module):
    """Convolution, batch norm, ReLU."""

    def __init__(self, channels: int, features: int, size: int, *, stride: int = 1, rngs: nnx.Rngs):
        options = {"strides": (stride, stride), "use_bias": False, "kernel_init": _normal}
        self.conv = nnx.Conv(channels, features, (size, size), **options, rngs=rngs)
        self.norm = nnx.BatchNorm(features, momentum=0.9997, epsilon=0.001, use_scale=False, rngs=rngs)

    def __call__(self, x: jax.Array, trains: bool) -> jax.Array:
        return nnx.relu(self.norm(self.conv(x), use_running_average=not trains))
