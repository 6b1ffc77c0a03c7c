"""The families of preprocessing, named after the models that introduced them.

Views of encoded images are cut on the host (`views`, `jaxtern.data.images`) and give uint8. The rest happens to whole
batches in the compiled step (`color`). Families without views take whole images, all of one shape.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxtern.data.preprocessing import color, views
from jaxtern.data.preprocessing.views import View

TrainView = Callable[[np.random.Generator, int, int, int], View]
EvaluationView = Callable[[int, int, int], View]

_IMAGENET_MEAN_OF_255 = np.array([[[[123.68, 116.78, 103.94]]]], np.float32)  # AlexNet's and VGG's
_IMAGENET_MEAN = np.array([[[[0.485, 0.456, 0.406]]]], np.float32)  # torchvision's, for values in [0, 1]
_IMAGENET_DEVIATION = np.array([[[[0.229, 0.224, 0.225]]]], np.float32)
_RGB = 3


@dataclass(frozen=True)
class Preprocessing:
    """The preprocessing of one family of models."""

    name: str  # of the family
    size: int | None  # default side of the model's input in pixels; None: images keep their size
    train_view: TrainView | None  # (generator, height, width, size) -> View, as `alexnet_view`; None: whole images
    evaluation_view: EvaluationView | None  # (height, width, size) -> View; None: whole images
    # (uint8[B, H, W, C], size) -> float32[B, size, size, C], for evaluation
    standardize: Callable[[jax.Array, int | None], jax.Array]
    # (uint8[B, H, W, C], keys [B], size) -> the same, for training; None: as `standardize`
    randomize: Callable[[jax.Array, jax.Array, int | None], jax.Array] | None = None

    def augment(self, images: jax.Array, keys: jax.Array, size: int | None) -> jax.Array:
        """uint8[B, H, W, C] to float32[B, size, size, C], for training. The same keys give the same bits."""
        return self.standardize(images, size) if self.randomize is None else self.randomize(images, keys, size)

    @property
    def takes_whole_images(self) -> bool:
        """Whether images need no view, so that a dataset of one shape may lie in memory as it is."""
        return self.train_view is None

    def output_shape(self, image_shape: tuple[int, ...] | None, size: int | None) -> tuple[int, ...]:
        """Height, width and channels of the model's input.

        Args:
          image_shape: of the dataset's images; None if it varies, which only families with views allow.
          size: requested side in pixels; None: the family's.

        Raises:
          ValueError: if such images cannot give this size.
        """
        if self.size is None and size is not None:
            raise ValueError(f"image_size={size}: preprocessing={self.name!r} leaves images as large as they are")
        size = self.size if size is None else size
        if size is not None and not self.takes_whole_images:
            return size, size, _RGB
        if image_shape is None:
            raise ValueError(f"preprocessing={self.name!r}: takes whole images, which must all have one shape")
        if size is None:
            return image_shape
        if size > min(image_shape[:2]):
            height, width = image_shape[:2]
            raise ValueError(f"image_size={size}: images of {height} by {width} pixels are smaller; reduce image_size")
        return size, size, image_shape[2]


def get_preprocessing(name: str) -> Preprocessing:
    """The preprocessing of images with this name; raises ValueError for an unknown one."""
    if name not in PREPROCESSINGS:
        raise ValueError(f"data.preprocessing={name!r}: must be one of {', '.join(PREPROCESSINGS)}, text")
    return PREPROCESSINGS[name]


def _to_unit_range(images: jax.Array, size: int | None) -> jax.Array:
    """Maps [0, 255] to [-1, 1]."""
    return images.astype(jnp.float32) / 127.5 - 1.0


def _subtract_mean(images: jax.Array, size: int | None) -> jax.Array:
    return images.astype(jnp.float32) - _IMAGENET_MEAN_OF_255


def _standardize_channels(images: jax.Array, size: int | None) -> jax.Array:
    images = images.astype(jnp.float32) / 255.0
    return (images - _IMAGENET_MEAN) / _IMAGENET_DEVIATION


def _augment_cifar10(images: jax.Array, keys: jax.Array, size: int | None) -> jax.Array:
    """Works on values up to 255, not 1, because the floor of whitening's divisor is meant for those."""
    crop, flip, brightness, contrast = color.split_keys(keys, 4)
    images = color.random_crop(images, crop, size or _CIFAR10_SIZE).astype(jnp.float32)
    images = color.random_flip(images, flip)
    images = color.random_brightness(images, brightness, 63.0)
    images = color.random_contrast(images, contrast, 0.2, 1.8)
    return color.whiten(images)


def _standardize_cifar10(images: jax.Array, size: int | None) -> jax.Array:
    return color.whiten(color.central_crop(images, size or _CIFAR10_SIZE).astype(jnp.float32))


def _augment_inception(images: jax.Array, keys: jax.Array, size: int | None) -> jax.Array:
    """Changes colours in the order of slim's distort_color, and like it clips only at the end."""
    brightness, saturation, hue, contrast = color.split_keys(keys, 4)
    images = images.astype(jnp.float32) / 255.0
    images = color.random_brightness(images, brightness, 32 / 255)
    images = color.random_saturation(images, saturation, 0.5, 1.5)
    images = color.random_hue(images, hue, 0.2)
    images = color.random_contrast(images, contrast, 0.5, 1.5)
    return jnp.clip(images, 0.0, 1.0) * 2.0 - 1.0


_CIFAR10_SIZE, _IMAGENET_SIZE = 24, 224

PREPROCESSINGS = {
    each.name: each
    for each in (
        Preprocessing("mnist", None, None, None, _to_unit_range),
        Preprocessing("cifar10", _CIFAR10_SIZE, None, None, _standardize_cifar10, _augment_cifar10),
        Preprocessing("alexnet", _IMAGENET_SIZE, views.alexnet_view, views.alexnet_central_view, _subtract_mean),
        Preprocessing("vgg", _IMAGENET_SIZE, views.vgg_view, views.central_view, _subtract_mean),
        Preprocessing(
            "inception",  # and GoogLeNet, and ResNet
            _IMAGENET_SIZE,
            views.inception_view,
            views.inception_central_view,
            _to_unit_range,
            _augment_inception,
        ),
        Preprocessing("vgg_f", _IMAGENET_SIZE, views.vgg_f_view, views.central_view, _standardize_channels),
    )
}
