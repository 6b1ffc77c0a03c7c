"""Whether all devices still hold the same state: a digest of each one's copy, compared now and then.

Every device makes the same updates of its own copy, so copies once different stay so, and no loss tells: a bit that
flipped in one host's memory, another CPU's rounding, another version of a library.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxtern.kernels.noise import mix
from jaxtern.training.step.mesh import DEVICE_AXIS, FAST_AXIS
from jaxtern.training.step.state import TrainState

_LANE_STEPS = 0x9E3779B9, 0x85EBCA6B  # odd
_JOINED_BELOW = 2**16  # words; a loop for each of hundreds of small tensors would take seconds to compile
_WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}
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
    """Hash of the bits of all leaves and of their places, for trees of one structure.

        lane l = sum over words w at positions p of mix(w + p step_l)   mod 2^32

    A word enters by a bijection (an odd multiplier's, shifts' and a constant's), so a change of one word, be it of one
    bit, changes both lanes with certainty. Changes of several words, which include all exchanges of elements or of
    tensors, cancel by chance in one lane of 2^-32, in both of 2^-64. It guards against accidents, not against intent.

    Args:
      tree: of arrays of 1, 2 or 4 bytes an element, real or bool.

    Returns:
      uint32[2].
    """
    vectors = [_words(leaf) for leaf in jax.tree.leaves(tree)]
    small = [words for words in vectors if words.size < _JOINED_BELOW]
    large = [words for words in vectors if words.size >= _JOINED_BELOW]
    total, position = jnp.zeros(2, jnp.uint32), 1
    for words in [jnp.concatenate(small), *large] if small else large:
        total += _sum_lanes(words, position)
        position += words.size
    return total


def _words(leaf: jax.Array) -> jax.Array:
    """The bits as uint32[words]."""
    leaf = jnp.asarray(leaf)
    if leaf.dtype == bool:
        leaf = leaf.astype(jnp.uint8)
    return jax.lax.bitcast_convert_type(leaf, _WORDS[leaf.dtype.itemsize]).reshape(-1).astype(jnp.uint32)


def _sum_lanes(words: jax.Array, first: int) -> jax.Array:
    """Both lanes of words from this position on; as one reduction, since XLA makes no vector code of two sums."""
    positions = jax.lax.iota(jnp.uint32, words.size) + jnp.uint32(first % 2**32)
    lanes = tuple(mix(words + positions * jnp.uint32(step)) for step in _LANE_STEPS)
    zeros = (jnp.uint32(0),) * len(lanes)
    sums = jax.lax.reduce(lanes, zeros, lambda x, y: tuple(a + b for a, b in zip(x, y, strict=True)), (0,))
    return jnp.stack(sums)


class DivergenceGuard:
    """Compares the devices' copies of a run's state every `period` steps, and whenever it is to be saved.

    Attributes:
      find_difference: the function of this name, of the run's devices.
    """

    def __init__(self, period: int, mesh: Mesh, specs: TrainState, hosts: Sequence[str] = ()):
        """Compiles nothing before the first comparison, and on a single device nothing at all.

        Args:
          period: steps between comparisons; 0: there are none.
          mesh, specs: how the state lies on the devices.
          hosts: name of every process's host, to be said beside its number; or none.
        """
        self._period = period if mesh.devices.size > 1 else 0
        self._compared = False
        self._gather = create_gather(mesh, specs)
        self.find_difference = functools.partial(find_difference, devices=list(mesh.devices.flat), hosts=hosts)

    def compare(self, state: TrainState, before: int, after: int, saves: bool) -> jax.Array | None:
        """Starts a comparison where one is due: of a state that is saved, in the first call, and every so many steps.

        All processes must ask alike, as it is a collective: of the state after a call, which went from step `before` to
        step `after`. Given are digests for `find_difference`, which may still be on their way; None where no comparison
        is due.
        """
        is_due = saves or not self._compared
        if not self._period or not (is_due or before // self._period < after // self._period):
            return None
        self._compared = True
        return self._gather(state)


def create_gather(mesh: Mesh, specs: TrainState) -> Callable[[TrainState], jax.Array]:
    """A jitted function: state -> uint32[devices, parts, 2], digests of every device's copy, known to all.

    It is a program of its own: as a part of the step it would add to what every step sends and compiles, while here a
    message of 64 bytes a device is sent only where a comparison is due.
    """

    def gather(state: TrainState) -> jax.Array:
        state = state._replace(compressor=state.compressor._replace(local=None))  # which is each worker's own
        return jax.lax.all_gather(jnp.stack([digest(part) for part in state]), (DEVICE_AXIS, FAST_AXIS))

    return jax.jit(jax.shard_map(gather, mesh=mesh, in_specs=(specs,), out_specs=PartitionSpec(), check_vma=False))


def find_difference(digests: np.ndarray, devices: Sequence[Any], hosts: Sequence[str] = ()) -> str | None:
    """Which devices hold another state than most do, and what of it is different; None where all hold the same.

    Args:
      digests: uint32[devices, parts of a TrainState, 2].
      devices, hosts: in the order of the digests and of the processes; hosts may be none.
    """
    rows, group_of, counts = np.unique(
        digests.reshape(len(digests), -1), axis=0, return_inverse=True, return_counts=True
    )
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
    """Devices by process, counted in each, as "device 1 of process 0 (host a), devices 0, 1 of process 2 (host b)"."""
    processes = [device.process_index for device in devices]
    described = []
    for process, group in itertools.groupby(numbers, key=processes.__getitem__):
        places = [str(processes[:number].count(process)) for number in group]
        host = f" (host {hosts[process]})" if hosts else ""
        where = f" of process {process}{host}" if len(set(processes)) > 1 else ""
        described.append(f"device{'s' if len(places) > 1 else ''} {', '.join(places)}{where}")
    return ", ".join(described)
