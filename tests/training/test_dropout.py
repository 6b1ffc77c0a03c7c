"""Dropout's keys: no two alike, and the same however the workers lie on devices."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxtern.training.recipe.mean import MeanSection
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.recipe.run import RunSection
from jaxtern.training.run import loop
from jaxtern.training.run.run import Run
from jaxtern.training.saved.trees import digest
from jaxtern.training.step.gradients import create_local_gradients, dropout_key, example_keys
from jaxtern.training.step.mesh import DEVICE_AXIS, FAST_AXIS, create_mesh
from jaxtern.training.step.state import specs_of_state

PLAIN = {"model": "tiny_drop", "method": "float", "optimizer": "sgd", "learning_rate": 1.0, "batch_size": 16}
VIRTUAL = {
    "unrolled": {"num_devices": 1},
    "vmapped": {"num_devices": 1, "virtual_workers": "vmapped"},
    "both": {"num_devices": 2, "virtual_workers": "vmapped"},
}


def keys_of_devices(seed: int, step: int, worker: int) -> list[tuple]:
    """Of the two devices of a worker."""
    mesh = create_mesh(
        Recipe(mean=MeanSection(devices_per_worker=2), run=RunSection(num_workers=1, batch_size=2, num_devices=2))
    )

    def on_device() -> jax.Array:
        return jax.random.key_data(dropout_key(seed, jax.numpy.int32(step), jax.numpy.int32(worker)))[None]

    mapped = jax.shard_map(on_device, mesh=mesh, in_specs=(), out_specs=PartitionSpec(FAST_AXIS), check_vma=False)
    return [tuple(key) for key in np.asarray(jax.jit(mapped)())]


def gradients(take_steps: Callable, **fields: Any) -> np.ndarray:
    """Of the first step: the rate is 1, and the mean float."""
    run = take_steps(1, **PLAIN | fields)
    return run.states[0].params["fc1"]["kernel"] - run.states[1].params["fc1"]["kernel"]


def test_keys_of_seeds_steps_workers_and_devices_differ():
    keys = [key for seed in (0, 1) for step in (0, 1, 2) for worker in (0, 1, 2) for key in
            keys_of_devices(seed, step, worker)]  # fmt: skip
    assert len(set(keys)) == len(keys) == 36
    epochs, places = np.divmod(np.arange(200, dtype=np.int32), 20)
    assert not set(keys) & set(map(tuple, np.asarray(jax.random.key_data(example_keys(0, epochs, places)))))


def dropped_by_workers(run: Run, step: int) -> list[tuple]:
    """Which inputs have no gradient, of three workers with an example each on three devices."""
    mesh = create_mesh(run.recipe)
    local = create_local_gradients(run.recipe, run.program, 1, is_cpu=True)

    def on_device(state: Any, batch: Any) -> jax.Array:
        (own,) = local(state, jax.tree.map(lambda leaf: leaf[None], batch), jax.lax.axis_index(DEVICE_AXIS))
        return own.gradients["fc1"]["kernel"][None]

    specs = specs_of_state(), PartitionSpec(DEVICE_AXIS)
    mapped = jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=specs[1], check_vma=False)
    batch = next(run.feed.batches(0))
    batch = batch._replace(examples=np.asarray(run.feed.examples)[np.asarray(batch.examples)])
    kernels = jax.jit(mapped)(run.state._replace(step=np.int32(step)), batch)
    return [tuple(np.all(kernel == 0, axis=1)) for kernel in np.asarray(kernels)]


def test_inputs_are_dropped_and_each_worker_and_step_drops_others(prepare: Callable):
    run = prepare(**PLAIN | {"num_workers": 3, "batch_size": 3, "num_devices": 3})
    dropped = [worker for step in (0, 1) for worker in dropped_by_workers(run, step)]
    assert len(set(dropped)) == 6
    assert all(15 < sum(each) < 49 for each in dropped)


@pytest.mark.few("both")
@pytest.mark.parametrize("layout", VIRTUAL)
def test_virtual_workers_drop_what_real_ones_drop(take_steps: Callable, layout: str):
    real = take_steps(3, num_workers=4, num_devices=4, **PLAIN)
    virtual = take_steps(3, num_workers=4, **PLAIN | VIRTUAL[layout])
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), virtual.states[3].params, real.states[3].params
    )


@pytest.mark.slow
def test_workers_devices_and_parts_of_a_batch_drop_differently(take_steps: Callable):
    """Four parts of the same sixteen examples: as one worker's, four workers', a worker's devices', one behind another.

    Were any key used twice, two of these had the same gradient but for rounding.
    """
    ways = [
        {},
        {"num_workers": 4, "num_devices": 4},
        {"num_devices": 4, "devices_per_worker": 4},
        {"accumulation": 4},
        {"accumulation": 4, "seed": 6},
    ]
    found = [gradients(take_steps, **fields) for fields in ways]
    for i, one in enumerate(found):
        for other in found[:i]:
            assert np.abs(one - other).max() > 1e-2


@pytest.mark.slow
def test_accumulated_parts_have_keys_of_their_own(take_steps: Callable):
    """Parts with one key would drop the same half of the inputs; by eight keys, 2^-8 of them have no gradient."""
    gradient = gradients(take_steps, batch_size=8, accumulation=8)
    lit = np.abs(gradient).max(axis=1) > 0
    assert np.mean(lit) > 0.9
    alone = gradients(take_steps, batch_size=1)
    assert np.mean(np.abs(alone).max(axis=1) > 0) < 0.7


@pytest.mark.slow
def test_run_with_dropout_goes_on_as_if_never_stopped(prepare: Callable, tmp_path: Path):
    straight = prepare(tmp_path / "straight", **PLAIN, num_steps=4)
    loop.train(straight)
    first = prepare(tmp_path / "stopped", **PLAIN, num_steps=2)
    loop.train(first)
    first.close()
    again = prepare(tmp_path / "stopped", allow_config_change=True, **PLAIN, num_steps=4)
    assert int(again.state.step) == 2
    loop.train(again)
    assert digest(jax.device_get(again.state)) == digest(jax.device_get(straight.state))
