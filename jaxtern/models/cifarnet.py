"""CifarNet as TernGrad trains it: two 5x5 convolutions with local response normalisation, three linear layers."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from jaxtern.models.model import Model, unpack_image_shape
from jaxtern.models.normalization import local_response_normalization
from jaxtern.models.pooling import max_pool

_normal = nnx.initializers.truncated_normal  # cut off at two standard deviations
_tenth = nnx.initializers.constant(0.1)
_normalize = functools.partial(local_response_normalization, radius=4, bias=1.0, alpha=0.001 / 9, beta=0.75)
_pool = functools.partial(max_pool, window_shape=(3, 3), strides=(2, 2), padding="SAME")


class CifarNet(Model):
    """conv 5x5x64, max 3/2, LRN, conv 5x5x64, LRN, max 3/2, linear 384, linear 192, linear C; ReLU after all but
    the last.

    On 24x24x3 images with ten classes it has 1,068,298 parameters (Krizhevsky's cuda-convnet; widths, deviations and
    biases of Wen et al. 2017, where only the kernels of fc1 and fc2 are decayed).
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
        """float[B, H, W, C] images to float[B, num_classes] logits, in training as in evaluation."""
        x = _normalize(_pool(nnx.relu(self.conv1(images))))
        x = _pool(_normalize(nnx.relu(self.conv2(x))))
        x = jnp.reshape(x, (x.shape[0], -1))
        return self.fc3(nnx.relu(self.fc2(nnx.relu(self.fc1(x)))))
