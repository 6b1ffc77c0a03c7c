"""Augmentation and normalisation of batches of decoded images, in the compiled step.

Images are float32[B, H, W, C]. What is random is a function of the image's own key, so that it depends neither on the
other images of a batch nor on where the batch is computed. Changes of colour are defined as in tf.image, those in HSV
are dm_pix's; nothing is clipped but where it says so.
"""

import math

import jax
import jax.numpy as jnp


def split_keys(keys: jax.Array, count: int) -> list[jax.Array]:
    """`count` batches of keys, each [B], from the batch of one key an image."""
    return list(jnp.moveaxis(jax.vmap(lambda key: jax.random.split(key, count))(keys), 1, 0))


def random_crop(images: jax.Array, keys: jax.Array, size: int) -> jax.Array:
    """[B, size, size, C] of the same dtype: a square of every image, every place in it as likely."""
    _, height, width, channels = images.shape
    places = jnp.array([height - size + 1, width - size + 1], jnp.int32)

    def crop(image: jax.Array, key: jax.Array) -> jax.Array:
        top, left = jax.random.randint(key, (2,), jnp.zeros_like(places), places)
        return jax.lax.dynamic_slice(image, (top, left, jnp.zeros_like(top)), (size, size, channels))

    return jax.vmap(crop)(images, keys)


def central_crop(images: jax.Array, size: int) -> jax.Array:
    """[B, size, size, C] of the same dtype: the middle; where that is between two pixels, the upper or left one."""
    top, left = ((length - size) // 2 for length in images.shape[1:3])
    return images[:, top : top + size, left : left + size]


def random_flip(images: jax.Array, keys: jax.Array) -> jax.Array:
    """Every image mirrored, left to right, with a probability of one half."""
    return jnp.where(_uniform(keys, 0.0, 1.0) < 0.5, images[:, :, ::-1], images)


def random_brightness(images: jax.Array, keys: jax.Array, limit: float) -> jax.Array:
    """x + d, d uniform in [-limit, limit)."""
    return images + _uniform(keys, -limit, limit)


def random_contrast(images: jax.Array, keys: jax.Array, low: float, high: float) -> jax.Array:
    """m + f (x - m), m the mean of each channel of the image, f uniform in [low, high)."""
    mean = _mean(images, axes=(1, 2))
    return mean + _uniform(keys, low, high) * (images - mean)


def random_saturation(images: jax.Array, keys: jax.Array, low: float, high: float) -> jax.Array:
    """RGB in [0, 1] with the saturation of HSV times a factor uniform in [low, high), at most 1."""
    import dm_pix  # here, as below: few networks need it

    return jnp.asarray(dm_pix.adjust_saturation(images, _uniform(keys, low, high)[..., 0]))


def random_hue(images: jax.Array, keys: jax.Array, limit: float) -> jax.Array:
    """RGB in [0, 1] with the hue of HSV, in turns, moved by an amount uniform in [-limit, limit)."""
    import dm_pix

    return jnp.asarray(dm_pix.adjust_hue(images, _uniform(keys, -limit, limit)[..., 0]))


def whiten(images: jax.Array) -> jax.Array:
    """(x - m) / max(s, 1 / sqrt(n)): m and s of all n values of the image, as tf.image.per_image_standardization."""
    centred = images - _mean(images, axes=(1, 2, 3))
    deviation = jnp.sqrt(_mean(centred * centred, axes=(1, 2, 3)))
    return centred / jnp.maximum(deviation, images[0].size ** -0.5)


def _uniform(keys: jax.Array, low: float, high: float) -> jax.Array:
    """float32[B, 1, 1, 1]: one number an image."""
    return jax.vmap(lambda key: jax.random.uniform(key, (1, 1, 1), jnp.float32, low, high))(keys)


def _mean(values: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """The mean over axes, which stay with length 1, to 2^-14 of the largest value for 224 by 224 of them, or finer.

    Compilers add floats in an order that depends on the size of the batch. So what is added are integers, of which the
    largest is as large as so many of them can be.
    """
    count = math.prod(values.shape[axis] for axis in axes)
    largest = jnp.max(jnp.abs(values), axis=axes, keepdims=True)
    unit = jnp.where(largest > 0, largest, 1.0) / 2.0 ** (30 - math.ceil(math.log2(count)))
    total = jnp.sum(jnp.rint(values / unit).astype(jnp.int32), axis=axes, keepdims=True)
    return total.astype(jnp.float32) * (unit / count)
