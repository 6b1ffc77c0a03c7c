"""Inception v3 has the layers, sizes and initial weights of slim's, and an auxiliary head in training."""

import math
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx, traverse_util

from jaxtern.models import create_model
from jaxtern.models.inception import InceptionV3

pytestmark = pytest.mark.slow

SMALLEST = (75, 75, 3)


def create(shape: tuple[int, int, int] = SMALLEST, num_classes: int = 5) -> InceptionV3:
    model = create_model("inception_v3", shape, num_classes, seed=0)
    assert isinstance(model, InceptionV3)
    return model


def pure(model: nnx.Module, kind: Any) -> dict[str, Any]:
    """Its variables of a kind, by their paths."""
    return traverse_util.flatten_dict(nnx.to_pure_dict(nnx.state(model, kind)), sep="/")


@pytest.fixture(scope="module")
def inception() -> InceptionV3:
    return nnx.merge(*jax.jit(lambda: nnx.split(create()))())


def test_inception_has_the_parameters_of_torchvisions():
    params = pure(nnx.eval_shape(lambda: create((299, 299, 3), 1000)), nnx.Param)
    sizes = {path: math.prod(leaf.shape) for path, leaf in params.items()}
    channels = sum(size for path, size in sizes.items() if path.endswith("norm/bias"))
    assert channels == 18_112
    assert sum(sizes.values()) == 27_161_264
    trunk = {path: size for path, size in sizes.items() if not path.startswith("auxiliary")}
    scales = sum(size for path, size in trunk.items() if path.endswith("norm/scale"))
    assert sum(trunk.values()) - scales == 23_817_352  # as Keras's, which has none


def test_inception_starts_from_normal_kernels_cut_at_two_deviations(inception: InceptionV3):
    special = {"auxiliary/conv1/conv/kernel": 0.01, "auxiliary/fc/kernel": 0.001}
    params = pure(inception, nnx.Param)
    assert special.keys() <= params.keys()
    for path, leaf in params.items():
        values = np.asarray(leaf, np.float64).ravel()
        if not path.endswith("kernel"):
            np.testing.assert_array_equal(values, float(path.endswith("scale")))
            continue
        deviation = special.get(path, 0.1)
        assert 1.9 * deviation < np.abs(values).max() <= 2 * deviation * (1 + 1e-6)
        # As in the test of LeNet: five times the largest relative error of an estimate.
        assert abs(values.std() / (0.87962566 * deviation) - 1) < 5 / math.sqrt(2 * values.size), path


@pytest.mark.parametrize("shape", [(75, 101, 1), (299, 299, 3), (460, 300, 3)])
def test_inception_gives_logits_and_in_training_auxiliary_ones_too(shape: tuple[int, int, int]):
    images, key = jax.ShapeDtypeStruct((2, *shape), "float32"), jax.random.key(0)
    in_training = jax.eval_shape(lambda images: create(shape)(images, key), images)
    assert [leaf.shape for leaf in in_training] == [(2, 5), (2, 5)]
    assert jax.eval_shape(lambda images: create(shape)(images, None), images).shape == (2, 5)
    assert InceptionV3.auxiliary_weight == 0.4


def test_inception_moves_moments_and_hands_a_gradient_to_every_weight_in_training_alone(inception: InceptionV3):
    graph, params, moments = nnx.split(inception, nnx.Param, nnx.BatchStat)
    images = np.random.default_rng(0).uniform(-1, 1, (4, *SMALLEST)).astype(np.float32)

    @jax.jit
    def step(params: Any) -> tuple[Any, Any]:
        def loss(params: Any) -> tuple[jax.Array, Any]:
            model = nnx.merge(graph, params, moments, copy=True)
            both = model(images, jax.random.key(0))
            losses = [optax.softmax_cross_entropy_with_integer_labels(logits, np.arange(4)).mean() for logits in both]
            return losses[0] + model.auxiliary_weight * losses[1], nnx.state(model, nnx.BatchStat)

        return jax.grad(loss, has_aux=True)(params)

    gradients, moved = (traverse_util.flatten_dict(nnx.to_pure_dict(x), sep="/") for x in step(params))
    assert [path for path, gradient in gradients.items() if not np.any(gradient)] == []
    before = traverse_util.flatten_dict(nnx.to_pure_dict(moments), sep="/")
    assert [path for path in before if not np.any(moved[path] != before[path])] == []
    own = inception.Conv2d_1a_3x3.conv(images)
    np.testing.assert_allclose(moved["Conv2d_1a_3x3/norm/mean"], own.mean(axis=(0, 1, 2)), rtol=1e-2, atol=1e-4)

    @jax.jit
    def evaluate(params: Any) -> Any:
        model = nnx.merge(graph, params, moments, copy=True)
        return model(images), nnx.state(model, nnx.BatchStat)

    kept = evaluate(params)[1]
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, kept, moments)))


def test_inception_refuses_images_of_which_nothing_would_be_left():
    with pytest.raises(
        ValueError, match=r"input_shape=\(74, 299, 3\): must be .* height and width \(data.image_size\) 75 or more"
    ):
        create((74, 299, 3))
