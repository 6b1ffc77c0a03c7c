"""A digest of a tree of arrays, which tells whether a checkpoint is what was saved."""

import hashlib
from typing import Any

import numpy as np

from jaxtern.training.recipe.selection import by_path


def digest(tree: Any) -> str:
    """BLAKE2b of every array's path, dtype, shape and bytes; a NamedTuple and the dict of its fields have the same."""
    state = hashlib.blake2b(digest_size=16)
    for path, leaf in sorted(by_path(tree).items()):
        array = np.asarray(leaf)
        state.update(f"{path} {array.dtype} {array.shape}".encode())
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()
