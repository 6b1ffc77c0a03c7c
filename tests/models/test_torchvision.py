"""Weights of torchvision's give its logits here; files that cannot are refused."""

import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxtern.models.torchvision import read_torchvision
from jaxtern.models.vgg import VGGF

State = dict[str, np.ndarray]
DEPTHS = {"resnet_50": (3, 4, 6, 3), "resnet_101": (3, 4, 23, 3), "resnet_152": (3, 8, 36, 3)}


def draw_resnet(drawn: Any, name: str, num_classes: int) -> State:
    channels = 64
    drawn.kernel("conv1", 64, 3, 7, 7)
    drawn.norm("bn1", 64)
    for stage, depth in enumerate(DEPTHS[name]):
        for block in range(depth):
            path, width = f"layer{stage + 1}.{block}", 64 * 2**stage
            for number, shape in enumerate(
                ((width, channels, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)), 1
            ):
                drawn.kernel(f"{path}.conv{number}", *shape)
                drawn.norm(f"{path}.bn{number}", shape[0])
            if block == 0:
                drawn.kernel(f"{path}.downsample.0", 4 * width, channels, 1, 1)
                drawn.norm(f"{path}.downsample.1", 4 * width)
            channels = 4 * width
    drawn.kernel("fc", num_classes, 2048, has_bias=True)
    return drawn.state


def draw_vgg(drawn: Any, num_classes: int, side: int) -> State:
    """`side` of what the last pooling leaves."""
    channels, number = 3, 0
    for features, depth in zip((64, 128, 256, 512, 512), VGGF.depths, strict=True):
        for _ in range(depth):
            drawn.kernel(f"features.{number}", features, channels, 3, 3, has_bias=True)
            channels, number = features, number + 2
        number += 1
    for number, shape in ((0, (4096, 512 * side**2)), (3, (4096, 4096)), (6, (num_classes, 4096))):
        drawn.kernel(f"classifier.{number}", *shape, has_bias=True)
    return drawn.state


class Reference:
    """Layers as torch has them, NCHW and OIHW."""

    def __init__(self, state: State):
        self.state = state

    def convolution(self, x: jax.Array, name: str, stride: int = 1) -> jax.Array:
        kernel = self.state[f"{name}.weight"]
        padding = ((kernel.shape[-1] // 2,) * 2,) * 2
        x = jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), padding, dimension_numbers=("NCHW", "OIHW", "NCHW")
        )
        bias = self.state.get(f"{name}.bias")
        return x if bias is None else x + bias.reshape(1, -1, 1, 1)

    def norm(self, x: jax.Array, name: str) -> jax.Array:
        scale, bias, mean, variance = (
            self.state[f"{name}.{leaf}"].reshape(1, -1, 1, 1)
            for leaf in ("weight", "bias", "running_mean", "running_var")
        )
        return (x - mean) / jnp.sqrt(variance + 1e-5) * scale + bias

    def linear(self, x: jax.Array, name: str) -> jax.Array:
        return x @ self.state[f"{name}.weight"].T + self.state[f"{name}.bias"].reshape(1, -1)

    def pool(self, x: jax.Array, size: int, padding: int = 0) -> jax.Array:
        around = ((0, 0), (0, 0), (padding, padding), (padding, padding))
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, size, size), (1, 1, 2, 2), around)

    def resnet(self, x: jax.Array) -> jax.Array:
        x = self.pool(jnp.maximum(self.norm(self.convolution(x, "conv1", 2), "bn1"), 0), 3, 1)
        blocks = sorted({tuple(map(int, name[5:].split(".")[:2])) for name in self.state if name.startswith("layer")})
        for stage, block in blocks:
            path, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            y = jnp.maximum(self.norm(self.convolution(x, f"{path}.conv1"), f"{path}.bn1"), 0)
            y = jnp.maximum(self.norm(self.convolution(y, f"{path}.conv2", stride), f"{path}.bn2"), 0)
            y = self.norm(self.convolution(y, f"{path}.conv3"), f"{path}.bn3")
            if f"{path}.downsample.0.weight" in self.state:
                x = self.norm(self.convolution(x, f"{path}.downsample.0", stride), f"{path}.downsample.1")
            x = jnp.maximum(x + y, 0)
        return self.linear(x.mean(axis=(2, 3)), "fc")

    def vgg_features(self, x: jax.Array) -> jax.Array:
        number = 0
        for depth in VGGF.depths:
            for _ in range(depth):
                x = jnp.maximum(self.convolution(x, f"features.{number}"), 0)
                number += 2
            x, number = self.pool(x, 2), number + 1
        x = x.reshape(x.shape[0], -1)
        for number in (0, 3):
            x = jnp.maximum(self.linear(x, f"classifier.{number}"), 0)
        return x


def run_reference(function: Callable, images: np.ndarray) -> np.ndarray:
    """Of images NHWC."""
    return np.asarray(jax.jit(function)(images.transpose(0, 3, 1, 2)))


def draw_images(count: int, side: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((count, side, side, 3), np.float32)


@pytest.mark.slow
def test_resnet_50_gives_torchvisions_logits(drawn: Any, network_of: Callable, save: Callable, assert_close: Callable):
    state, network, images = draw_resnet(drawn, "resnet_50", 7), network_of("resnet_50", 64, 7), draw_images(2, 64)
    tensors = network.read(save(state))
    assert jax.tree.structure(tensors) == jax.tree.structure(network.like)
    theirs = run_reference(lambda x: Reference(state).resnet(x), images)
    assert_close(network.run(tensors, images), theirs, 1e-4)


@pytest.mark.slow
def test_resnet_101_takes_all_its_blocks(drawn: Any, network_of: Callable, save: Callable):
    name = "resnet_101"
    state, network = draw_resnet(drawn, name, 3), network_of(name, 32, 3)
    tensors = network.read(save(state))
    assert jax.tree.map(np.shape, tensors) == jax.tree.map(np.shape, network.like)
    for stage, depth in enumerate(DEPTHS[name], 1):
        for block in range(depth):
            kernel = tensors[f"stage{stage}"][f"block{block + 1}"]["conv2"]["kernel"]
            np.testing.assert_array_equal(kernel.transpose(3, 2, 0, 1), state[f"layer{stage}.{block}.conv2.weight"])


@pytest.mark.slow
def test_vgg_f_takes_all_but_its_funnel(drawn: Any, network_of: Callable, save: Callable, assert_close: Callable):
    state, network, images = draw_vgg(drawn, 1000, 2), network_of("vgg_f", 64, 7), draw_images(2, 64)
    tensors = network.read(save(state))
    assert network.like.keys() - tensors.keys() == {"funnel", "head"}
    generator = np.random.default_rng(2)
    for name, shape in (("funnel", (4096, 512)), ("head", (512, 7))):
        kernel = generator.standard_normal(shape, np.float32) / np.float32(math.sqrt(shape[0]))
        tensors[name] = {"kernel": kernel, "bias": np.zeros(shape[1], np.float32)}
    theirs = run_reference(lambda x: Reference(state).vgg_features(x), images)
    theirs = np.maximum(theirs @ tensors["funnel"]["kernel"], 0) @ tensors["head"]["kernel"]
    assert_close(network.run(tensors, images), theirs, 1e-4)


# Of torchvision 0.28 (torch 2.13, on a CPU) for what draw_resnet draws, of an image of draw_images.
TORCHVISION_LOGITS = {
    "resnet_50": [1141.5557, 389.53177, -73.471344, -446.38132, -39.870876, 593.9744, -1025.0796],
}


@pytest.mark.parametrize("name", TORCHVISION_LOGITS)
def test_network_gives_the_logits_that_torchvision_gave(
    name: str, drawn: Any, network_of: Callable, save: Callable, assert_close: Callable
):
    state, images = draw_resnet(drawn, name, 7), draw_images(1, 64)
    network = network_of(name, images.shape[1], 7)
    assert_close(network.run(network.read(save(state)), images), [TORCHVISION_LOGITS[name]], 1e-4)


@pytest.mark.parametrize(
    ("name", "theirs"),
    [("resnet_50", "resnet50"), ("resnet_101", "resnet101")],
)
def test_network_gives_the_logits_of_torchvisions_own(
    name: str, theirs: str, drawn: Any, network_of: Callable, save: Callable, assert_close: Callable
):
    torch, torchvision = pytest.importorskip("torch"), pytest.importorskip("torchvision")
    state, images = draw_resnet(drawn, name, 7), draw_images(1, 64)
    reference = getattr(torchvision.models, theirs)(num_classes=7).eval()
    reference.load_state_dict({key: torch.tensor(value) for key, value in state.items()})
    with torch.no_grad():
        expected = reference(torch.tensor(images.transpose(0, 3, 1, 2))).numpy()
    network = network_of(name, images.shape[1], 7)
    assert_close(network.run(network.read(save(state)), images), expected, 1e-4)


HEAD = {"fc": {"kernel": np.zeros((3, 2)), "bias": np.zeros(2)}}  # all that a network has, for those refusing files
TENSORS = {"fc.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "fc.bias": np.ones(2, np.float32)}


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_other_floats_are_read_as_float32(dtype: Any, save: Callable):
    read = read_torchvision(save({name: x.astype(dtype) for name, x in TENSORS.items()}), "resnet_50", HEAD)
    assert read["fc"]["kernel"].dtype == np.float32
    np.testing.assert_array_equal(read["fc"]["kernel"], TENSORS["fc.weight"].T)


def test_excluded_tensors_are_left_out_whatever_their_shape(save: Callable):
    path = save({**TENSORS, "fc.weight": np.zeros((1000, 3), np.float32)})
    assert list(read_torchvision(path, "resnet_50", HEAD, exclude=[r".*/kernel"])["fc"]) == ["bias"]
    assert read_torchvision(path, "resnet_50", HEAD, exclude=["fc/.*"]) == {}
    with pytest.raises(ValueError, match=r"fc.weight"):  # patterns are of whole paths
        read_torchvision(path, "resnet_50", HEAD, exclude=["kernel"])


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"fc.bias": None}, r"fc\.bias: must be there, as fc/bias of resnet_50"),
        (
            {"fc.weight": np.zeros((5, 3), np.float32)},
            r"fc\.weight: has shape \(5, 3\), must have \(2, 3\), as fc/kernel",
        ),
        ({"fc.bias": np.zeros(2, np.int32)}, r"fc\.bias: has type I32, must be one of F64, F32, F16, BF16"),
        ({"fc.bias": np.full(2, np.nan, np.float32)}, r"fc\.bias: must be finite"),
        (
            {"layer3.6.conv1.weight": np.zeros(1, np.float32)},
            r"layer3\.6\.conv1\.weight: torchvision's counterpart of resnet_50 has no such tensor",
        ),
    ],
)
def test_files_of_another_network_are_refused_by_tensor_and_rule(change: dict, rule: str, save: Callable):
    path = save({name: tensor for name, tensor in {**TENSORS, **change}.items() if tensor is not None})
    with pytest.raises(ValueError, match=r"^\S*weights\.safetensors: " + rule) as refusal:
        read_torchvision(path, "resnet_50", HEAD)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"PK\3\4" + bytes(60), "is a pickle of torch, .*: save its state dict by safetensors.torch.save_file"),
        (
            pickle.dumps({"fc.weight": 0}),
            "is a pickle of torch, .*: save its state dict by safetensors.torch.save_file",
        ),
        (b"", "must be a .safetensors file: "),
        (b"not weights at all", "must be a .safetensors file: "),
    ],
)
def test_files_in_another_format_are_refused(content: bytes, rule: str, tmp_path: Path):
    (tmp_path / "weights.pth").write_bytes(content)
    with pytest.raises(ValueError, match=r"^\S*weights\.pth: " + rule) as refusal:
        read_torchvision(tmp_path / "weights.pth", "resnet_50", HEAD)
    assert "\n" not in str(refusal.value)


def test_a_missing_file_and_a_network_without_weights_are_refused(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"none\.safetensors"):
        read_torchvision(tmp_path / "none.safetensors", "resnet_50", HEAD)
    with pytest.raises(ValueError, match=r"model='lenet': must be one of resnet_50, .*vgg_f, .* to start from torch"):
        read_torchvision(tmp_path / "none.safetensors", "lenet", HEAD)
