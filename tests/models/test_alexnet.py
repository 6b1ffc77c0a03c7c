"""AlexNet has the layers, sizes and initial weights of TernGrad's, its batch norm and dropout."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxtern.models.alexnet import AlexNet
from jaxtern.models.normalization import local_response_normalization

# Of either group: window, channels in and out.
CONVOLUTIONS = {
    "conv1": (11, 3, 48),
    "conv2": (5, 48, 128),
    "conv3": (3, 256, 192),
    "conv4": (3, 192, 192),
    "conv5": (3, 192, 128),
}
LINEARS = {"fc1": (9216, 4096, 0.005, 0.1), "fc2": (4096, 4096, 0.005, 0.1), "fc3": (4096, 1000, 0.01, 0.0)}


def create(side: int = 64, num_classes: int = 7, **options) -> AlexNet:
    return AlexNet((side, side, 3), num_classes, **options, rngs=nnx.Rngs(params=0))


@pytest.fixture(scope="module")
def alexnet() -> AlexNet:
    return create()


def test_alexnet_has_the_parameters_of_its_table():
    model = nnx.eval_shape(lambda: create(224, 1000))
    params = nnx.to_pure_dict(nnx.split(model, nnx.Param, ...)[1])
    total = 0
    for name, (size, channels, features) in CONVOLUTIONS.items():
        for group in ("first", "second"):
            assert {part: leaf.shape for part, leaf in params[name][group].items()} == {
                "kernel": (size, size, channels, features)
            }
            assert {part: leaf.shape for part, leaf in params[name][f"{group}_norm"].items()} == {"bias": (features,)}
            total += size * size * channels * features + features
    for name, (inputs, outputs, _, _) in LINEARS.items():
        assert params[name]["kernel"].shape == (inputs, outputs)
        total += inputs * outputs + outputs
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params)) == total == 60_965_224


@pytest.mark.slow
def test_alexnet_starts_from_normal_kernels_cut_at_two_deviations(alexnet: AlexNet):
    params = nnx.to_pure_dict(nnx.split(alexnet, nnx.Param, ...)[1])
    groups = [(params[name][group], 0.01, None) for name in CONVOLUTIONS for group in ("first", "second")]
    for layer, deviation, bias in groups + [(params[name], *LINEARS[name][2:]) for name in LINEARS]:
        kernel = np.asarray(layer["kernel"], np.float64).ravel()
        assert 1.9 * deviation < np.abs(kernel).max() <= 2 * deviation * (1 + 1e-6)
        # As in the test of LeNet: five times the largest relative error of an estimate.
        assert abs(kernel.std() / (0.87962566 * deviation) - 1) < 5 / math.sqrt(2 * kernel.size)
        if bias is not None:
            np.testing.assert_array_equal(layer["bias"], np.full(layer["bias"].shape, bias, np.float32))


@pytest.mark.slow
def test_alexnet_pools_to_six_by_six_and_gives_logits(alexnet: AlexNet):
    def logits(images: jax.Array) -> jax.Array:
        return create(224, 1000)(images)

    assert jax.eval_shape(logits, jax.ShapeDtypeStruct((2, 224, 224, 3), "float32")).shape == (2, 1000)
    assert alexnet(jnp.zeros((2, 64, 64, 3))).shape == (2, 7)


@pytest.mark.slow
def test_alexnet_gives_the_logits_of_its_layers_one_after_the_other(alexnet: AlexNet):
    images = jax.random.normal(jax.random.key(0), (2, 64, 64, 3))
    params = nnx.to_pure_dict(nnx.split(alexnet, nnx.Param, ...)[1])

    def convolve(x: jax.Array, name: str, group: str, stride: int = 1) -> jax.Array:
        kernel = params[name][group]["kernel"]
        x = jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.maximum(x / math.sqrt(1 + 0.001), 0)  # batch norm whose moments are 0 and 1

    def pool(x: jax.Array) -> jax.Array:
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "VALID")

    def normalize(x: jax.Array) -> jax.Array:
        return local_response_normalization(x, radius=2, bias=2.0, alpha=1e-4, beta=0.75)

    groups = []
    for group in ("first", "second"):
        x = pool(normalize(convolve(images, "conv1", group, stride=4)))
        groups.append(pool(normalize(convolve(x, "conv2", group))))
    joined = jnp.concatenate(groups, axis=-1)
    groups = [convolve(joined, "conv3", group) for group in ("first", "second")]
    for name in ("conv4", "conv5"):
        groups = [convolve(x, name, group) for x, group in zip(groups, ("first", "second"), strict=True)]
    x = pool(jnp.concatenate(groups, axis=-1)).reshape(2, -1)
    for name in ("fc1", "fc2"):
        x = jnp.maximum(x @ params[name]["kernel"] + params[name]["bias"][None], 0)
    expected = x @ params["fc3"]["kernel"] + params["fc3"]["bias"][None]
    np.testing.assert_allclose(alexnet(images), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_alexnet_in_training_remembers_its_batches_alike():
    model, moments = create(57, dropout_rate=0.0), []
    for seed, shift in ((1, 1.0), (2, -2.0)):
        images = 3 * jax.random.normal(jax.random.key(seed), (4, 57, 57, 3)) + shift
        own = model.conv1.first(images)
        moments.append((own.mean(axis=(0, 1, 2)), own.var(axis=(0, 1, 2))))
        model(images, jax.random.key(0))
    for found, (first, second) in zip(
        (model.conv1.first_norm.mean, model.conv1.first_norm.var), zip(*moments, strict=True), strict=True
    ):
        np.testing.assert_allclose(found[...], (0.9997 * first + second) / 1.9997, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_alexnet_drops_in_training_alone_and_by_its_key(alexnet: AlexNet):
    images = jax.random.normal(jax.random.key(2), (2, 64, 64, 3))
    np.testing.assert_array_equal(alexnet(images), alexnet(images))
    graph, state = nnx.split(alexnet)
    first, same, other = (nnx.merge(graph, state)(images, jax.random.key(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    assert np.all(first != other)


V2_SHAPES = {
    "conv1": (11, 11, 3, 64),
    "conv2": (5, 5, 64, 192),
    "conv3": (3, 3, 192, 384),
    "conv4": (3, 3, 384, 384),
    "conv5": (3, 3, 384, 256),
    "fc1": (5, 5, 256, 4096),
    "fc2": (4096, 4096),
    "fc3": (4096, 1000),
}


def test_alexnet_v2_has_the_parameters_of_its_table(shapes_of: Callable):
    shapes = shapes_of("alexnet_v2", (224, 224, 3), 1000)
    expected = {f"{name}/kernel": shape for name, shape in V2_SHAPES.items()}
    assert shapes == expected | {f"{name}/bias": shape[-1:] for name, shape in V2_SHAPES.items()}
    assert sum(map(math.prod, shapes.values())) == 50_303_912


@pytest.mark.slow
def test_alexnet_v2_starts_from_xaviers_convolutions_normal_linear_layers_and_tenths(
    first_weights: Callable, assert_xavier: Callable, assert_cut_normal: Callable
):
    kernels, biases = (
        ("conv1/kernel", "conv4/kernel", "fc1/kernel", "fc3/kernel"),
        [f"{name}/bias" for name in V2_SHAPES],
    )
    weights = first_weights("alexnet_v2", (67, 67, 3), [*kernels, *biases])
    for path in kernels[:2]:
        assert_xavier(weights[path])
    for path in kernels[2:]:
        assert_cut_normal(weights[path], 0.005)
    for path in biases:
        np.testing.assert_array_equal(weights[path], np.float32(0.0 if path == "fc3/bias" else 0.1))


def test_alexnet_v2_gives_the_logits_of_its_layers_one_after_the_other(filled: Callable, plain: type):
    graph, params, moments = filled("alexnet_v2", (67, 83, 3), 5)
    images = np.random.default_rng(2).standard_normal((2, 67, 83, 3), np.float32)

    def logits(params: dict, images: jax.Array) -> jax.Array:
        x = plain.convolve(images, params["conv1"]["kernel"], stride=4, padding="VALID")
        x = plain.pool(plain.rectify(x, params["conv1"]), 3, 2)
        x = plain.pool(plain.rectify(plain.convolve(x, params["conv2"]["kernel"]), params["conv2"]), 3, 2)
        for name in ("conv3", "conv4", "conv5"):
            x = plain.rectify(plain.convolve(x, params[name]["kernel"]), params[name])
        x = plain.pool(x, 3, 2).reshape(2, -1)
        x = plain.rectify(x @ params["fc1"]["kernel"].reshape(-1, 4096), params["fc1"])
        x = plain.rectify(x @ params["fc2"]["kernel"], params["fc2"])
        return x @ params["fc3"]["kernel"] + params["fc3"]["bias"][None]

    found = jax.jit(lambda params: nnx.merge(graph, params, moments)(images))(params)
    np.testing.assert_allclose(found, jax.jit(logits)(params, images), rtol=1e-4, atol=1e-4)
