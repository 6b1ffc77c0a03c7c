"""LeNet has the layers, sizes and initial weights of TernGrad's."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxtern.models import create_model

DEVIATIONS = {"conv1": 0.05, "conv2": 0.05, "fc1": 0.048, "fc2": 0.0767}
SHAPES = {"conv1": (5, 5, 1, 20), "conv2": (5, 5, 20, 50), "fc1": (2450, 500), "fc2": (500, 10)}


def weights(model: nnx.Module) -> dict[str, dict[str, jax.Array]]:
    return nnx.to_pure_dict(nnx.split(model, nnx.Param)[1])


@pytest.fixture(scope="module")
def lenet() -> nnx.Module:
    return create_model("lenet", (28, 28, 1), 10, seed=0)


def test_lenet_has_1256080_parameters_on_mnist(lenet: nnx.Module):
    assert sum(leaf.size for leaf in jax.tree.leaves(weights(lenet))) == 1_256_080


def test_lenet_has_the_layers_of_terngrad(lenet: nnx.Module):
    params = weights(lenet)
    assert {name: layer["kernel"].shape for name, layer in params.items()} == SHAPES
    for name, layer in params.items():
        assert layer["bias"].shape == SHAPES[name][-1:]
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}


def test_lenet_starts_from_normal_kernels_cut_at_two_deviations_and_zero_biases(lenet: nnx.Module):
    for name, layer in weights(lenet).items():
        kernel, deviation = np.asarray(layer["kernel"], np.float64).ravel(), DEVIATIONS[name]
        assert 1.9 * deviation < np.abs(kernel).max() <= 2 * deviation * (1 + 1e-6)
        # A normal cut at two deviations has .8796 of them left. An estimate from n values has a relative error below
        # 1 / sqrt(2 n): five of them, and as many for the mean.
        assert abs(kernel.std() / (0.87962566 * deviation) - 1) < 5 / math.sqrt(2 * kernel.size)
        assert abs(kernel.mean()) < 5 * deviation / math.sqrt(kernel.size)
        np.testing.assert_array_equal(layer["bias"], 0)


def test_lenet_gives_the_logits_of_its_layers_in_numpy(lenet: nnx.Module):
    images = np.random.default_rng(0).uniform(-1, 1, (2, 28, 28, 1)).astype(np.float32)
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), weights(lenet))

    def convolve(x: np.ndarray, layer: dict[str, np.ndarray]) -> np.ndarray:
        padded = np.pad(x, [(0, 0), (2, 2), (2, 2), (0, 0)])
        windows = np.lib.stride_tricks.sliding_window_view(padded, (5, 5), axis=(1, 2))
        return np.einsum("bhwcij,ijco->bhwo", windows, layer["kernel"]) + layer["bias"]

    def pool(x: np.ndarray) -> np.ndarray:
        batch, height, width, channels = x.shape
        return x.reshape(batch, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))

    x = pool(np.maximum(convolve(images.astype(np.float64), params["conv1"]), 0))
    x = pool(np.maximum(convolve(x, params["conv2"]), 0)).reshape(2, -1)
    x = np.maximum(x @ params["fc1"]["kernel"] + params["fc1"]["bias"], 0)
    expected = x @ params["fc2"]["kernel"] + params["fc2"]["bias"]
    np.testing.assert_allclose(lenet(images), expected, rtol=1e-4, atol=1e-5)


def test_lenet_takes_small_images_and_other_numbers_of_classes():
    model = create_model("lenet", (8, 8, 3), 7, seed=0)
    assert model(jnp.zeros((3, 8, 8, 3))).shape == (3, 7)


def test_lenet_of_another_seed_has_other_weights_and_of_the_same_the_same():
    first, same, other = (weights(create_model("lenet", (8, 8, 1), 10, seed)) for seed in (1, 1, 2))
    for layer in first:
        np.testing.assert_array_equal(first[layer]["kernel"], same[layer]["kernel"])
        assert not np.any(first[layer]["kernel"] == other[layer]["kernel"])
