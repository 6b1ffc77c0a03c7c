"""python -m benchmarks.chaos.train FLAGS: jaxtern.train as benchmarks.chaos has it run on hosts.

What the examples of every step are goes to the files that EXAMPLES names; SIGUSR1 flips one bit of this process's
weights.
"""

import json
import os
import signal
from pathlib import Path
from typing import Any

asked: list[int] = []
if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, lambda number, _: asked.append(number))  # before the seconds that imports take

import jax  # noqa: E402
import numpy as np  # noqa: E402

from benchmarks.chaos.examples import EXAMPLES  # noqa: E402
from jaxtern import cluster, command_line, train  # noqa: E402
from jaxtern.data.rendering import Batch  # noqa: E402
from jaxtern.training.recipe.recipe import Recipe  # noqa: E402
from jaxtern.training.run.run import Run, prepare_run  # noqa: E402
from jaxtern.training.step.state import TrainState  # noqa: E402

_BIT = 1 << 3  # of the fraction: a change that no loss tells


def prepare_run_to_be_disturbed(given: Recipe, workdir: Path, allow_config_change: bool = False) -> Run:
    """As `prepare_run`; before each step its examples are noted, and after a signal the bit is flipped."""
    run = prepare_run(given, workdir, allow_config_change)
    whole, step = run.train_step, run.last_saved

    def train_step(state: TrainState, images: Any, batch: Batch, *rest: Any) -> Any:
        nonlocal step
        step += 1
        note_examples(step, batch, run.inputs.dataset.train.size)
        return whole(flip(state) if asked and asked.pop() else state, images, batch, *rest)

    run.train_step = train_step
    return run


def note_examples(step: int, batch: Batch, size: int) -> None:
    """Which examples of an epoch this process's workers take in a step, by their places in the dataset."""
    own = np.asarray(batch.examples.addressable_data(0))  # of images that lie on the devices, their numbers
    line = json.dumps({"step": step, "epoch_size": size, "examples": own.tolist()}) + "\n"
    with Path(f"{os.environ[EXAMPLES]}.{jax.process_index()}").open("a") as file:
        file.write(line)


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
    train.prepare_run = prepare_run_to_be_disturbed
    with cluster.leaving_when_failed():
        command_line.run(train.main)
