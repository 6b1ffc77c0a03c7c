"""A run starts from a .safetensors file of torchvision's weights, or says in one line why it cannot."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx

from jaxtern.models import MODELS, create_model
from jaxtern.models.resnet import ResNet50
from jaxtern.training.recipe.selection import path_of
from jaxtern.training.step.state import TrainState

SHAPE = (8, 8, 3)
FIELDS = {
    "model": "resnet_50", "data": "synthetic", "synthetic_shape": SHAPE, "synthetic_classes": 3,
    "synthetic_examples": 32, "train_only": ("fc/.*",), "seed": 9,
}  # fmt: skip
BLOCK = {
    "conv1": "conv1", "norm1": "bn1", "conv2": "conv2", "norm2": "bn2", "conv3": "conv3", "norm3": "bn3",
    "shortcut": "downsample.0", "shortcut_norm": "downsample.1",
}  # fmt: skip
LAYERS = {"conv1": "conv1", "norm1": "bn1", "fc": "fc"} | {
    f"stage{i}/block1/{ours}": f"layer{i}.0.{theirs}" for i in range(1, 5) for ours, theirs in BLOCK.items()
}
TENSORS = {"kernel": "weight", "scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}


class Short(ResNet50):
    """The first block of each of ResNet-50's stages, by the same names: drawn and placed in seconds."""

    depths = (1, 1, 1, 1)


@pytest.fixture(scope="module", autouse=True)
def _short() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODELS, "resnet_50", Short)
        yield


def by_path(tree: Any) -> dict[str, Any]:
    return {path_of(keys): leaf for keys, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def weights_of(state: TrainState) -> dict[str, Any]:
    """Weights and moments by path."""
    return by_path(state.params) | by_path(state.frozen) | by_path(state.moments)


def torchvisions_name(path: str) -> str:
    layer, _, leaf = path.rpartition("/")
    return f"{LAYERS[layer]}.{TENSORS[leaf]}"


@pytest.fixture(scope="module")
def drawn() -> dict[str, np.ndarray]:
    """Weights and moments of a network for 1000 classes, by path, in our layout."""
    generator = np.random.default_rng(0)
    model = nnx.eval_shape(lambda: create_model("resnet_50", SHAPE, 1000, 0))
    leaves = by_path(nnx.to_pure_dict(nnx.state(model, (nnx.Param, nnx.BatchStat))))
    return {
        path: np.ones((), np.float32) if path.endswith("share") else generator.random(leaf.shape, np.float32)
        for path, leaf in leaves.items()
    }


@pytest.fixture
def save(tmp_path: Path, drawn: dict[str, np.ndarray]) -> Callable[..., Path]:
    """Writes them as torchvision has them, some changed, or left out where the change is None."""

    def write(**changes: np.ndarray | None) -> Path:
        axes = {4: (3, 2, 0, 1), 2: (1, 0), 1: (0,)}  # HWIO to OIHW, IO to OI
        tensors = {torchvisions_name(path): x.transpose(axes[x.ndim]) for path, x in drawn.items() if x.ndim} | changes
        kept = {name: np.ascontiguousarray(x) for name, x in tensors.items() if x is not None}
        safetensors.numpy.save_file(kept, tmp_path / "weights.safetensors")
        return tmp_path / "weights.safetensors"

    return write


@pytest.mark.slow
def test_run_starts_from_torchvisions_weights_with_a_fresh_head(
    prepare: Callable, save: Callable, drawn: dict[str, np.ndarray], tmp_path: Path
):
    """Trained, frozen and moving ones; the head is none of a run that starts from nothing by the same seed."""
    source = save(**{"bn1.num_batches_tracked": np.asarray(7)})
    start = weights_of(prepare(init_from=str(source), init_exclude=("fc/.*",), **FIELDS).state)
    fresh = weights_of(prepare(tmp_path / "fresh", **FIELDS).state)
    assert start.keys() == drawn.keys()
    for path, leaf in start.items():
        if path == "fc/kernel":
            assert not np.any(leaf == fresh[path])
            assert abs(np.std(leaf) / np.std(fresh[path]) - 1) < 0.1
        else:
            np.testing.assert_array_equal(leaf, fresh[path] if path == "fc/bias" else drawn[path], path)


@pytest.mark.slow
def test_run_starts_fresh_with_what_the_file_lacks_where_that_is_allowed(
    prepare: Callable, save: Callable, drawn: dict[str, np.ndarray], tmp_path: Path
):
    lacks = {"layer2.0.conv1.weight": "stage2/block1/conv1/kernel", "fc.weight": "fc/kernel", "fc.bias": "fc/bias"}
    source = save(**dict.fromkeys(lacks))
    start = weights_of(prepare(init_from=str(source), init_allow_missing=True, **FIELDS).state)
    fresh = weights_of(prepare(tmp_path / "fresh", **FIELDS).state)
    for path, leaf in start.items():
        if path not in lacks.values():
            np.testing.assert_array_equal(leaf, drawn[path], path)
        else:
            assert np.any(leaf != fresh[path]) == path.endswith("kernel"), path


@pytest.mark.parametrize(
    ("changes", "exclude", "rule"),
    [
        ({}, (), r"fc\.bias: has shape \(1000,\), must have \(3,\), as fc/bias of this resnet_50"),
        (
            {"layer2.0.conv1.weight": np.zeros((64, 256, 1, 1), np.float32)},
            ("fc/.*",),
            r"layer2\.0\.conv1\.weight: has shape \(64, 256, 1, 1\), must have \(128, 256, 1, 1\), as stage2/block1/",
        ),
        ({"bn1.running_var": None}, ("fc/.*",), r"bn1\.running_var: must be there, as norm1/var of resnet_50"),
    ],
    ids=["head", "shape", "missing"],
)
def test_run_names_the_tensor_that_does_not_fit(
    prepare: Callable, save: Callable, tmp_path: Path, changes: dict, exclude: tuple[str, ...], rule: str
):
    source = save(**changes)
    with pytest.raises(ValueError, match=rf"^{source}: {rule}") as refusal:
        prepare(init_from=str(source), init_exclude=exclude, **FIELDS)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()
