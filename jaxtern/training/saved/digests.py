"""Digests by which a checkpoint is known to be what was saved."""

import hashlib
import json
from typing import Any

import numpy as np

from jaxtern.training.recipe.selection import by_path


def digest_of_all(state: Any, metadata: dict[str, Any]) -> str:
    """Of a state, and of metadata that JSON can hold."""
    return digest({"state": state, "metadata": json.dumps(metadata, sort_keys=True)})


def digest(tree: Any) -> str:
    """BLAKE2b of every array's path, dtype, shape and bytes, the same of NamedTuples and of dicts of their fields."""
    state = hashlib.blake2b(digest_size=16)
    for path, leaf in sorted(by_path(tree).items()):
        array = np.asarray(leaf)
        state.update(f"{path} {array.dtype} {array.shape}".encode())
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()
