"""Compares digests of the devices' copies of the state, to find out when they are no longer the same.

Each device updates its own copy. Copies that differ once stay different, and no loss shows it. Causes are a bit flipped
in memory, a CPU that rounds differently, or another version of a library.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxtern.compression.collectives import as_bits
from jaxtern.kernels.noise import mix
from jaxtern.training.step.mesh import DEVICE_AXIS, FAST_AXIS
from jaxtern.training.step.state import TrainState

_LANE_STEPS = 0x9E3779B9, 0x85EBCA6B  # odd
_JOINED_BELOW = 2**16  # words; loops over each of hundreds of small tensors would take seconds to compile
_PARTS = {  # of a state, as messages name them
    "step": "count of steps",
    "params": "weights",
    "frozen": "frozen weights",
    "moments": "moments of batch norm",
    "optimizer": "optimiser",
    "compressor": "compressor",
    "averages": "averages",
    "loss_scale": "loss scale",
}


class DivergenceError(Exception):
    """Devices hold different states."""


def digest(tree: Any) -> jax.Array:
    """Hashes the bits of all leaves, and their places, to uint32[2]; elements are real or bool, of 1, 2 or 4 bytes.

        lane l = sum over words w at positions p of mix(w + p step_l)   mod 2^32

    `mix` is a bijection, so a change of one word always changes both lanes. Changes of several words cancel with a
    chance of 2^-32 in one lane and 2^-64 in both. The digest guards against accidents, not against intent.
    """
    leaves = map(jnp.asarray, jax.tree.leaves(tree))
    vectors = [as_bits(leaf.astype(jnp.uint8) if leaf.dtype == bool else leaf) for leaf in leaves]
    small = [words for words in vectors if words.size < _JOINED_BELOW]
    large = [words for words in vectors if words.size >= _JOINED_BELOW]
    total, position = jnp.zeros(2, jnp.uint32), 1
    for words in [jnp.concatenate(small), *large] if small else large:
        total += _sum_lanes(words, position)
        position += words.size
    return total


def _sum_lanes(words: jax.Array, first: int) -> jax.Array:
    """Both lanes of words from this position on, as one reduction, for which XLA makes vector code."""
    positions = jax.lax.iota(jnp.uint32, words.size) + jnp.uint32(first % 2**32)
    lanes = tuple(mix(words + positions * jnp.uint32(step)) for step in _LANE_STEPS)
    zeros = (jnp.uint32(0),) * len(lanes)
    sums = jax.lax.reduce(lanes, zeros, lambda x, y: tuple(a + b for a, b in zip(x, y, strict=True)), (0,))
    return jnp.stack(sums)


class DivergenceGuard:
    """Compares the devices' copies of a run's state every `period` steps, and before every checkpoint."""

    def __init__(self, period: int, mesh: Mesh, specs: TrainState, hosts: Sequence[str] = ()):
        """Compiles nothing before the first comparison, and nothing at all on a single device.

        Args:
          period: steps between comparisons; 0: none.
          mesh, specs: placement of the state on the devices.
          hosts: host name of each process, for messages; or none.
        """
        self._period = period if mesh.devices.size > 1 else 0
        self._compared = False
        self._gather = create_gather(mesh, specs)
        self.find_difference = functools.partial(find_difference, devices=list(mesh.devices.flat), hosts=hosts)

    def compare(self, state: TrainState, before: int, after: int, saves: bool) -> jax.Array | None:
        """Starts a comparison if one is due: in the first call, before a checkpoint, and every `period` steps.

        The state is that after a call, which took steps `before` to `after`. It is a collective, so all processes must
        call it alike. Returns digests for `find_difference`, perhaps still being computed; None if none is due.
        """
        is_due = saves or not self._compared
        if not self._period or not (is_due or before // self._period < after // self._period):
            return None
        self._compared = True
        return self._gather(state)


def create_gather(mesh: Mesh, specs: TrainState) -> Callable[[TrainState], jax.Array]:
    """A jitted function: state -> uint32[devices, parts, 2], the digests of all devices' copies, on every device."""

    def gather(state: TrainState) -> jax.Array:
        state = state._replace(compressor=state.compressor._replace(local=None))  # each worker has its own
        return jax.lax.all_gather(jnp.stack([digest(part) for part in state]), (DEVICE_AXIS, FAST_AXIS))

    return jax.jit(jax.shard_map(gather, mesh=mesh, in_specs=(specs,), out_specs=PartitionSpec(), check_vma=False))


def find_difference(digests: np.ndarray, devices: Sequence[Any], hosts: Sequence[str] = ()) -> str | None:
    """Says which devices hold another state than most, and what differs; None if all hold the same.

    `digests` is uint32[devices, parts of a TrainState, 2]; `devices` are in their order, `hosts` in that of processes.
    """
    flat = digests.reshape(len(digests), -1)
    rows, group_of, counts = np.unique(flat, axis=0, return_inverse=True, return_counts=True)
    if len(rows) == 1:
        return None
    changed = np.any(digests != digests[0], axis=(0, 2))
    parts = ", ".join(_PARTS[field] for field, differs in zip(TrainState._fields, changed, strict=True) if differs)
    most = counts.max()
    if np.sum(counts == most) > 1:
        groups = sorted((np.flatnonzero(group_of.reshape(-1) == i).tolist() for i in range(len(rows))), key=min)
        described = " and ".join(_describe(group, devices, hosts) for group in groups)
        return f"{described} differ in {parts}, and no majority tells which is right"
    others = np.flatnonzero(group_of.reshape(-1) != counts.argmax())
    verb = "differs" if len(others) == 1 else "differ"
    return f"{_describe(others.tolist(), devices, hosts)} {verb} from the other {most} devices in {parts}"


def _describe(numbers: Sequence[int], devices: Sequence[Any], hosts: Sequence[str]) -> str:
    """Names devices by process: "device 1 of process 0 (host a), devices 0, 1 of process 2 (host b)"."""
    processes = [device.process_index for device in devices]
    described = []
    for process, group in itertools.groupby(numbers, key=processes.__getitem__):
        places = [str(processes[:number].count(process)) for number in group]
        host = f" (host {hosts[process]})" if hosts else ""
        where = f" of process {process}{host}" if len(set(processes)) > 1 else ""
        described.append(f"device{'s' if len(places) > 1 else ''} {', '.join(places)}{where}")
    return ", ".join(described)
