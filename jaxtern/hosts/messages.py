"""Exchanges JSON and arrays between the processes of a cluster, before and between steps.

Except for `without_gloo_lines` and `to_devices`, these are collectives: all processes must call them in the same order.
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

_PIECE_BYTES = 1 << 24  # of one broadcast


def gather_json(value: Any) -> list[Any]:
    """Gathers the values of all processes, which must be JSON, in the order of the processes."""
    if jax.process_count() == 1:
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = multihost_utils.process_allgather(np.int32(text.size))
    rows = multihost_utils.process_allgather(np.pad(text, (0, _power_of_two(int(lengths.max())) - text.size)))
    return [json.loads(row[:length].tobytes()) for row, length in zip(rows, lengths, strict=True)]


def broadcast_json(value: Any) -> Any:
    """Returns process 0's value, which must be JSON, in every process; ignores the others' values."""
    return gather_json(value if jax.process_index() == 0 else None)[0]


def broadcast_arrays(tree: Any) -> Any:
    """Returns process 0's tree of NumPy arrays, bit for bit, in every process; all must have its shapes and dtypes."""
    if jax.process_count() == 1:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    # Sent as integers, since adding zero may change a float's sign, or the bits of a NaN.
    data = np.concatenate([np.frombuffer(leaf.tobytes(), np.uint8) for leaf in leaves])
    size = min(_PIECE_BYTES, max(4, _power_of_two(data.size)))
    pieces = np.pad(data, (0, -data.size % size)).view(np.uint32).reshape(-1, size // 4)
    received = np.concatenate([multihost_utils.broadcast_one_to_all(piece) for piece in pieces]).view(np.uint8)
    ends = np.cumsum([leaf.nbytes for leaf in leaves])
    parts = zip(np.split(received, ends), leaves, strict=False)  # leaves out the last part, which is padding
    return jax.tree.unflatten(structure, [part.copy().view(leaf.dtype).reshape(leaf.shape) for part, leaf in parts])


def meet() -> None:
    """Waits until all processes call this."""
    gather_json(None)


def connect(mesh: Mesh) -> None:
    """Connects all processes for the collectives over a mesh: along each of its axes, and along all of them.

    gloo allows 30 seconds for the first collective, which connects its processes; later ones wait longer. So call this
    when all processes arrive at about the same time, before work that may take some of them longer.
    """
    if jax.process_count() == 1:
        return
    names, spec = mesh.axis_names, PartitionSpec(mesh.axis_names)

    def add(one: jax.Array) -> list[jax.Array]:
        return [jax.lax.psum(one, axes) for axes in (*names, names)]

    ones = to_devices(np.ones(mesh.size, np.int32), NamedSharding(mesh, spec))
    with without_gloo_lines():
        jax.block_until_ready(
            jax.jit(jax.shard_map(add, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))(ones)
        )


@contextlib.contextmanager
def without_gloo_lines() -> Iterator[None]:
    """Drops what is printed inside, as gloo prints a line for every connection."""
    if sys.stdout is None:  # it was closed
        yield
        return
    sys.stdout.flush()
    with os.fdopen(os.dup(1)) as kept, Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        try:
            yield
        finally:
            os.dup2(kept.fileno(), 1)


def to_host(tree: Any) -> Any:
    """Copies global arrays, whole, to NumPy arrays in every process."""

    def fetch(leaf: jax.Array) -> np.ndarray:
        if leaf.is_fully_addressable or leaf.is_fully_replicated:
            return np.array(jax.device_get(leaf))
        return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))

    return jax.tree.map(fetch, tree)


def to_devices(tree: Any, shardings: Any) -> Any:
    """Makes global arrays from arrays that every process holds, whole and equal; neither checks nor sends anything."""

    def put(leaf: Any, sharding: Sharding) -> jax.Array:
        array = np.asarray(leaf)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    return jax.tree.map(put, tree, shardings)


def _power_of_two(size: int) -> int:
    """The least power of two that is not below `size`, so that programs are compiled for few sizes."""
    return 1 << max(size - 1, 0).bit_length()
