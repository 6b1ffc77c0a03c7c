"""What the processes of a cluster tell each other before and between steps: JSON, and arrays to the bit.

Every function here is a collective: all processes must call it, in the same order. A process alone gets its own back.
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

_PIECE_BYTES = 1 << 24  # of a broadcast at a time


def gather_json(value: Any) -> list[Any]:
    """Gathers the values of all processes, as JSON has them, in the order of their numbers."""
    if jax.process_count() == 1:
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = multihost_utils.process_allgather(np.int32(text.size))
    rows = multihost_utils.process_allgather(np.pad(text, (0, _power_of_two(int(lengths.max())) - text.size)))
    return [json.loads(row[:length].tobytes()) for row, length in zip(rows, lengths, strict=True)]


def broadcast_json(value: Any) -> Any:
    """Returns process 0's value in every process; the others' values are ignored."""
    return gather_json(value if jax.process_index() == 0 else None)[0]


def broadcast_arrays(tree: Any) -> Any:
    """Process 0's tree of NumPy arrays, bit for bit; structure, shapes and dtypes are the same in all processes."""
    if jax.process_count() == 1:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    # As integers: a float that is added to zero may change its sign, and a NaN its bits.
    data = np.concatenate([np.frombuffer(leaf.tobytes(), np.uint8) for leaf in leaves])
    size = min(_PIECE_BYTES, max(4, _power_of_two(data.size)))
    pieces = np.pad(data, (0, -data.size % size)).view(np.uint32).reshape(-1, size // 4)
    received = np.concatenate([multihost_utils.broadcast_one_to_all(piece) for piece in pieces]).view(np.uint8)
    ends = np.cumsum([leaf.nbytes for leaf in leaves])
    parts = zip(np.split(received, ends), leaves, strict=False)  # the last part is what fills up the last piece
    return jax.tree.unflatten(structure, [part.copy().view(leaf.dtype).reshape(leaf.shape) for part, leaf in parts])


def meet() -> None:
    """Waits until all processes are here."""
    gather_json(None)


def connect(mesh: Mesh) -> None:
    """Has all processes connect to each other for the collectives over a mesh: along each of its axes, and all of them.

    A first collective connects those that take part, for which gloo gives them 30 seconds; later ones wait for the last
    process for longer. So this is to be called where all come at the same time, before work that may take one longer
    than another.
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
    """Drops what is printed inside: gloo, in C++, tells of every connection that it makes."""
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
    """NumPy copies of global arrays, whole, in every process."""

    def fetch(leaf: jax.Array) -> np.ndarray:
        if leaf.is_fully_addressable or leaf.is_fully_replicated:
            return np.array(jax.device_get(leaf))
        return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))

    return jax.tree.map(fetch, tree)


def to_devices(tree: Any, shardings: Any) -> Any:
    """Global arrays of what every process holds whole and alike; nothing is compared or sent."""

    def put(leaf: Any, sharding: Sharding) -> jax.Array:
        array = np.asarray(leaf)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    return jax.tree.map(put, tree, shardings)


def _power_of_two(size: int) -> int:
    """The next power of two, so that few sizes are compiled."""
    return 1 << max(size - 1, 0).bit_length()
