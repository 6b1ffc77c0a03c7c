"""Small networks: LeNet and CifarNet as TernGrad trains them, and the MNIST network of TensorFlow's tutorials."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from jaxtern.models.model import Model, unpack_image_shape
from jaxtern.models.normalization import local_response_normalization
from jaxtern.models.pooling import max_pool

_normal = nnx.initializers.truncated_normal  # at two standard deviations
_tenth = nnx.initializers.constant(0.1)
_pool2 = functools.partial(max_pool, window_shape=(2, 2), strides=(2, 2), padding="SAME")
_pool3 = functools.partial(max_pool, window_shape=(3, 3), strides=(2, 2), padding="SAME")
_normalize = functools.partial(local_response_normalization, radius=4, bias=1.0, alpha=0.001 / 9, beta=0.75)


class LeNet(Model):
    """conv 5x5x20, max 2/2, conv 5x5x50, max 2/2, linear 500, linear C; ReLU after all but the last.

    For 28x28x1 images and ten classes it has 1,256,080 parameters (LeCun et al. 1998; widths and initial deviations of
    Wen et al. 2017).
    """

    last_layer = "fc2"

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, *, rngs: nnx.Rngs):
        height, width, channels = unpack_image_shape(input_shape, least=4)
        features = (height // 4) * (width // 4) * 50
        self.conv1 = nnx.Conv(channels, 20, (5, 5), kernel_init=_normal(0.05), rngs=rngs)
        self.conv2 = nnx.Conv(20, 50, (5, 5), kernel_init=_normal(0.05), rngs=rngs)
        self.fc1 = nnx.Linear(features, 500, kernel_init=_normal(0.048), rngs=rngs)
        self.fc2 = nnx.Linear(500, num_classes, kernel_init=_normal(0.0767), rngs=rngs)

    def __call__(self, images: jax.Array, key: jax.Array | None = None) -> jax.Array:
        x = max_pool(nnx.relu(self.conv1(images)), (2, 2), strides=(2, 2))
        x = max_pool(nnx.relu(self.conv2(x)), (2, 2), strides=(2, 2))
        x = jnp.reshape(x, (x.shape[0], -1))
        return self.fc2(nnx.relu(self.fc1(x)))


class CifarNet(Model):
    """conv 5x5x64, max 3/2, LRN, conv 5x5x64, LRN, max 3/2, linear 384, linear 192, linear C; ReLU after all but
    the last.

    For 24x24x3 images and ten classes it has 1,068,298 parameters (Krizhevsky's cuda-convnet; widths, deviations and
    biases of Wen et al. 2017, who decay only the kernels of fc1 and fc2).
    """

    last_layer = "fc3"
    decayed = ("fc1/kernel", "fc2/kernel")

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, *, rngs: nnx.Rngs):
        height, width, channels = unpack_image_shape(input_shape)
        features = -(-height // 4) * -(-width // 4) * 64
        self.conv1 = nnx.Conv(channels, 64, (5, 5), kernel_init=_normal(0.05), rngs=rngs)
        self.conv2 = nnx.Conv(64, 64, (5, 5), kernel_init=_normal(0.05), bias_init=_tenth, rngs=rngs)
        self.fc1 = nnx.Linear(features, 384, kernel_init=_normal(0.04), bias_init=_tenth, rngs=rngs)
        self.fc2 = nnx.Linear(384, 192, kernel_init=_normal(0.04), bias_init=_tenth, rngs=rngs)
        self.fc3 = nnx.Linear(192, num_classes, kernel_init=_normal(1 / 192), rngs=rngs)

    def __call__(self, images: jax.Array, key: jax.Array | None = None) -> jax.Array:
        x = _normalize(_pool3(nnx.relu(self.conv1(images))))
        x = _pool3(_normalize(nnx.relu(self.conv2(x))))
        x = jnp.reshape(x, (x.shape[0], -1))
        return self.fc3(nnx.relu(self.fc2(nnx.relu(self.fc1(x)))))


class MnistNet(Model):
    """conv 5x5x32, max 2/2, conv 5x5x64, max 2/2, linear 1024, dropout, linear C; ReLU after all but the last.

    For 28x28x1 images and ten classes it has 3,274,634 parameters (TensorFlow's tutorials).
    """

    last_layer = "fc2"

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, *, dropout_rate: float = 0.5, rngs: nnx.Rngs):
        height, width, channels = unpack_image_shape(input_shape)
        features = -(-height // 4) * -(-width // 4) * 64
        initial = {"kernel_init": _normal(0.1), "bias_init": _tenth, "rngs": rngs}
        self.conv1, self.conv2 = nnx.Conv(channels, 32, (5, 5), **initial), nnx.Conv(32, 64, (5, 5), **initial)
        self.fc1, self.fc2 = nnx.Linear(features, 1024, **initial), nnx.Linear(1024, num_classes, **initial)
        self.dropout = nnx.Dropout(dropout_rate)

    def __call__(self, images: jax.Array, key: jax.Array | None = None) -> jax.Array:
        x = _pool2(nnx.relu(self.conv2(_pool2(nnx.relu(self.conv1(images))))))
        x = nnx.relu(self.fc1(jnp.reshape(x, (x.shape[0], -1))))
        return self.fc2(self.dropout(x, deterministic=key is None, rngs=key))
