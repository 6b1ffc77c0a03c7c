"""LeNet as TernGrad trains it: two 5x5 convolutions, two linear layers."""

import jax
import jax.numpy as jnp
from flax import nnx

from jaxtern.models.model import Model, unpack_image_shape
from jaxtern.models.pooling import max_pool

_normal = nnx.initializers.truncated_normal  # cut off at two standard deviations


class LeNet(Model):
    """conv 5x5x20, max 2/2, conv 5x5x50, max 2/2, linear 500, linear C; ReLU after all but the last.

    On 28x28x1 images with ten classes it has 1,256,080 parameters (LeCun et al. 1998; widths and initial deviations of
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
        """float[B, H, W, C] images in [-1, 1] to float[B, num_classes] logits, in training as in evaluation."""
        x = max_pool(nnx.relu(self.conv1(images)), (2, 2), strides=(2, 2))
        x = max_pool(nnx.relu(self.conv2(x)), (2, 2), strides=(2, 2))
        x = jnp.reshape(x, (x.shape[0], -1))
        return self.fc2(nnx.relu(self.fc1(x)))
