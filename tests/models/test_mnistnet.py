"""The MNIST net has the layers, sizes and initial weights of TensorFlow's tutorials."""

import math
from collections.abc import Callable

import jax
import numpy as np
from flax import nnx

SHAPES = {"conv1": (5, 5, 1, 32), "conv2": (5, 5, 32, 64), "fc1": (3136, 1024), "fc2": (1024, 10)}


def test_mnistnet_has_3274634_parameters_on_mnist(shapes_of: Callable):
    shapes = shapes_of("mnistnet", (28, 28, 1), 10)
    expected = {f"{name}/kernel": shape for name, shape in SHAPES.items()}
    assert shapes == expected | {f"{name}/bias": shape[-1:] for name, shape in SHAPES.items()}
    assert sum(map(math.prod, shapes.values())) == 3_274_634


def test_mnistnet_starts_from_deviations_and_biases_of_a_tenth(first_weights: Callable, assert_cut_normal: Callable):
    weights = first_weights(
        "mnistnet", (28, 28, 1), [f"{name}/{part}" for name in SHAPES for part in ("kernel", "bias")]
    )
    for name in SHAPES:
        assert_cut_normal(weights[f"{name}/kernel"], 0.1)
        np.testing.assert_array_equal(weights[f"{name}/bias"], np.float32(0.1))


def test_mnistnet_gives_the_logits_of_its_layers_one_after_the_other(filled: Callable, plain: type):
    graph, params, moments = filled("mnistnet", (13, 28, 1), 10)
    images = np.random.default_rng(2).standard_normal((2, 13, 28, 1), np.float32)
    x = images
    for name in ("conv1", "conv2"):
        x = plain.rectify(plain.convolve(x, params[name]["kernel"]), params[name])
        x = plain.pool(x, 2, 2, "SAME")
    x = plain.rectify(x.reshape(2, -1) @ params["fc1"]["kernel"], params["fc1"])
    expected = x @ params["fc2"]["kernel"] + params["fc2"]["bias"][None]
    found = jax.jit(lambda params: nnx.merge(graph, params, moments)(images))(params)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
