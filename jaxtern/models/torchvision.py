"""Reads the trained weights of torchvision's networks from a .safetensors file."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flax import traverse_util
from safetensors import SafetensorError, safe_open

from jaxtern.models.vgg import VGGF

_TENSORS = {"kernel": "weight", "scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}
_FLOATS = ("F64", "F32", "F16", "BF16")
# For linear layers that follow a convolution with several positions: the channels of that convolution.
_CHANNELS = {"fc1/kernel": 512, "auxiliary1/fc1/kernel": 128, "auxiliary2/fc1/kernel": 128}


def read_torchvision(
    path: str | Path, name: str, like: Mapping[str, Any], exclude: Sequence[str] = (), allow_missing: bool = False
) -> dict[str, Any]:
    """Reads a network's weights and moments from a file of torchvision's, into the layout of ours.

    resnet_50, resnet_101 and resnet_152 take those of resnet50 and so on; vgg_f those of vgg16, except the last layer;
    googlenet and inception_v3 those of the same name. Convolutions become HWIO from OIHW, linear layers IO from OI. The
    first linear layer after a convolution gets its inputs ordered by height, width, channel instead of channel, height,
    width. Moments of batch norm get a share of 1 (`normalization.BatchNorm`).

    Args:
      path: of a file written by `safetensors.torch.save_file(network.state_dict(), path)`.
      name: of the network in `MODELS`.
      like: nested dicts of all weights and moments of the network ({"conv1": {"kernel": ...}, ...}); only shapes count.
      exclude: regular expressions; a tensor whose whole path ("fc/kernel") matches one is left out.
      allow_missing: whether to leave out tensors that the file lacks, instead of raising.

    Returns:
      Nested dicts of float32 arrays, without tensors that are left out or that torchvision's network does not have.

    Raises:
      ValueError: for a network that torchvision has no weights of; a file that is not .safetensors, or of another
        network; a tensor that is missing, of another shape or type, or not finite.
      OSError: if the file cannot be read.
    """
    if name not in _LAYERS:
        raise ValueError(f"model={name!r}: must be one of {', '.join(_LAYERS)} to start from torchvision's weights")
    leaves: dict[str, Any] = traverse_util.flatten_dict(dict(like), sep="/")
    shapes = {ours: tuple(leaf.shape) for ours, leaf in leaves.items()}
    names = {ours: theirs for ours in shapes if (theirs := _name_of(name, ours)) is not None}
    with _open(Path(path)) as file:
        stored = set(file.keys())
        others = sorted(stored - {*names.values(), *_OTHERS.get(name, ())})
        others = [each for each in others if not each.endswith(".num_batches_tracked")]
        if others:  # the file may be of a deeper network
            raise ValueError(f"{path}: {others[0]}: torchvision's counterpart of {name} has no such tensor")
        tensors = {}
        for ours, theirs in names.items():
            if any(re.fullmatch(pattern, ours) for pattern in exclude):
                continue
            if theirs in stored:
                tensors[ours] = _read(file, theirs, ours, shapes[ours], f"{ours} of this {name}", f"{path}: {theirs}")
            elif not allow_missing:
                raise ValueError(f"{path}: {theirs}: must be there, as {ours} of {name}")
    of_batches = [ours for ours in shapes if ours.endswith("/share") and f"{ours[:-5]}mean" in tensors]
    tensors |= dict.fromkeys(of_batches, np.ones((), np.float32))
    return traverse_util.unflatten_dict(tensors, sep="/")


def _read(file: Any, theirs: str, ours: str, shape: tuple[int, ...], meaning: str, where: str) -> np.ndarray:
    """Reads a tensor as a float32 array of our layout and this shape; `meaning` and `where` are for errors."""
    stored = file.get_slice(theirs)
    dtype, found = stored.get_dtype(), tuple(stored.get_shape())
    expected = (*shape[:-3:-1], *shape[:-2])  # OIHW for our HWIO, OI for our IO
    if dtype not in _FLOATS:
        raise ValueError(f"{where}: has type {dtype}, must be one of {', '.join(_FLOATS)}")
    if found != expected:
        raise ValueError(f"{where}: has shape {found}, must have {expected}, as {meaning}")
    tensor = np.asarray(file.get_tensor(theirs), np.float32)
    if not np.isfinite(tensor).all():
        raise ValueError(f"{where}: must be finite")
    return np.ascontiguousarray(_to_our_layout(tensor, _CHANNELS.get(ours)))


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="numpy")
    except SafetensorError as error:
        with path.open("rb") as file:
            start = file.read(4)
        if start == b"PK\3\4" or start.startswith(b"\x80"):  # torch.save's formats, since 1.6 and before
            remedy = "save its state dict by safetensors.torch.save_file, and give that file"
            raise ValueError(f"{path}: is a pickle of torch, which may run code when it is read: {remedy}") from error
        raise ValueError(f"{path}: must be a .safetensors file: {error}") from error


def _to_our_layout(tensor: np.ndarray, channels: int | None) -> np.ndarray:
    if channels is not None:
        outputs, inputs = tensor.shape
        side = math.isqrt(inputs // channels)
        return tensor.reshape(outputs, channels, side, side).transpose(2, 3, 1, 0).reshape(inputs, outputs)
    return tensor.transpose(2, 3, 1, 0) if tensor.ndim == 4 else tensor.T


def _resnet_layer(layer: str) -> str:
    """Maps stage2/block3/conv1 to layer2.2.conv1."""
    named = re.sub(r"stage(\d)/block(\d+)/", lambda found: f"layer{found[1]}.{int(found[2]) - 1}.", layer)
    return named.replace("shortcut_norm", "downsample.1").replace("shortcut", "downsample.0").replace("norm", "bn")


def _vgg_layers(depths: tuple[int, ...]) -> dict[str, str]:
    """torchvision's names of our layers; it numbers the layers up to the last pooling."""
    layers, number = {}, 0
    for block, depth in enumerate(depths, 1):
        for i in range(depth):
            layers[f"conv{block}_{i + 1}"] = f"features.{number + 2 * i}"
        number += 2 * depth + 1  # convolutions, each with its ReLU; the pooling
    return layers | {"fc1": "classifier.0", "fc2": "classifier.3"}


def _googlenet_layer(layer: str) -> str:
    """Maps inception3a/branch2_1/norm to inception3a.branch2.0.bn, auxiliary1/fc1 to aux1.fc1."""
    named = layer.replace("/", ".").replace("norm", "bn").replace("auxiliary", "aux")
    named = re.sub(r"(branch[23])_(\d)", lambda found: f"{found[1]}.{int(found[2]) - 1}", named)
    return named.replace("branch4", "branch4.1")  # the pooling is branch4.0


def _inception_layer(layer: str) -> str:
    """Maps Mixed_5b/branch5x5_1/norm to Mixed_5b.branch5x5_1.bn, auxiliary/conv0/conv to AuxLogits.conv0.conv."""
    return layer.replace("/", ".").replace("norm", "bn").replace("auxiliary", "AuxLogits")


_LAYERS: dict[str, Callable[[str], str | None]] = {
    **dict.fromkeys(("resnet_50", "resnet_101", "resnet_152"), _resnet_layer),
    "vgg_f": _vgg_layers(VGGF.depths).get,
    "googlenet": _googlenet_layer,
    "inception_v3": _inception_layer,
}
_OTHERS = {"vgg_f": ("classifier.6.weight", "classifier.6.bias")}  # tensors without a counterpart here


def _name_of(model: str, path: str) -> str | None:
    """torchvision's name for a tensor; None if it has no such tensor."""
    layer, _, leaf = path.rpartition("/")
    theirs = _LAYERS[model](layer) if leaf in _TENSORS else None
    return None if theirs is None else f"{theirs}.{_TENSORS[leaf]}"
