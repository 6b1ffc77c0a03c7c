"""Augments and normalises batches of decoded images in the compiled step.

Images are float32[B, H, W, C]. Random choices for an image depend on its own key alone, not on the rest of the batch or
on where it is computed. Changes of colour are defined as in tf.image; those in HSV are dm_pix's. Values are clipped
only where a docstring says so.
"""

import math

import jax
import jax.numpy as jnp


def split_keys(keys: jax.Array, count: int) -> list[jax.Array]:
    """Splits the keys of a batch, one an image, into `count` such batches."""
    return list(jnp.moveaxis(jax.vmap(lambda key: jax.random.split(key, count))(keys), 1, 0))


def random_crop(images: jax.Array, keys: jax.Array, size: int) -> jax.Array:
    """[B, size, size, C] of the same dtype: a square at a uniformly random place in each image."""
    _, height, width, channels = images.shape
    places = jnp.array([height - size + 1, width - size + 1], jnp.int32)

    def crop(image: jax.Array, key: jax.Array) -> jax.Array:
        top, left = jax.random.randint(key, (2,), jnp.zeros_like(places), places)
        return jax.lax.dynamic_slice(image, (top, left, jnp.zeros_like(top)), (size, size, channels))

    return jax.vmap(crop)(images, keys)


def central_crop(images: jax.Array, size: int) -> jax.Array:
    """[B, size, size, C] of the same dtype: the middle, rounded towards the top and left."""
    top, left = ((length - size) // 2 for length in images.shape[1:3])
    return images[:, top : top + size, left : left + size]


def random_flip(images: jax.Array, keys: jax.Array) -> jax.Array:
    """Mirrors each image, left to right, with probability 1/2."""
    return jnp.where(_uniform(keys, 0.0, 1.0) < 0.5, images[:, :, ::-1], images)


def random_brightness(images: jax.Array, keys: jax.Array, limit: float) -> jax.Array:
    """x + d, with d uniform in [-limit, limit)."""
    return images + _uniform(keys, -limit, limit)


def random_contrast(images: jax.Array, keys: jax.Array, low: float, high: float) -> jax.Array:
    """m + f (x - m), with m the mean of each channel of the image and f uniform in [low, high)."""
    mean = _mean(images, axes=(1, 2))
    return mean + _uniform(keys, low, high) * (images - mean)


def random_saturation(images: jax.Array, keys: jax.Array, low: float, high: float) -> jax.Array:
    """Multiplies the HSV saturation of RGB in [0, 1] by a factor uniform in [low, high), to at most 1."""
    import dm_pix  # here and below, because few networks need it

    return jnp.asarray(dm_pix.adjust_saturation(images, _uniform(keys, low, high)[..., 0]))


def random_hue(images: jax.Array, keys: jax.Array, limit: float) -> jax.Array:
    """Shifts the HSV hue of RGB in [0, 1] by an amount, in turns, uniform in [-limit, limit)."""
    import dm_pix

    return jnp.asarray(dm_pix.adjust_hue(images, _uniform(keys, -limit, limit)[..., 0]))


def whiten(images: jax.Array) -> jax.Array:
    """(x - m) / max(s, 1 / sqrt(n)), with the mean m and deviation s of an image's n values, as tf.image has it."""
    centred = images - _mean(images, axes=(1, 2, 3))
    deviation = jnp.sqrt(_mean(centred * centred, axes=(1, 2, 3)))
    return centred / jnp.maximum(deviation, images[0].size ** -0.5)


def _uniform(keys: jax.Array, low: float, high: float) -> jax.Array:
    """float32[B, 1, 1, 1]: a uniform number for each image."""
    return jax.vmap(lambda key: jax.random.uniform(key, (1, 1, 1), jnp.float32, low, high))(keys)


def _mean(values: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """The mean over axes, kept with length 1; exact to 2^-14 of the largest value for 224 by 224 values or fewer.

    It adds integers, the largest as large as their count allows: floats are added in an order that depends on the
    size of the batch.
    """
    count = math.prod(values.shape[axis] for axis in axes)
    largest = jnp.max(jnp.abs(values), axis=axes, keepdims=True)
    unit = jnp.where(largest > 0, largest, 1.0) / 2.0 ** (30 - math.ceil(math.log2(count)))
    total = jnp.sum(jnp.rint(values / unit).astype(jnp.int32), axis=axes, keepdims=True)
    return total.astype(jnp.float32) * (unit / count)
