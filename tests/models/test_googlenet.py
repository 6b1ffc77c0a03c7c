"""GoogLeNet has the blocks, sizes, initial weights, batch norm and heads of its table; TernGrad's has no heads."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

# Of each block: channels in, then features of its six convolutions.
BLOCKS = {
    "3a": (192, 64, 96, 128, 16, 32, 32),
    "3b": (256, 128, 128, 192, 32, 96, 64),
    "4a": (480, 192, 96, 208, 16, 48, 64),
    "4b": (512, 160, 112, 224, 24, 64, 64),
    "4c": (512, 128, 128, 256, 24, 64, 64),
    "4d": (512, 112, 144, 288, 32, 64, 64),
    "4e": (528, 256, 160, 320, 32, 128, 128),
    "5a": (832, 256, 160, 320, 32, 128, 128),
    "5b": (832, 384, 192, 384, 48, 128, 128),
}


def kernels_of_table() -> dict[str, tuple[int, ...]]:
    """Shapes of the convolutions' kernels by path."""
    shapes = {"conv1": (7, 7, 3, 64), "conv2": (1, 1, 64, 64), "conv3": (3, 3, 64, 192)}
    for name, (channels, first, reduced, second, reduced_more, third, fourth) in BLOCKS.items():
        shapes[f"inception{name}/branch1"] = (1, 1, channels, first)
        shapes[f"inception{name}/branch2_1"] = (1, 1, channels, reduced)
        shapes[f"inception{name}/branch2_2"] = (3, 3, reduced, second)
        shapes[f"inception{name}/branch3_1"] = (1, 1, channels, reduced_more)
        shapes[f"inception{name}/branch3_2"] = (3, 3, reduced_more, third)
        shapes[f"inception{name}/branch4"] = (1, 1, channels, fourth)
    return shapes


def test_googlenet_has_the_parameters_of_its_table(shapes_of: Callable):
    shapes = shapes_of("googlenet_terngrad", (224, 224, 3), 1000)
    expected = {"fc/kernel": (1024, 1000), "fc/bias": (1000,)}
    for path, shape in kernels_of_table().items():
        expected |= {f"{path}/conv/kernel": shape, f"{path}/norm/bias": shape[-1:]}
    assert shapes == expected
    # Szegedy et al. count 6.8 M with 5x5 convolutions, where there are 3x3 ones here: 124,352 after the first blocks,
    # 5,592,624 before the linear layer.
    assert sum(map(math.prod, shapes.values())) == 6_617_624
    with_heads = shapes_of("googlenet", (224, 224, 3), 1000)
    heads = {path: shape for path, shape in with_heads.items() if path.startswith("auxiliary")}
    assert with_heads.keys() - heads.keys() == {path.replace("bias", "scale") for path in shapes if "norm" in path} | (
        shapes.keys()
    )
    assert sum(map(math.prod, heads.values())) == 6_379_984  # torchvision's
    assert sum(map(math.prod, with_heads.values())) == 13_004_888


def test_googlenet_starts_from_a_deviation_of_a_hundredth_and_zero_biases(
    shapes_of: Callable, first_weights: Callable, assert_cut_normal: Callable
):
    kernels = [
        "conv1/conv/kernel", "inception3a/branch3_2/conv/kernel", "inception5b/branch1/conv/kernel",
        "auxiliary2/fc1/kernel", "fc/kernel",
    ]  # fmt: skip
    biases = [path for path in shapes_of("googlenet", (32, 32, 3), 10) if path.endswith("bias")]
    weights = first_weights("googlenet", (32, 32, 3), [*kernels, *biases])
    for path in kernels:
        assert_cut_normal(weights[path], 0.01)
    for path in biases:
        np.testing.assert_array_equal(weights[path], 0)


@pytest.mark.slow
def test_googlenet_gives_the_logits_of_its_layers_one_after_the_other(filled: Callable, plain: type):
    graph, params, moments = filled("googlenet_terngrad", (64, 96, 3), 5)
    images = np.random.default_rng(2).standard_normal((2, 64, 96, 3), np.float32)

    def convolve(x: jax.Array, params: dict, moments: dict, stride: int = 1) -> jax.Array:
        x = plain.convolve(x, params["conv"]["kernel"], stride, [(3, 3), (3, 3)] if stride == 2 else "SAME")
        return plain.rectify(plain.normalize(x, moments["norm"]), params["norm"])

    def apply_block(x: jax.Array, params: dict, moments: dict) -> jax.Array:
        def follow(x: jax.Array, *names: str) -> jax.Array:
            for name in names:
                x = convolve(x, params[name], moments[name])
            return x

        branches = [
            follow(x, "branch1"),
            follow(x, "branch2_1", "branch2_2"),
            follow(x, "branch3_1", "branch3_2"),
        ]
        return jnp.concatenate([*branches, follow(plain.pool(x, 3, 1, "SAME"), "branch4")], axis=-1)

    def logits(params: dict, images: jax.Array) -> jax.Array:
        x = plain.pool(convolve(images, params["conv1"], moments["conv1"], stride=2), 3, 2, "SAME")
        for name in ("conv2", "conv3"):
            x = convolve(x, params[name], moments[name])
        for name in BLOCKS:
            if name.endswith("a"):
                x = plain.pool(x, 2 if name == "5a" else 3, 2, "SAME")
            x = apply_block(x, params[f"inception{name}"], moments[f"inception{name}"])
        return x.mean((1, 2)) @ params["fc"]["kernel"] + params["fc"]["bias"][None]

    found = jax.jit(lambda params: nnx.merge(graph, params, moments)(images))(params)
    np.testing.assert_allclose(found, jax.jit(logits)(params, images), rtol=1e-4, atol=1e-4)
