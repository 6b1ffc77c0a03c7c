"""ResNets have the layers, sizes, initial weights and shortcuts of He et al.'s."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx, traverse_util

from jaxtern.models import MODELS

SMALL = (8, 8, 3)


def pure(model: nnx.Module, kind: Any) -> dict[str, Any]:
    """Its variables of a kind, by their paths."""
    return traverse_util.flatten_dict(nnx.to_pure_dict(nnx.state(model, kind)), sep="/")


@pytest.fixture(scope="module")
def resnet20() -> nnx.Module:
    def create() -> Any:
        return nnx.split(MODELS["resnet_20"](SMALL, 10, rngs=nnx.Rngs(params=0)))

    return nnx.merge(*jax.jit(create)())


@pytest.mark.parametrize(
    ("name", "total", "shape", "num_classes"),
    [
        ("resnet_50", 25_557_032, (224, 224, 3), 1000),
        pytest.param("resnet_101", 44_549_160, (224, 224, 3), 1000, marks=pytest.mark.slow),
        pytest.param("resnet_152", 60_192_808, (224, 224, 3), 1000, marks=pytest.mark.slow),
    ],
)
def test_resnet_has_the_published_number_of_parameters(name: str, total: int, shape: tuple, num_classes: int):
    params = pure(nnx.eval_shape(lambda: MODELS[name](shape, num_classes, rngs=nnx.Rngs(params=0))), nnx.Param)
    assert sum(math.prod(leaf.shape) for leaf in params.values()) == total
    assert not any(path.startswith("conv") and path.endswith("bias") for path in params)


@pytest.mark.parametrize(("name", "n"), [("resnet_20", 3), ("resnet_56", 9)])
def test_resnet_for_cifar_has_6n_and_2_layers_and_shortcuts_without_weights(name: str, n: int):
    params = pure(nnx.eval_shape(lambda: MODELS[name]((32, 32, 3), 10, rngs=nnx.Rngs(params=0))), nnx.Param)
    assert sum(path.endswith("kernel") for path in params) == 6 * n + 2
    inner = sum((2 * n - 1) * width * width + width * max(16, width // 2) for width in (16, 32, 64))
    scales_and_biases = 2 * (16 + 2 * n * (16 + 32 + 64))
    total = 9 * (3 * 16 + inner) + scales_and_biases + 64 * 10 + 10
    assert sum(math.prod(leaf.shape) for leaf in params.values()) == total
    assert total == {"resnet_20": 269_722, "resnet_56": 853_018}[name]


@pytest.mark.slow
def test_resnet_starts_from_he_normal_kernels_and_norms_that_change_nothing(resnet20: nnx.Module):
    for path, leaf in pure(resnet20, nnx.Param).items():
        values = np.asarray(leaf, np.float64)
        if path == "fc/kernel":
            deviation = math.sqrt(1 / 64)
        elif path.endswith("kernel"):
            deviation = math.sqrt(2 / (9 * values.shape[-1]))
        else:
            np.testing.assert_array_equal(values, float(path.endswith("scale")))
            continue
        # As in the test of LeNet: five times the largest relative error of an estimate.
        assert abs(values.std() / deviation - 1) < 5 / math.sqrt(2 * values.size), path
    for path, leaf in pure(resnet20, nnx.BatchStat).items():
        np.testing.assert_array_equal(leaf, np.full(leaf.shape, float(path.endswith("var")), np.float32))


def test_resnet_for_cifar_gives_the_logits_of_its_layers_one_after_the_other(resnet20: nnx.Module):
    generator = np.random.default_rng(0)
    graph, params, moments = nnx.split(resnet20, nnx.Param, nnx.BatchStat)
    drawn = jax.tree.map(lambda x: generator.uniform(0.5, 1.5, x.shape).astype(np.float32), moments)
    images = generator.standard_normal((2, 7, 8, 3)).astype(np.float32)
    tensors = traverse_util.flatten_dict(nnx.to_pure_dict(nnx.merge_state(params, drawn)), sep="/")

    def layer(x: jax.Array, path: str, number: int, stride: int = 1) -> jax.Array:
        x = jax.lax.conv_general_dilated(
            x,
            tensors[f"{path}conv{number}/kernel"],
            (stride, stride),
            ((1, 1), (1, 1)),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        scale, bias, mean, var = (
            tensors[f"{path}norm{number}/{leaf}"].reshape(1, 1, 1, -1) for leaf in ("scale", "bias", "mean", "var")
        )
        return (x - mean) / jnp.sqrt(var + 1e-5) * scale + bias

    def logits(images: jax.Array) -> jax.Array:
        x = jnp.maximum(layer(images, "", 1), 0)
        for stage in (1, 2, 3):
            for block in (1, 2, 3):
                halves, path = stage > 1 and block == 1, f"stage{stage}/block{block}/"
                y = layer(jnp.maximum(layer(x, path, 1, 2 if halves else 1), 0), path, 2)
                if halves:
                    x = x[:, ::2, ::2]
                    x = jnp.concatenate([x, jnp.zeros_like(x)], axis=-1)
                x = jnp.maximum(x + y, 0)
        return x.mean(axis=(1, 2)) @ tensors["fc/kernel"] + tensors["fc/bias"].reshape(1, -1)

    ours = jax.jit(nnx.merge(graph, params, drawn))(images)
    np.testing.assert_allclose(ours, jax.jit(logits)(images), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_resnet_in_training_moves_all_moments_and_hands_a_gradient_to_every_weight(resnet20: nnx.Module):
    generator = np.random.default_rng(1)
    images, labels = generator.standard_normal((4, *SMALL)).astype(np.float32), np.arange(4)
    graph, params, moments = nnx.split(resnet20, nnx.Param, nnx.BatchStat)

    @jax.jit
    def step(params: Any) -> tuple[Any, Any]:
        def loss(params: Any) -> tuple[jax.Array, Any]:
            model = nnx.merge(graph, params, moments, copy=True)
            logits = model(images, jax.random.key(0))
            value = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
            return value, nnx.state(model, nnx.BatchStat)

        return jax.grad(loss, has_aux=True)(params)

    gradients, moved = (traverse_util.flatten_dict(nnx.to_pure_dict(x), sep="/") for x in step(params))
    assert [path for path, gradient in gradients.items() if not np.any(gradient)] == []
    before = traverse_util.flatten_dict(nnx.to_pure_dict(moments), sep="/")
    assert [path for path in before if np.any(np.isclose(moved[path], before[path], rtol=1e-7, atol=1e-9))] == []
    own = resnet20.conv1(images)
    np.testing.assert_allclose(moved["norm1/mean"], own.mean(axis=(0, 1, 2)), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(moved["norm1/var"], own.var(axis=(0, 1, 2)), rtol=1e-3)


def test_resnet_in_evaluation_leaves_its_moments(resnet20: nnx.Module):
    graph, state = nnx.split(resnet20)

    @jax.jit
    def evaluate(state: Any) -> Any:
        model = nnx.merge(graph, state, copy=True)
        return model(jnp.ones((1, *SMALL))), nnx.state(model, nnx.BatchStat)

    moments = nnx.state(resnet20, nnx.BatchStat)
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, evaluate(state)[1], moments)))


@pytest.mark.parametrize("name", ["resnet_50", "resnet_20"])
def test_resnet_gives_logits_of_images_of_any_size(name: str):
    def logits(images: jax.Array) -> jax.Array:
        return MODELS[name]((33, 5, 4), 7, rngs=nnx.Rngs(params=0))(images)

    assert jax.eval_shape(logits, jax.ShapeDtypeStruct((2, 33, 5, 4), "float32")).shape == (2, 7)


@pytest.mark.slow
def test_resnet_for_imagenet_remembers_more_than_that_for_cifar():
    momenta = {}
    for name in ("resnet_50", "resnet_20"):
        model = nnx.eval_shape(lambda name=name: MODELS[name](SMALL, 10, rngs=nnx.Rngs(params=0)))
        norms = [module for _, module in nnx.iter_modules(model) if isinstance(module, nnx.BatchNorm)]
        momenta[name] = {(norm.momentum, norm.epsilon) for norm in norms}
    assert momenta == {"resnet_50": {(0.997, 1e-5)}, "resnet_20": {(0.9, 1e-5)}}
