"""Initial weights from another run, or from torchvision."""

import functools
import logging
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

from jaxtern.models import create_model, draw_weights
from jaxtern.models.model import Model
from jaxtern.training.recipe.model import ModelSection
from jaxtern.training.recipe.selection import by_path, matches, require_match
from jaxtern.training.saved.checkpoints import Checkpoints
from jaxtern.training.saved.trees import digest

logger = logging.getLogger(__name__)


def initialize(model: ModelSection, input_shape: tuple[int, ...], num_classes: int, seed: int) -> Model:
    """Creates a network with the weights and moments of `init_from`, except for those that start fresh.

    Fresh weights are drawn by a digest of the seed and all of `init_from`: with the seed alone, a new head would equal
    the initial head of a run with that seed. Raises ValueError or OSError if weights cannot be read, are missing, or
    have another shape.
    """
    create = functools.partial(create_model, model.name, input_shape, num_classes, dropout_rate=model.dropout_rate)
    abstract = nnx.to_pure_dict(nnx.state(nnx.eval_shape(lambda: create(seed)), (nnx.Param, nnx.BatchStat)))
    flat = by_path(abstract)
    for pattern in model.init_exclude:
        require_match("model.init_exclude", pattern, list(flat))
    given = read_weights(model, abstract)
    wanted = [path for path in flat if not matches(model.init_exclude, path)]
    missing = [path for path in wanted if path not in given]
    if missing and not model.init_allow_missing:
        need = "name the tensors that start fresh in init_exclude, or set init_allow_missing=True"
        raise ValueError(f"model.init_from={model.init_from!r}: lacks {_few(missing)}; {need}")
    taken = {path: given[path] for path in wanted if path in given}
    for path, new in taken.items():
        if flat[path].shape != new.shape:
            shapes = f"{path} has shape {new.shape} there and {flat[path].shape} here"
            need = "name the tensors that start fresh in init_exclude"
            raise ValueError(f"model.init_from={model.init_from!r}: {shapes}; {need}")
    own_seed = int(digest({"seed": np.asarray(seed), "given": given})[:7], 16)
    network = draw_weights(lambda: create(own_seed))
    variables = nnx.state(network, (nnx.Param, nnx.BatchStat))
    for keys, leaf in nnx.to_flat_state(variables):
        path = "/".join(map(str, keys))
        if path in taken:
            leaf[...] = taken[path].astype(leaf[...].dtype)
    nnx.update(network, variables)
    fresh = [path for path in flat if path not in taken]
    named = f": {_few(fresh)}" if fresh else ""
    logger.info("%d tensors from %s, %d fresh%s", len(taken), model.init_from, len(fresh), named)
    return network


def read_weights(model: ModelSection, like: Any) -> dict[str, np.ndarray]:
    """Reads weights and moments, by path, from a run's folder, one of its checkpoints, or torchvision's weights.

    `like` holds the network's own, in nested dicts. Raises ValueError or OSError if there are no weights.
    """
    source = str(model.init_from)
    path = Path(source)
    if path.is_file():
        from jaxtern.models.torchvision import read_torchvision

        return by_path(read_torchvision(path, model.name, like, model.init_exclude, model.init_allow_missing))
    if (path / "checkpoints").is_dir():
        newest = Checkpoints(path).restore_latest()
        if newest is None:
            raise ValueError(f"model.init_from={source!r}: holds no checkpoint that can be read")
        return _weights_of(newest.state, source)
    if path.parent.name == "checkpoints" and path.name.isdecimal() and path.is_dir():
        return _weights_of(Checkpoints(path.parent.parent).restore(int(path.name)).state, source)
    raise FileNotFoundError(
        f"model.init_from={source!r}: is no folder of a run, no checkpoint of one, and no .safetensors file"
    )


def _weights_of(state: Any, source: str) -> dict[str, np.ndarray]:
    """The weights and moments of a state in dicts; the moving averages, if there are any."""
    moving = state.get("averages") or state
    if not isinstance(moving, dict) or not isinstance(moving.get("params"), dict):
        raise ValueError(f"model.init_from={source!r}: its checkpoint is of no network: it has no params")
    trees = moving["params"], state.get("frozen") or {}, moving.get("moments") or {}
    return {path: leaf for tree in trees for path, leaf in by_path(tree).items()}


def _few(paths: list[str], most: int = 4) -> str:
    more = f" and {len(paths) - most} more" if len(paths) > most else ""
    return ", ".join(paths[:most]) + more
