"""python -m benchmarks.chaos_flip FLAGS: jaxtern.train, where SIGUSR1 flips one bit of this process's weights."""

import signal
from pathlib import Path
from typing import Any

asked: list[int] = []
if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, lambda number, _: asked.append(number))  # before the seconds that imports take

import jax  # noqa: E402
import numpy as np  # noqa: E402

from jaxtern import cluster, recipe_flags, train  # noqa: E402
from jaxtern.training.recipe import Recipe  # noqa: E402
from jaxtern.training.run import Run, prepare_run  # noqa: E402
from jaxtern.training.state import TrainState  # noqa: E402

_BIT = 1 << 3  # of the fraction: a change that no loss tells


def prepare_run_to_be_flipped(given: Recipe, workdir: Path, allow_config_change: bool = False) -> Run:
    """As `prepare_run`; before the step that follows a signal the bit is flipped."""
    run = prepare_run(given, workdir, allow_config_change)
    whole = run.train_step

    def train_step(state: TrainState, *rest: Any) -> Any:
        return whole(flip(state) if asked and asked.pop() else state, *rest)

    run.train_step = train_step
    return run


def flip(state: TrainState) -> TrainState:
    """Another state in this process alone: one bit in the middle of the largest tensor."""
    leaves, structure = jax.tree.flatten(state.params)
    place = max(range(len(leaves)), key=lambda i: leaves[i].size)
    leaf, local = leaves[place], np.array(leaves[place].addressable_data(0))
    local.reshape(-1).view(np.uint32)[local.size // 2] ^= _BIT
    own = [jax.device_put(local, device) for device in leaf.sharding.addressable_devices]
    leaves[place] = jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, own)
    return state._replace(params=jax.tree.unflatten(structure, leaves))


if __name__ == "__main__":
    train.prepare_run = prepare_run_to_be_flipped
    with cluster.leaving_when_failed():
        recipe_flags.run(train.main)
