"""Weights to start from: another run's, or torchvision's."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

from jaxtern.models.torchvision import read_torchvision
from jaxtern.training.recipe.model import ModelSection
from jaxtern.training.recipe.selection import by_path, matches, require_match
from jaxtern.training.saved.checkpoints import Checkpoints

logger = logging.getLogger(__name__)


def initialize(network: nnx.Module, model: ModelSection) -> None:
    """Gives the network the weights and moments of `init_from`, but for those that are to start fresh.

    Raises:
      ValueError, OSError: if there are none to be read, one is missing, or one has another shape.
    """
    if model.init_from is None:
        return
    variables = nnx.state(network, (nnx.Param, nnx.BatchStat))
    flat = {"/".join(map(str, path)): leaf for path, leaf in nnx.to_flat_state(variables)}
    for pattern in model.init_exclude:
        require_match("model.init_exclude", pattern, list(flat))
    given = read_weights(model, nnx.to_pure_dict(variables))
    wanted = [path for path in flat if not matches(model.init_exclude, path)]
    missing = [path for path in wanted if path not in given]
    if missing and not model.init_allow_missing:
        need = "name what is to start fresh in init_exclude, or set init_allow_missing=True"
        raise ValueError(f"model.init_from={model.init_from!r}: lacks {_few(missing)}; {need}")
    taken = {path: given[path] for path in wanted if path in given}
    for path, new in taken.items():
        leaf = flat[path]
        if leaf[...].shape != new.shape:
            shapes = f"{path} has shape {new.shape} there and {leaf[...].shape} here"
            need = "name what is to start fresh in init_exclude"
            raise ValueError(f"model.init_from={model.init_from!r}: {shapes}; {need}")
        leaf[...] = new.astype(leaf[...].dtype)
    nnx.update(network, variables)
    fresh = [path for path in flat if path not in taken]
    logger.info(
        "%d tensors from %s, %d fresh%s", len(flat) - len(fresh), model.init_from, len(fresh),
        f": {_few(fresh)}" if fresh else "",
    )  # fmt: skip


def read_weights(model: ModelSection, like: Any) -> dict[str, np.ndarray]:
    """Weights and moments by path, of a run's folder, one of its checkpoints, or a file of torchvision's weights.

    Args:
      model: with `init_from`.
      like: weights and moments of the network, a dict of dicts.

    Raises:
      ValueError, OSError: if there are none.
    """
    source = str(model.init_from)
    path = Path(source)
    if path.is_file():
        return by_path(read_torchvision(path, model.name, like, model.init_exclude, model.init_allow_missing))
    if (path / "checkpoints").is_dir():
        checkpoints = Checkpoints(path)
        newest = checkpoints.use_latest(checkpoints.restore_as_saved)
        if newest is None:
            raise ValueError(f"model.init_from={source!r}: holds no checkpoint that can be read")
        return _weights_of(newest, source)
    if path.parent.name == "checkpoints" and path.name.isdecimal() and path.is_dir():
        return _weights_of(Checkpoints(path.parent.parent).restore_as_saved(int(path.name)), source)
    raise FileNotFoundError(
        f"model.init_from={source!r}: is no folder of a run, no checkpoint of one, and no .safetensors file"
    )


def _weights_of(state: Any, source: str) -> dict[str, np.ndarray]:
    """Of a state as dicts: the moving averages where they were kept."""
    moving = state.get("averages") or state
    if not isinstance(moving, dict) or not isinstance(moving.get("params"), dict):
        raise ValueError(f"model.init_from={source!r}: its checkpoint is of no network: it has no params")
    trees = moving["params"], state.get("frozen") or {}, moving.get("moments") or {}
    return {path: leaf for tree in trees for path, leaf in by_path(tree).items()}


def _few(paths: list[str], most: int = 4) -> str:
    more = f" and {len(paths) - most} more" if len(paths) > most else ""
    return ", ".join(paths[:most]) + more
