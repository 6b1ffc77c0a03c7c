"""Colours and crops on the device: what each does to a pixel, by which laws it draws, and that it keeps images apart.

The seeds are fixed. With others, a test of a law would fail by chance with a probability of ALPHA.
"""

import colorsys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxtern.data.preprocessing import color

ALPHA = 1e-6
COUNT = 2000  # images of one pixel or a few, to see what is drawn
OPERATIONS = {
    "crop": partial(color.random_crop, size=7),
    "flip": color.random_flip,
    "brightness": partial(color.random_brightness, limit=0.3),
    "contrast": partial(color.random_contrast, low=0.2, high=1.8),
    "saturation": partial(color.random_saturation, low=0.5, high=1.5),
    "hue": partial(color.random_hue, limit=0.2),
}


def keys_of(count: int, seed: int = 0) -> jax.Array:
    return jax.random.split(jax.random.key(seed), count)


def apply(operation: str, images: np.ndarray, seed: int = 0) -> np.ndarray:
    return np.asarray(jax.jit(OPERATIONS[operation])(images, keys_of(len(images), seed)))


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    """Of 11 by 10 pixels, in [0, 1)."""
    return np.random.default_rng(0).random((6, 11, 10, 3), np.float32)


@pytest.fixture(scope="module")
def pixels() -> np.ndarray:
    """One image of 2 by 2 pixels, many times: strong colours, but no saturation that would be cut off at 1."""
    image = [[[0.8, 0.4, 0.5], [0.3, 0.6, 0.5]], [[0.5, 0.45, 0.7], [0.6, 0.6, 0.4]]]
    return np.broadcast_to(np.array(image, np.float32), (COUNT, 2, 2, 3))


def to_hsv(images: np.ndarray) -> np.ndarray:
    """By colorsys, a pixel at a time."""
    hsv = [colorsys.rgb_to_hsv(*pixel) for pixel in images.reshape(-1, 3).astype(np.float64).tolist()]
    return np.array(hsv).reshape(images.shape)


def assert_uniform_between(low: float, high: float, values: np.ndarray) -> None:
    assert values.min() >= low - 1e-5
    assert values.max() <= high + 1e-5
    assert stats.kstest(values, stats.uniform(low, high - low).cdf).pvalue > ALPHA


def test_brightness_adds_one_uniform_number_to_an_image(pixels):
    added = apply("brightness", pixels) - pixels
    np.testing.assert_allclose(added, np.broadcast_to(added[:, :1, :1, :1], added.shape), atol=1e-6)
    assert_uniform_between(-0.3, 0.3, added[:, 0, 0, 0])


def test_contrast_stretches_channels_about_their_means_by_a_uniform_factor(pixels):
    mean = pixels.mean(axis=(1, 2), keepdims=True)
    changed = apply("contrast", pixels)
    factors = (changed - mean)[:, 0, 0, 0] / (pixels - mean)[:, 0, 0, 0]
    np.testing.assert_allclose(changed, mean + factors[:, None, None, None] * (pixels - mean), atol=1e-6)
    assert_uniform_between(0.2, 1.8, factors)


def test_saturation_is_that_of_hsv_times_a_uniform_factor(pixels):
    before, after = to_hsv(pixels[:1]), to_hsv(apply("saturation", pixels))
    factors = (after / before)[..., 1]
    np.testing.assert_allclose(factors, np.broadcast_to(factors[:, :1, :1], factors.shape), rtol=1e-4)
    np.testing.assert_allclose(after[..., [0, 2]], np.broadcast_to(before[..., [0, 2]], (COUNT, 2, 2, 2)), atol=1e-5)
    assert_uniform_between(0.5, 1.5, factors[:, 0, 0])


def test_saturation_ends_at_one():
    red = np.full((50, 1, 1, 3), [1.0, 0.1, 0.1], np.float32)
    saturation = to_hsv(apply("saturation", red))[..., 1]
    assert np.sum(saturation == 1.0) > 10
    assert saturation.min() < 0.9


def test_hue_moves_that_of_hsv_by_a_uniform_part_of_a_turn(pixels):
    before, after = to_hsv(pixels[:1]), to_hsv(apply("hue", pixels))
    moved = (after - before)[..., 0]
    moved -= np.round(moved)
    np.testing.assert_allclose(moved, np.broadcast_to(moved[:, :1, :1], moved.shape), atol=1e-5)
    np.testing.assert_allclose(after[..., 1:], np.broadcast_to(before[..., 1:], (COUNT, 2, 2, 2)), atol=1e-5)
    assert_uniform_between(-0.2, 0.2, moved[:, 0, 0])


@pytest.mark.parametrize("operation", ["saturation", "hue"])
def test_grey_stays_grey(operation: str):
    grey = np.linspace(0, 1, 50, dtype=np.float32).reshape(50, 1, 1, 1).repeat(3, axis=3)
    np.testing.assert_allclose(apply(operation, grey), grey, atol=1e-6)


def test_crop_takes_every_place_as_often():
    places = np.arange(100, dtype=np.uint8).reshape(1, 10, 10, 1)
    cropped = apply("crop", np.broadcast_to(places, (COUNT, 10, 10, 1)))
    assert cropped.shape == (COUNT, 7, 7, 1)
    assert cropped.dtype == np.uint8
    first = cropped[:, 0, 0, 0]
    top, left = first // 10, first % 10
    assert stats.chisquare(np.bincount(top * 4 + left, minlength=16)).pvalue > ALPHA
    for crop, row, column in zip(cropped[:50], top, left, strict=False):
        np.testing.assert_array_equal(crop, places[0, row : row + 7, column : column + 7])


def test_flip_mirrors_half_of_the_images():
    image = np.arange(12, dtype=np.float32).reshape(1, 2, 2, 3)
    flipped = apply("flip", np.broadcast_to(image, (COUNT, 2, 2, 3)))
    mirrored = np.all(flipped == image[:, :, ::-1], axis=(1, 2, 3))
    assert np.all(mirrored | np.all(flipped == image, axis=(1, 2, 3)))
    assert stats.binomtest(int(mirrored.sum()), COUNT).pvalue > ALPHA


def test_central_crop_is_the_middle():
    image = jnp.arange(7 * 8).reshape(1, 7, 8, 1)
    np.testing.assert_array_equal(color.central_crop(image, 4)[0, ..., 0], np.asarray(image)[0, 1:5, 2:6, 0])


def whiten_again(image: np.ndarray) -> np.ndarray:
    image = image.astype(np.float64)
    return (image - image.mean()) / max(image.std(), image.size**-0.5)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 255.0])
def test_whitening_equals_its_formula_in_double_precision(images, scale: float):
    scaled = images * np.float32(scale)
    whitened = np.asarray(jax.jit(color.whiten)(scaled))
    np.testing.assert_allclose(whitened, np.stack([whiten_again(image) for image in scaled]), atol=1e-5)
    if scale >= 1:
        np.testing.assert_allclose(whitened.mean(axis=(1, 2, 3)), 0, atol=1e-5)
        np.testing.assert_allclose(whitened.std(axis=(1, 2, 3)), 1, atol=1e-5)


@pytest.mark.parametrize("value", [0.0, 0.1, 255.0])
def test_whitening_of_a_constant_image_is_zero(images, value: float):
    np.testing.assert_allclose(jax.jit(color.whiten)(np.full_like(images, value)), 0, atol=1e-3)


@pytest.mark.few("crop", "hue")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_image_is_changed_alike_alone_and_in_any_batch(images, operation: str):
    function, keys = jax.jit(OPERATIONS[operation]), keys_of(6)
    together = np.asarray(function(images, keys))
    np.testing.assert_array_equal(np.asarray(function(images, keys)), together)
    np.testing.assert_array_equal(function(images[3:4], keys[3:4]), together[3:4])
    np.testing.assert_array_equal(function(images[::-1], keys[::-1]), together[::-1])
    others = np.asarray(function(images, keys_of(6, seed=1)))
    assert not np.array_equal(others, together)
