"""CifarNet has the layers, sizes and initial weights of TernGrad's, and trains."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxtern.models import create_model

SHAPES = {"conv1": (5, 5, 3, 64), "conv2": (5, 5, 64, 64), "fc1": (2304, 384), "fc2": (384, 192), "fc3": (192, 10)}
DEVIATIONS = {"conv1": 0.05, "conv2": 0.05, "fc1": 0.04, "fc2": 0.04, "fc3": 1 / 192}
BIASES = {"conv1": 0.0, "conv2": 0.1, "fc1": 0.1, "fc2": 0.1, "fc3": 0.0}


def weights(model: nnx.Module) -> dict[str, dict[str, jax.Array]]:
    return nnx.to_pure_dict(nnx.split(model, nnx.Param)[1])


@pytest.fixture(scope="module")
def cifarnet() -> nnx.Module:
    return create_model("cifarnet", (24, 24, 3), 10, seed=0)


def test_cifarnet_has_1068298_parameters_on_crops_of_cifar(cifarnet: nnx.Module):
    assert sum(leaf.size for leaf in jax.tree.leaves(weights(cifarnet))) == 1_068_298


def test_cifarnet_has_the_layers_and_biases_of_terngrad(cifarnet: nnx.Module):
    params = weights(cifarnet)
    assert {name: layer["kernel"].shape for name, layer in params.items()} == SHAPES
    for name, layer in params.items():
        np.testing.assert_array_equal(layer["bias"], np.full(SHAPES[name][-1], BIASES[name], np.float32))


def test_cifarnet_starts_from_normal_kernels_cut_at_two_deviations(cifarnet: nnx.Module):
    for name, layer in weights(cifarnet).items():
        kernel, deviation = np.asarray(layer["kernel"], np.float64).ravel(), DEVIATIONS[name]
        assert 1.9 * deviation < np.abs(kernel).max() <= 2 * deviation * (1 + 1e-6)
        # As in the test of LeNet: five times the largest relative error of an estimate.
        assert abs(kernel.std() / (0.87962566 * deviation) - 1) < 5 / math.sqrt(2 * kernel.size)


def test_cifarnet_gives_logits_of_any_image_size_and_number_of_classes(cifarnet: nnx.Module):
    assert cifarnet(jnp.zeros((2, 24, 24, 3))).shape == (2, 10)
    assert create_model("cifarnet", (13, 9, 1), 7, seed=0)(jnp.zeros((3, 13, 9, 1))).shape == (3, 7)


@pytest.mark.slow
def test_cifarnet_learns_a_batch_by_heart():
    model = create_model("cifarnet", (8, 8, 3), 4, seed=0)
    images = np.random.default_rng(0).standard_normal((8, 8, 8, 3)).astype(np.float32)
    labels = np.arange(8) % 4
    graph, params = nnx.split(model, nnx.Param)
    optimizer = optax.adam(3e-3)

    @jax.jit
    def step(params, state):
        def loss(params):
            logits = nnx.merge(graph, params)(images)
            return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    state, losses = optimizer.init(params), []
    for _ in range(25):
        params, state, value = step(params, state)
        losses.append(float(value))
    assert losses[0] == pytest.approx(math.log(4), abs=0.1)
    assert losses[-1] < 0.1
