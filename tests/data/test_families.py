"""Preprocessing by name: the formulas of evaluation, shapes, and images that do not know of each other."""

import jax
import numpy as np
import pytest

from jaxtern.data.images import render
from jaxtern.data.preprocessing import color
from jaxtern.data.preprocessing.families import PREPROCESSINGS, Preprocessing, get_preprocessing

WITH_VIEWS = [name for name, each in PREPROCESSINGS.items() if not each.takes_whole_images]


def batch(preprocessing: Preprocessing, count: int = 5) -> np.ndarray:
    """Images as they reach the device: 32 pixels a side, of RGB; MNIST's have one channel."""
    channels = 1 if preprocessing.name == "mnist" else 3
    return np.random.default_rng(1).integers(0, 256, (count, 32, 32, channels), np.uint8)


def side(preprocessing: Preprocessing) -> int | None:
    return {"mnist": None, "cifar10": 24}.get(preprocessing.name, 32)


def keys_of(count: int) -> jax.Array:
    return jax.random.split(jax.random.key(4), count)


def augment(name: str, images: np.ndarray, keys: jax.Array) -> np.ndarray:
    preprocessing = get_preprocessing(name)
    return np.asarray(jax.jit(preprocessing.augment, static_argnums=2)(images, keys, side(preprocessing)))


def standardize(name: str, images: np.ndarray) -> np.ndarray:
    preprocessing = get_preprocessing(name)
    return np.asarray(jax.jit(preprocessing.standardize, static_argnums=1)(images, side(preprocessing)))


def test_preprocessing_of_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"^data.preprocessing='resnet': must be one of mnist, cifar10, alexnet, "):
        get_preprocessing("resnet")


@pytest.mark.parametrize("name", PREPROCESSINGS)
def test_preprocessing_gives_the_shape_it_tells(name: str):
    preprocessing = get_preprocessing(name)
    images = batch(preprocessing)
    expected = (5, *preprocessing.output_shape(images.shape[1:], side(preprocessing)))
    for result in (augment(name, images, keys_of(5)), standardize(name, images)):
        assert result.shape == expected
        assert result.dtype == np.float32


@pytest.mark.parametrize("name", PREPROCESSINGS)
def test_preprocessing_treats_an_image_alike_alone_and_in_any_batch(name: str):
    """To the last bit, but for the colours of Inception: how their many steps are joined, and rounded, is a shape's."""
    images, keys = batch(get_preprocessing(name)), keys_of(5)
    together = augment(name, images, keys)
    np.testing.assert_array_equal(augment(name, images, keys), together)
    rounding = 1e-6 if name == "inception" else 0
    np.testing.assert_allclose(augment(name, images[2:3], keys[2:3]), together[2:3], rtol=0, atol=rounding)
    np.testing.assert_array_equal(augment(name, images[::-1], keys[::-1]), together[::-1])
    np.testing.assert_array_equal(standardize(name, images[2:3]), standardize(name, images)[2:3])


@pytest.mark.parametrize("name", ["cifar10", "inception"])
def test_preprocessing_with_other_keys_augments_differently(name: str):
    image = np.repeat(batch(get_preprocessing(name), 1), 5, axis=0)
    augmented = augment(name, image, keys_of(5)).reshape(5, -1)
    assert len(np.unique(augmented, axis=0)) == 5


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cifar10", {"crop": (24,), "flip": (), "brightness": (63.0,), "contrast": (0.2, 1.8)}),
        (
            "inception",
            {"brightness": (32 / 255,), "saturation": (0.5, 1.5), "hue": (0.2,), "contrast": (0.5, 1.5)},
        ),
    ],
)
def test_preprocessing_draws_within_the_published_ranges_in_their_order(monkeypatch, name: str, expected: dict):
    drawn = {}

    def spy(what: str):
        function = getattr(color, f"random_{what}")

        def call(images: jax.Array, keys: jax.Array, *ranges: float) -> jax.Array:
            drawn[what] = ranges
            return function(images, keys, *ranges)

        return call

    for what in ("crop", "flip", "brightness", "contrast", "saturation", "hue"):
        monkeypatch.setattr(color, f"random_{what}", spy(what))
    preprocessing = get_preprocessing(name)
    jax.eval_shape(lambda keys: preprocessing.augment(batch(preprocessing), keys, side(preprocessing)), keys_of(5))
    assert list(drawn.items()) == list(expected.items())


def test_mnist_and_inception_span_minus_one_to_one():
    values = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1)
    for name, images in (("mnist", values), ("inception", values.repeat(3, axis=3))):
        np.testing.assert_allclose(standardize(name, images), images / 127.5 - 1, rtol=0, atol=2e-7)
    np.testing.assert_array_equal(augment("mnist", values, keys_of(1)), standardize("mnist", values))


def test_inception_is_augmented_within_minus_one_and_one():
    augmented = augment("inception", batch(get_preprocessing("inception"), 50), keys_of(50))
    assert augmented.min() == -1
    assert augmented.max() == 1


@pytest.mark.parametrize("name", ["alexnet", "vgg"])
def test_alexnet_and_vgg_subtract_the_mean_exactly(name: str):
    images = batch(get_preprocessing(name))
    expected = images.astype(np.float32) - np.array([123.68, 116.78, 103.94], np.float32)
    np.testing.assert_array_equal(standardize(name, images), expected)
    np.testing.assert_array_equal(augment(name, images, keys_of(5)), expected)


def test_vgg_f_normalizes_channels():
    images = batch(get_preprocessing("vgg_f"))
    expected = (images / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(standardize("vgg_f", images), expected, atol=2e-6)
    np.testing.assert_array_equal(augment("vgg_f", images, keys_of(5)), standardize("vgg_f", images))


def test_cifar10_is_evaluated_on_the_white_middle():
    images = batch(get_preprocessing("cifar10"))
    middle = images[:, 4:28, 4:28].astype(np.float64)
    mean, deviation = (getattr(middle, what)(axis=(1, 2, 3), keepdims=True) for what in ("mean", "std"))
    np.testing.assert_allclose(standardize("cifar10", images), (middle - mean) / deviation, atol=1e-5)


def test_cifar10_is_augmented_to_a_white_crop():
    """Brightness and contrast leave each channel's values where they are on a line, of the same slope for all three."""
    images = batch(get_preprocessing("cifar10"), 20)
    augmented = augment("cifar10", images, keys_of(20))
    np.testing.assert_allclose(augmented.mean(axis=(1, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(augmented.std(axis=(1, 2, 3)), 1, atol=1e-5)
    for image, result in zip(images, augmented, strict=True):
        crops = np.lib.stride_tricks.sliding_window_view(image, (24, 24), axis=(0, 1)).transpose(0, 1, 3, 4, 2)
        candidates = np.concatenate([crops, crops[:, :, :, ::-1]]).reshape(-1, 576, 3).astype(np.float64)
        candidates -= candidates.mean(axis=1, keepdims=True)
        target = (result - result.mean(axis=(0, 1))).reshape(576, 3)
        slopes = (candidates * target).sum(axis=(1, 2)) / (candidates**2).sum(axis=(1, 2))
        errors = np.abs(target - slopes[:, None, None] * candidates).max(axis=(1, 2))
        assert errors.min() < 1e-4
        assert slopes[errors.argmin()] > 0


@pytest.mark.parametrize("name", WITH_VIEWS)
def test_preprocessing_with_views_takes_any_image_to_its_size(name: str):
    preprocessing = get_preprocessing(name)
    for height, width in ((40, 57), (1, 9)):
        image = np.random.default_rng(2).integers(0, 256, (height, width, 1), np.uint8)
        train_view, evaluation_view = preprocessing.train_view, preprocessing.evaluation_view
        assert train_view is not None
        assert evaluation_view is not None
        drawn = train_view(np.random.default_rng(0), height, width, 32)
        for view in (drawn, evaluation_view(height, width, 32)):
            assert render(image, view, 32, 3).shape == (32, 32, 3)
    assert preprocessing.output_shape(None, None) == (224, 224, 3)
    assert preprocessing.output_shape((40, 57, 1), 32) == (32, 32, 3)


@pytest.mark.parametrize(
    ("name", "image_shape", "size", "words"),
    [
        ("mnist", (28, 28, 1), 24, "size=24: preprocessing='mnist'"),
        ("mnist", None, None, "preprocessing='mnist': takes whole images"),
        ("cifar10", None, None, "preprocessing='cifar10': takes whole images"),
        ("cifar10", (32, 20, 3), None, "size=24: images of 32 by 20 pixels"),
    ],
)
def test_preprocessing_refuses_a_size_that_images_cannot_give(name: str, image_shape, size: int | None, words: str):
    with pytest.raises(ValueError, match="=") as caught:
        get_preprocessing(name).output_shape(image_shape, size)
    assert words in str(caught.value)


def test_preprocessing_of_whole_images_keeps_their_shape():
    assert get_preprocessing("mnist").output_shape((28, 28, 1), None) == (28, 28, 1)
    assert get_preprocessing("cifar10").output_shape((32, 32, 3), None) == (24, 24, 3)
    assert get_preprocessing("cifar10").output_shape((40, 32, 1), 32) == (32, 32, 1)
