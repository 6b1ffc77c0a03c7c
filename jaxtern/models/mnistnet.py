"""The convolutional network of TensorFlow's tutorials for MNIST: two 5x5 convolutions, two linear layers."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from jaxtern.models.model import Model, unpack_image_shape
from jaxtern.models.pooling import max_pool

_initial = {
    "kernel_init": nnx.initializers.truncated_normal(0.1),  # cut off at two standard deviations
    "bias_init": nnx.initializers.constant(0.1),
}
_convolution = functools.partial(nnx.Conv, kernel_size=(5, 5), **_initial)
_linear = functools.partial(nnx.Linear, **_initial)
_pool = functools.partial(max_pool, window_shape=(2, 2), strides=(2, 2), padding="SAME")


class MnistNet(Model):
    """conv 5x5x32, max 2/2, conv 5x5x64, max 2/2, linear 1024, dropout, linear C; ReLU after all but the last.

    On 28x28x1 images with ten classes it has 3,274,634 parameters.
    """

    last_layer = "fc2"

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, *, dropout_rate: float = 0.5, rngs: nnx.Rngs):
        height, width, channels = unpack_image_shape(input_shape)
        features = -(-height // 4) * -(-width // 4) * 64
        self.conv1 = _convolution(channels, 32, rngs=rngs)
        self.conv2 = _convolution(32, 64, rngs=rngs)
        self.fc1 = _linear(features, 1024, rngs=rngs)
        self.fc2 = _linear(1024, num_classes, rngs=rngs)
        self.dropout = nnx.Dropout(dropout_rate)

    def __call__(self, images: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """float[B, H, W, C] images to float[B, num_classes] logits; with a key in training (see `Model`)."""
        x = _pool(nnx.relu(self.conv1(images)))
        x = _pool(nnx.relu(self.conv2(x)))
        x = nnx.relu(self.fc1(jnp.reshape(x, (x.shape[0], -1))))
        return self.fc2(self.dropout(x, deterministic=key is None, rngs=key))
