"""VGG: five blocks of 3x3 convolutions and pooling, then linear layers."""

import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from jaxtern.models.model import Model, split_key, unpack_image_shape
from jaxtern.models.normalization import BatchNorm
from jaxtern.models.pooling import max_pool

_FEATURES = (64, 128, 256, 512, 512)  # of the blocks' convolutions
_xavier = nnx.initializers.xavier_uniform()
_convolution = functools.partial(nnx.Conv, kernel_size=(3, 3), kernel_init=_xavier)
_linear = functools.partial(nnx.Linear, kernel_init=_xavier)
_norm = functools.partial(BatchNorm, momentum=0.999, epsilon=0.001, use_scale=False)


class _VGG(Model):
    """Five blocks of conv 3x3, each followed by max 2/2; linear 4096, dropout, linear 4096, dropout, linear C.

    Batch norm without a scale, then ReLU, follow each convolution, which has no bias. The first linear layer takes all
    positions, one for 32x32 pixels: nothing is pooled to a fixed size. (Simonyan and Zisserman 2015; batch norm and
    Xavier's initial weights as in Wen et al. 2017.)
    """

    last_layer = "fc3"
    depths: ClassVar[tuple[int, ...]]  # convolutions of each block
    is_normalized: ClassVar[bool] = True
    hidden: ClassVar[dict[str, tuple[int, float]]] = {"fc1": (4096, 0.5), "fc2": (4096, 0.5)}  # width, share dropped

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, *, dropout_rate: float | None = None, rngs: nnx.Rngs
    ):
        height, width, channels = unpack_image_shape(input_shape, least=32)
        for block, features in enumerate(_FEATURES, 1):
            for name in self._names_of(block):
                setattr(self, name, _convolution(channels, features, use_bias=not self.is_normalized, rngs=rngs))
                if self.is_normalized:
                    setattr(self, f"{name}_norm", _norm(features, rngs=rngs))
                channels = features
        features = height // 32 * (width // 32) * channels
        for name, (width, _) in self.hidden.items():
            setattr(self, name, _linear(features, width, rngs=rngs))
            features = width
        setattr(self, self.last_layer, _linear(features, num_classes, rngs=rngs))
        rates = [rate if dropout_rate is None else dropout_rate for _, rate in self.hidden.values()]
        self.dropouts = nnx.List(map(nnx.Dropout, rates))

    def _names_of(self, block: int) -> list[str]:
        """Names of the convolutions of a block; both are counted from 1."""
        return [f"conv{block}_{i}" for i in range(1, self.depths[block - 1] + 1)]

    def __call__(self, images: jax.Array, key: jax.Array | None = None) -> jax.Array:
        x = images
        for block in range(1, len(self.depths) + 1):
            for name in self._names_of(block):
                x = getattr(self, name)(x)
                if self.is_normalized:
                    x = getattr(self, f"{name}_norm")(x, use_running_average=key is None)
                x = nnx.relu(x)
            x = max_pool(x, (2, 2), strides=(2, 2))
        x = jnp.reshape(x, (x.shape[0], -1))
        for name, dropout, own in zip(self.hidden, self.dropouts, split_key(key, len(self.hidden)), strict=True):
            x = dropout(nnx.relu(getattr(self, name)(x)), deterministic=own is None, rngs=own)
        return getattr(self, self.last_layer)(x)


class VGGA(_VGG):
    """Configuration A: eight convolutions. For 224x224x3 images and 1000 classes it has 132,863,336 parameters."""

    depths = (1, 1, 2, 2, 2)


class VGG16(_VGG):
    """Configuration D: thirteen convolutions. For 224x224x3 images and 1000 classes it has 138,357,544 parameters."""

    depths = (2, 2, 3, 3, 3)


class VGG19(_VGG):
    """Configuration E: sixteen convolutions. For 224x224x3 images and 1000 classes it has 143,667,240 parameters."""

    depths = (2, 2, 4, 4, 4)


class VGGF(_VGG):
    """Configuration D without batch norm, whose last layer is a funnel: linear 512, ReLU, dropout .6, linear C.

    Convolutions, fc1 and fc2 have the names and shapes of VGG-16's, so its published weights fit them. For 224x224x3
    images and three classes it has 136,359,747 parameters.
    """

    last_layer = "head"
    depths = (2, 2, 3, 3, 3)
    is_normalized = False
    hidden: ClassVar = _VGG.hidden | {"funnel": (512, 0.6)}
