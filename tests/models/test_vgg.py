"""VGG has the published numbers of parameters, and the layers, initial weights and batch norm of TernGrad's."""

import math
from collections.abc import Callable

import jax
import numpy as np
import pytest
from flax import nnx

DEPTHS = {"vgg_a": (1, 1, 2, 2, 2), "vgg_16": (2, 2, 3, 3, 3), "vgg_19": (2, 2, 4, 4, 4), "vgg_f": (2, 2, 3, 3, 3)}
# Torchvision's vgg11, vgg16 and vgg19 without batch norm. The biases of batch norm without scales are as many as those
# of the convolutions that it follows, which have none then.
PUBLISHED = {"vgg_a": 132_863_336, "vgg_16": 138_357_544, "vgg_19": 143_667_240}
HEAD, FUNNEL = 4096 * 1000 + 1000, 4096 * 512 + 512 + 512 * 1000 + 1000


def names_of(name: str) -> list[str]:
    """Of the convolutions, in order."""
    return [f"conv{block}_{i}" for block, depth in enumerate(DEPTHS[name], 1) for i in range(1, depth + 1)]


@pytest.mark.parametrize("name", PUBLISHED)
def test_vgg_has_the_published_number_of_parameters(name: str, shapes_of: Callable):
    shapes = shapes_of(name, (224, 224, 3), 1000)
    assert sum(map(math.prod, shapes.values())) == PUBLISHED[name]
    assert all(shapes[f"{layer}_norm/bias"] == shapes[f"{layer}/kernel"][-1:] for layer in names_of(name))
    assert not any(path.endswith("scale") or (path.startswith("conv") and path.endswith("_1/bias")) for path in shapes)


def test_vgg_f_is_vgg_16_with_a_funnel_for_a_head(shapes_of: Callable):
    funnel, whole = (shapes_of(name, (224, 224, 3), 1000) for name in ("vgg_f", "vgg_16"))
    assert sum(map(math.prod, funnel.values())) == PUBLISHED["vgg_16"] - HEAD + FUNNEL
    shared = [f"{name}/kernel" for name in (*names_of("vgg_16"), "fc1", "fc2")]
    assert {path: funnel[path] for path in shared} == {path: whole[path] for path in shared}
    assert all(funnel[f"{name}/bias"] == whole[f"{name}_norm/bias"] for name in names_of("vgg_16"))
    assert (funnel["funnel/kernel"], funnel["head/kernel"]) == ((4096, 512), (512, 1000))
    assert not any(path.startswith("fc3") or "norm" in path for path in funnel)


@pytest.mark.parametrize("name", ["vgg_a", "vgg_f"])
def test_vgg_starts_from_xaviers_kernels_and_zero_biases(
    name: str, shapes_of: Callable, first_weights: Callable, assert_xavier: Callable
):
    kernels = ["conv1_1/kernel", "conv4_2/kernel", "fc1/kernel", "fc3/kernel" if name == "vgg_a" else "funnel/kernel"]
    biases = [path for path in shapes_of(name, (32, 32, 3), 10) if path.endswith("bias")]
    weights = first_weights(name, (32, 32, 3), [*kernels, *biases])
    for path in kernels:
        assert_xavier(weights[path])
    for path in biases:
        np.testing.assert_array_equal(weights[path], 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vgg_a", "vgg_f"])
def test_vgg_gives_the_logits_of_its_layers_one_after_the_other(name: str, filled: Callable, plain: type):
    graph, params, moments = filled(name, (32, 64, 3), 5)
    images = np.random.default_rng(2).standard_normal((2, 32, 64, 3), np.float32)

    def logits(params: dict, images: jax.Array) -> jax.Array:
        x = images
        for layer in names_of(name):
            if layer.endswith("_1") and layer != "conv1_1":
                x = plain.pool(x, 2, 2)
            x = plain.convolve(x, params[layer]["kernel"])
            if name == "vgg_a":
                x = plain.normalize(x, moments[f"{layer}_norm"])
            x = plain.rectify(x, params[f"{layer}_norm" if name == "vgg_a" else layer])
        x = plain.pool(x, 2, 2).reshape(2, -1)
        *hidden, last = ("fc1", "fc2", "fc3") if name == "vgg_a" else ("fc1", "fc2", "funnel", "head")
        for layer in hidden:
            x = plain.rectify(x @ params[layer]["kernel"], params[layer])
        return x @ params[last]["kernel"] + params[last]["bias"][None]

    found = jax.jit(lambda params: nnx.merge(graph, params, moments)(images))(params)
    np.testing.assert_allclose(found, jax.jit(logits)(params, images), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_vgg_f_drops_more_in_its_funnel(filled: Callable):
    graph, params, moments = filled("vgg_f", (32, 32, 3), 5)
    model = nnx.merge(graph, params, moments)
    assert [dropout.rate for dropout in model.dropouts] == [0.5, 0.5, 0.6]
