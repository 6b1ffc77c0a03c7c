"""AlexNet as TernGrad trains it: two groups of convolutions with batch norm, three linear layers with dropout."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from jaxtern.models.normalization import local_response_normalization

_normal = nnx.initializers.truncated_normal  # cut off at two standard deviations
_normalize = functools.partial(local_response_normalization, radius=2, bias=2.0, alpha=1e-4, beta=0.75)
_pool = functools.partial(nnx.max_pool, window_shape=(3, 3), strides=(2, 2), padding="VALID")


class AlexNet(nnx.Module):
    """Two groups of conv 11x11x48/4, LRN, max, conv 5x5x128, LRN, max; joined; 2 conv 3x3x192, of which each sees all;
    grouped conv 3x3x192 and conv 3x3x128, max; linear 4096, dropout, linear 4096, dropout, linear C.

    Convolutions are followed by batch norm without a scale (and have no bias), then ReLU; linear layers but the last by
    ReLU. The groups are tensors of their own, so each has its own scale where gradients are compressed. On 224x224x3
    images with 1000 classes it has 60,965,224 parameters (Krizhevsky et al. 2012; initial deviations and batch norm of
    Wen et al. 2017).
    """

    last_layer = "fc3"

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        dropout_rate: float = 0.5,
        rngs: nnx.Rngs,
    ):
        height, width, channels = image_shape
        features = 256 * _side_of_features(height) * _side_of_features(width)
        if features <= 0:
            raise ValueError(f"image_shape={image_shape}: height and width must be 57 or more")
        self.conv1 = _Groups(channels, 48, 11, 4, rngs)
        self.conv2 = _Groups(48, 128, 5, 1, rngs)
        self.conv3 = _Groups(256, 192, 3, 1, rngs)
        self.conv4 = _Groups(192, 192, 3, 1, rngs)
        self.conv5 = _Groups(192, 128, 3, 1, rngs)
        hidden = functools.partial(
            nnx.Linear, kernel_init=_normal(0.005), bias_init=nnx.initializers.constant(0.1), rngs=rngs
        )
        self.fc1, self.fc2 = hidden(features, 4096), hidden(4096, 4096)
        self.fc3 = nnx.Linear(4096, num_classes, kernel_init=_normal(0.01), rngs=rngs)
        self.dropout = nnx.Dropout(dropout_rate)

    def __call__(self, images: jax.Array, dropout_key: jax.Array | None = None) -> jax.Array:
        """Images to logits.

        Args:
          images: float32[B, H, W, C].
          dropout_key: in training, where batch norm takes the moments of these images and updates its own; None: in
            evaluation, where it takes its own, and nothing is dropped.

        Returns:
          float32[B, num_classes] logits.
        """
        trains = dropout_key is not None
        keys = jax.random.split(dropout_key) if dropout_key is not None else (None, None)
        x = [_pool(_normalize(group)) for group in self.conv1([images, images], trains)]
        x = [_pool(_normalize(group)) for group in self.conv2(x, trains)]
        joined = jnp.concatenate(x, axis=-1)
        x = self.conv5(self.conv4(self.conv3([joined, joined], trains), trains), trains)
        flat = jnp.reshape(_pool(jnp.concatenate(x, axis=-1)), (images.shape[0], -1))
        for layer, key in zip((self.fc1, self.fc2), keys, strict=True):
            flat = self.dropout(nnx.relu(layer(flat)), deterministic=not trains, rngs=key)
        return self.fc3(flat)


class _Groups(nnx.Module):
    """Two convolutions side by side, each with its batch norm and ReLU."""

    def __init__(self, channels: int, features: int, size: int, stride: int, rngs: nnx.Rngs):
        def convolution() -> nnx.Conv:
            window, strides = (size, size), (stride, stride)
            options = {"strides": strides, "use_bias": False, "kernel_init": _normal(0.01)}
            return nnx.Conv(channels, features, window, **options, rngs=rngs)

        def norm() -> nnx.BatchNorm:
            return nnx.BatchNorm(features, momentum=0.9997, epsilon=0.001, use_scale=False, rngs=rngs)

        self.first, self.second = convolution(), convolution()
        self.first_norm, self.second_norm = norm(), norm()

    def __call__(self, x: list[jax.Array], trains: bool) -> list[jax.Array]:
        layers = (self.first, self.first_norm), (self.second, self.second_norm)
        return [
            nnx.relu(norm(convolution(group), use_running_average=not trains))
            for (convolution, norm), group in zip(layers, x, strict=True)
        ]


def _side_of_features(side: int) -> int:
    """Pixels that are left of so many, after a stride of 4 and three poolings."""
    side = -(-side // 4)
    for _ in range(3):
        side = (side - 3) // 2 + 1
    return max(side, 0)
