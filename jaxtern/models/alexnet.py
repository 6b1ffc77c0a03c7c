"""AlexNet as TernGrad trains it, in two groups with batch norm; and AlexNet v2, in one group without."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from jaxtern.models.model import Model, split_key, unpack_image_shape
from jaxtern.models.normalization import BatchNorm, local_response_normalization
from jaxtern.models.pooling import max_pool

_normal = nnx.initializers.truncated_normal  # at two standard deviations
_tenth = nnx.initializers.constant(0.1)
_normalize = functools.partial(local_response_normalization, radius=2, bias=2.0, alpha=1e-4, beta=0.75)
_pool = functools.partial(max_pool, window_shape=(3, 3), strides=(2, 2), padding="VALID")


class AlexNet(Model):
    """Two groups of conv 11x11x48/4, LRN, max, conv 5x5x128, LRN, max; joined; 2 conv 3x3x192, each of both groups;
    grouped conv 3x3x192 and conv 3x3x128, max; linear 4096, dropout, linear 4096, dropout, linear C.

    Batch norm without a scale, then ReLU, follow each convolution, which has no bias. ReLU follows each linear layer
    but the last. The groups are separate tensors, so compressed gradients have a scale for each. For 224x224x3 images
    and 1000 classes it has 60,965,224 parameters (Krizhevsky et al. 2012; initial deviations and batch norm of Wen et
    al. 2017).
    """

    last_layer = "fc3"

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, *, dropout_rate: float = 0.5, rngs: nnx.Rngs):
        height, width, channels = unpack_image_shape(input_shape, least=57)
        features = 256 * _pooled_side(-(-height // 4)) * _pooled_side(-(-width // 4))
        self.conv1 = _Groups(channels, 48, 11, 4, rngs)
        self.conv2 = _Groups(48, 128, 5, 1, rngs)
        self.conv3 = _Groups(256, 192, 3, 1, rngs)
        self.conv4 = _Groups(192, 192, 3, 1, rngs)
        self.conv5 = _Groups(192, 128, 3, 1, rngs)
        hidden = functools.partial(nnx.Linear, kernel_init=_normal(0.005), bias_init=_tenth, rngs=rngs)
        self.fc1, self.fc2 = hidden(features, 4096), hidden(4096, 4096)
        self.fc3 = nnx.Linear(4096, num_classes, kernel_init=_normal(0.01), rngs=rngs)
        self.dropout = nnx.Dropout(dropout_rate)

    def __call__(self, images: jax.Array, key: jax.Array | None = None) -> jax.Array:
        trains = key is not None
        x = [_pool(_normalize(group)) for group in self.conv1([images, images], trains)]
        x = [_pool(_normalize(group)) for group in self.conv2(x, trains)]
        joined = jnp.concatenate(x, axis=-1)
        x = self.conv5(self.conv4(self.conv3([joined, joined], trains), trains), trains)
        flat = jnp.reshape(_pool(jnp.concatenate(x, axis=-1)), (images.shape[0], -1))
        for layer, own in zip((self.fc1, self.fc2), split_key(key, 2), strict=True):
            flat = self.dropout(nnx.relu(layer(flat)), deterministic=not trains, rngs=own)
        return self.fc3(flat)


class _Groups(nnx.Module):
    """Two convolutions side by side, each with its batch norm and ReLU."""

    def __init__(self, channels: int, features: int, size: int, stride: int, rngs: nnx.Rngs):
        options = {"strides": (stride, stride), "use_bias": False, "kernel_init": _normal(0.01), "rngs": rngs}
        convolution = functools.partial(nnx.Conv, channels, features, (size, size), **options)
        norm = functools.partial(BatchNorm, features, momentum=0.9997, epsilon=0.001, use_scale=False, rngs=rngs)
        self.first, self.second = convolution(), convolution()
        self.first_norm, self.second_norm = norm(), norm()

    def __call__(self, x: list[jax.Array], trains: bool) -> list[jax.Array]:
        layers = (self.first, self.first_norm), (self.second, self.second_norm)
        return [
            nnx.relu(norm(convolution(group), use_running_average=not trains))
            for (convolution, norm), group in zip(layers, x, strict=True)
        ]


class AlexNetV2(Model):
    """conv 11x11x64/4, max, conv 5x5x192, max, 2 conv 3x3x384, conv 3x3x256, max; conv 4096 over all positions,
    dropout, linear 4096, dropout, linear C; ReLU after all but the last.

    It has neither batch norm nor LRN. For 224x224x3 images, of which 5x5 positions remain, and 1000 classes it has
    50,303,912 parameters (Krizhevsky, One weird trick for parallelizing convolutional neural networks, 2014; initial
    weights, Xavier's in convolutions, and biases of Wen et al. 2017).
    """

    last_layer = "fc3"

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, *, dropout_rate: float = 0.5, rngs: nnx.Rngs):
        height, width, channels = unpack_image_shape(input_shape, least=67)
        window = _pooled_side((height - 11) // 4 + 1), _pooled_side((width - 11) // 4 + 1)
        initial = {"kernel_init": nnx.initializers.xavier_uniform(), "bias_init": _tenth, "rngs": rngs}
        self.conv1 = nnx.Conv(channels, 64, (11, 11), strides=(4, 4), padding="VALID", **initial)
        self.conv2 = nnx.Conv(64, 192, (5, 5), **initial)
        self.conv3 = nnx.Conv(192, 384, (3, 3), **initial)
        self.conv4 = nnx.Conv(384, 384, (3, 3), **initial)
        self.conv5 = nnx.Conv(384, 256, (3, 3), **initial)
        initial["kernel_init"] = _normal(0.005)
        self.fc1 = nnx.Conv(256, 4096, window, padding="VALID", **initial)
        self.fc2 = nnx.Linear(4096, 4096, **initial)
        self.fc3 = nnx.Linear(4096, num_classes, kernel_init=_normal(0.005), rngs=rngs)
        self.dropout = nnx.Dropout(dropout_rate)

    def __call__(self, images: jax.Array, key: jax.Array | None = None) -> jax.Array:
        x = _pool(nnx.relu(self.conv1(images)))
        x = _pool(nnx.relu(self.conv2(x)))
        for layer in (self.conv3, self.conv4, self.conv5):
            x = nnx.relu(layer(x))
        x = _pool(x)
        for layer, own in zip((self.fc1, self.fc2), split_key(key, 2), strict=True):
            x = self.dropout(nnx.relu(layer(x)), deterministic=own is None, rngs=own)
        return self.fc3(jnp.reshape(x, (x.shape[0], -1)))


def _pooled_side(side: int) -> int:
    """The side that three poolings leave of a side."""
    for _ in range(3):
        side = (side - 3) // 2 + 1
    return side
