"""Networks of which only the shapes are made, or only some weights; with weights of NumPy's; with torchvision's."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx

from jaxtern.models import MODELS, create_model
from jaxtern.models.torchvision import read_torchvision


def weights_of(model: nnx.Module) -> dict[str, Any]:
    """Weights, or their shapes, by whole path."""
    leaves = jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    return {"/".join(entry.key for entry in path): leaf for path, leaf in leaves}


@pytest.fixture(scope="session")
def shapes_of() -> Callable[..., dict[str, tuple[int, ...]]]:
    """Shapes of a network's weights by whole path; nothing is computed."""

    def find(*arguments: Any, **options: Any) -> dict[str, tuple[int, ...]]:
        model = nnx.eval_shape(lambda: create_model(*arguments, seed=0, **options))
        return {path: leaf.shape for path, leaf in weights_of(model).items()}

    return find


@pytest.fixture(scope="session")
def first_weights() -> Callable[..., dict[str, np.ndarray]]:
    """Fresh weights of these paths alone: XLA drops all others, which take long to compile."""

    def draw(name: str, input_shape: tuple[int, ...], paths: list[str]) -> dict[str, np.ndarray]:
        def create() -> list[jax.Array]:
            weights = weights_of(create_model(name, input_shape, 10, seed=0))
            return [weights[path] for path in paths]

        return dict(zip(paths, map(np.asarray, jax.jit(create)()), strict=True))

    return draw


@pytest.fixture(scope="session")
def filled() -> Callable[..., tuple[Any, dict, dict]]:
    """Graph, weights and moments of a network, random ones that keep activations near 1; needs no compilation."""

    def fill(*arguments: Any, **options: Any) -> tuple[Any, dict, dict]:
        model = nnx.eval_shape(lambda: create_model(*arguments, seed=0, **options))
        random = np.random.default_rng(0)

        def draw(path: tuple, leaf: jax.ShapeDtypeStruct) -> jax.Array:
            x = random.standard_normal(leaf.shape, np.float32)
            scales = {"kernel": math.sqrt(2 / max(1, math.prod(leaf.shape[:-1]))), "bias": 0.1, "mean": 0.1}
            name = path[-1].key
            return jnp.asarray(np.exp(x / 4) if name in ("var", "scale", "share") else x * np.float32(scales[name]))

        graph, *states = nnx.split(model, nnx.Param, nnx.BatchStat)
        params, moments = (jax.tree_util.tree_map_with_path(draw, nnx.to_pure_dict(state)) for state in states)
        return graph, params, moments

    return fill


@pytest.fixture(scope="session")
def assert_cut_normal() -> Callable[[np.ndarray, float], None]:
    """Checks that values are those of a normal of this deviation, cut at two of them."""

    def check(values: np.ndarray, deviation: float) -> None:
        values = np.asarray(values, np.float64).ravel()
        assert 1.9 * deviation < np.abs(values).max() <= 2 * deviation * (1 + 1e-6)
        # As in the test of LeNet: five times the largest relative error of an estimate.
        assert abs(values.std() / (0.87962566 * deviation) - 1) < 5 / math.sqrt(2 * values.size)

    return check


@pytest.fixture(scope="session")
def assert_xavier() -> Callable[[np.ndarray], None]:
    """Checks that a kernel is uniform within sqrt(6 / (inputs + outputs)) of each value that it makes."""

    def check(kernel: np.ndarray) -> None:
        window, limit = math.prod(kernel.shape[:-2]), math.sqrt(6)
        limit /= math.sqrt(window * (kernel.shape[-2] + kernel.shape[-1]))
        values = np.asarray(kernel, np.float64).ravel()
        assert 0.99 * limit < np.abs(values).max() <= limit * (1 + 1e-6)
        assert abs(values.std() / (limit / math.sqrt(3)) - 1) < 5 / math.sqrt(2 * values.size)

    return check


class Plain:
    """Layers in jax.lax, to write a network a second time."""

    @staticmethod
    def convolve(x: jax.Array, kernel: jax.Array, stride: int = 1, padding: Any = "SAME") -> jax.Array:
        axes = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=axes)

    @staticmethod
    def pool(x: jax.Array, size: int, stride: int, padding: str = "VALID") -> jax.Array:
        window, strides = (1, size, size, 1), (1, stride, stride, 1)
        return jax.lax.reduce_window(x, -np.inf, jax.lax.max, window, strides, padding)

    @staticmethod
    def rectify(x: jax.Array, layer: dict) -> jax.Array:
        return jnp.maximum(x + layer["bias"].reshape((1,) * (x.ndim - 1) + (-1,)), 0)

    @staticmethod
    def normalize(x: jax.Array, moments: dict) -> jax.Array:
        mean, variance = (moments[name].reshape(1, 1, 1, -1) for name in ("mean", "var"))
        return (x - mean) / jnp.sqrt(variance + 0.001)


@pytest.fixture(scope="session")
def plain() -> type[Plain]:
    return Plain


class Drawn:
    """Random tensors under torchvision's names."""

    def __init__(self):
        self.state: dict[str, np.ndarray] = {}
        self._generator = np.random.default_rng(0)

    def kernel(self, name: str, *shape: int, has_bias: bool = False) -> None:
        kernel = self._generator.standard_normal(shape, np.float32)
        self.state[f"{name}.weight"] = kernel * np.float32(math.sqrt(2 / math.prod(shape[1:])))
        if has_bias:
            self.state[f"{name}.bias"] = self._uniform(-0.5, 0.5, shape[0])

    def norm(self, name: str, features: int) -> None:
        sign = np.where(self._generator.random(features) < 0.3, -1, 1).astype(np.float32)
        self.state[f"{name}.weight"] = sign * self._uniform(0.5, 1.5, features)
        self.state[f"{name}.bias"] = self._uniform(-0.5, 0.5, features)
        self.state[f"{name}.running_mean"] = self._uniform(-0.5, 0.5, features)
        self.state[f"{name}.running_var"] = self._uniform(0.5, 2, features)
        self.state[f"{name}.num_batches_tracked"] = np.asarray(7)

    def unit(self, name: str, *shape: int) -> None:
        """Convolution and norm, as GoogLeNet and Inception v3 have them."""
        self.kernel(f"{name}.conv", *shape)
        self.norm(f"{name}.bn", shape[0])

    def _uniform(self, low: float, high: float, size: int) -> np.ndarray:
        return self._generator.uniform(low, high, size).astype(np.float32)


@pytest.fixture
def drawn() -> Drawn:
    return Drawn()


class Network:
    """One of ours without weights, and with those of a file."""

    def __init__(self, name: str, side: int, num_classes: int, **options: Any):
        self.name = name
        create: Any = MODELS[name]
        model = nnx.eval_shape(lambda: create((side, side, 3), num_classes, rngs=nnx.Rngs(params=0), **options))
        self.graph, self._state = nnx.split(model)
        self.like = nnx.to_pure_dict(self._state)

    def read(self, path: Path, **options: Any) -> dict[str, Any]:
        return read_torchvision(path, self.name, self.like, **options)

    def run(self, tensors: dict[str, Any], images: np.ndarray, trains: bool = False) -> Any:
        """Logits; in training a tuple of them and those of the heads."""
        nnx.replace_by_pure_dict(self._state, tensors)

        def run(state: Any, images: jax.Array) -> Any:
            return nnx.merge(self.graph, state)(images, jax.random.key(0) if trains else None)

        return jax.device_get(jax.jit(run)(self._state, images))


@pytest.fixture(scope="session")
def network_of() -> type[Network]:
    return Network


@pytest.fixture
def save(tmp_path: Path) -> Callable[[dict[str, np.ndarray]], Path]:
    def write(state: dict[str, np.ndarray]) -> Path:
        safetensors.numpy.save_file(state, tmp_path / "weights.safetensors")
        return tmp_path / "weights.safetensors"

    return write


@pytest.fixture(scope="session")
def assert_close() -> Callable[[np.ndarray, Any, float], None]:
    """Checks that logits are the same to a share of their deviation."""

    def check(ours: np.ndarray, theirs: Any, tolerance: float) -> None:
        assert np.asarray(theirs).std() > 0
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * np.asarray(theirs).std())

    return check
