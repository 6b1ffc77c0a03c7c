"""Runs whose workers train by themselves between exchanges."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.run.calls import Call
from jaxtern.training.run.loop import train
from jaxtern.training.run.metrics import read_metrics
from jaxtern.training.run.run import Run
from jaxtern.training.saved.trees import MisfitError, digest
from jaxtern.training.step.step import create_train_step

pytestmark = pytest.mark.slow

FIELDS: dict[str, Any] = {
    "model": "tiny_norm", "num_workers": 4, "num_devices": 2, "batch_size": 16, "num_steps": 12, "optimizer": "adam",
    "checkpoint_every": 5, "log_every": 4, "keep_checkpoints": 9, "exchange": "gather",
    "local.steps": 4, "local.fragments": 2, "local.delay": 1, "local.mixing": 0.25,
}  # fmt: skip


def to_host(tree: Any) -> Any:
    return jax.tree.map(np.array, jax.device_get(tree))


def take(run: Run, num_steps: int) -> None:
    """So many steps; the run then stands there, saved."""
    batches = run.feed.batches(run.examples_seen)
    for _ in range(num_steps):
        run.state, _ = run.train_step(run.state, run.feed.examples, next(batches), Call(1, 1))
        run.examples_seen += run.recipe.run.batch_size
    batches.close()
    run.save(int(run.state.step))
    run.close()


def test_bits_are_the_same_on_any_number_of_devices(prepare: Callable, tmp_path: Path):
    """In calls of several steps they are, too, but for the last bits of Adam's means: XLA compiles them together."""
    runs = []
    for number, fields in enumerate(({"num_devices": 1}, {"num_devices": 4}, {"num_devices": 1, "steps_per_call": 5})):
        run = prepare(tmp_path / str(number), **FIELDS | fields)
        train(run)
        losses = [record["loss"] for record in read_metrics(run.workdir) if "loss" in record]
        runs.append((to_host(run.state), losses))
    (one, first), (four, other), (joined, together) = runs
    assert digest(one) == digest(four)
    assert digest(one.params) == digest(joined.params)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), one, joined)
    np.testing.assert_allclose([other, together], [first] * 2, rtol=1e-5)


@pytest.mark.parametrize("stopped", [2, 3, 4, 7])
def test_a_run_goes_on_from_any_step_to_the_bits_of_one_that_was_not_stopped(
    prepare: Callable, tmp_path: Path, stopped: int
):
    whole = prepare(tmp_path / "whole", **FIELDS)
    take(whole, 8)
    take(prepare(**FIELDS), stopped)
    rest = prepare(**FIELDS)
    assert int(rest.state.step) == stopped
    take(rest, 8 - stopped)
    assert digest(to_host(rest.state)) == digest(to_host(whole.state))


def test_shared_weights_move_at_exchanges_alone_and_are_what_is_evaluated(prepare: Callable):
    run = prepare(**FIELDS | {"local.fragments": 1, "local.delay": 0, "local.mixing": 0.0})
    states = [to_host(run.state)]
    batches = run.feed.batches(0)
    for _ in range(8):
        run.state, _ = run.train_step(run.state, run.feed.examples, next(batches), Call(1, 1))
        states.append(to_host(run.state))
    batches.close()
    shared = [digest(state.params) for state in states]
    assert len(set(shared[:4])) == len(set(shared[4:8])) == 1
    assert len(set(shared)) == 3
    for state in (states[4], states[8]):
        for leaf, own in zip(jax.tree.leaves((state.params, state.moments)), jax.tree.leaves(
            (state.compressor.local.params, state.compressor.local.moments)), strict=True):  # fmt: skip
            np.testing.assert_array_equal(own, np.broadcast_to(leaf, own.shape))
    own = states[7].compressor.local.params["fc1"]["kernel"]
    assert len({row.tobytes() for row in own}) == 4
    assert run.evaluate().num_examples == 360


def test_nothing_is_sent_between_exchanges(prepare: Callable, collectives: Callable):
    """Neither gradients nor metrics nor moments: all collectives stand in branches that few steps take."""
    run = prepare(**FIELDS)
    batches = run.feed.batches(0)
    step = create_train_step(run.recipe, run.program, run.mesh)
    program = step.lower(run.state, run.feed.examples, next(batches)).compile().as_text()
    batches.close()
    assert collectives(program)
    assert not collectives(program[program.index("\nENTRY ") :])


@pytest.mark.parametrize("num_workers", [2, 8])
def test_other_workers_go_on_with_the_mean_of_weights_and_moments(prepare: Callable, num_workers: int):
    first = prepare(**FIELDS | {"method": "sign"})
    take(first, 6)
    run = prepare(allow_config_change=True, **FIELDS | {"method": "sign", "num_workers": num_workers})
    before, after = to_host(first.state), to_host(run.state)
    assert digest(before.params) == digest(after.params)
    assert int(after.step) == 6
    for old, new in zip(jax.tree.leaves(before.compressor.local), jax.tree.leaves(after.compressor.local), strict=True):
        assert len(new) == num_workers
        np.testing.assert_allclose(new.mean(axis=0), old.mean(axis=0), rtol=1e-4, atol=1e-6)
    take(run, 2)


def test_a_run_of_every_step_does_not_go_on_by_local_steps(prepare: Callable):
    every = {name: value for name, value in FIELDS.items() if not name.startswith("local.")}
    take(prepare(**every), 2)
    with pytest.raises(MisfitError, match=r"does not go on by mean\.method='ternary' with local\.steps=4"):
        prepare(allow_config_change=True, **FIELDS)


def test_frozen_slices_averages_and_decay_go_together(prepare: Callable):
    run = prepare(**FIELDS | {"average_decay": 0.9, "freeze": ("fc2/kernel[:3]",), "weight_decay": 0.1})
    before = to_host(run.state)
    train(run)
    after = to_host(run.state)
    np.testing.assert_array_equal(after.params["fc2"]["kernel"][:3], before.params["fc2"]["kernel"][:3])
    assert np.any(after.params["fc2"]["kernel"][3:] != before.params["fc2"]["kernel"][3:])
    assert digest(after.averages.params) not in (digest(after.params), digest(before.params))


def test_averages_of_moments_begin_with_the_first_ones_of_a_batch(prepare: Callable):
    """Fragments are merged every two steps, and moments with each."""
    run = prepare(**FIELDS | {"average_decay": 0.9})
    take(run, 2)
    state = to_host(run.state)
    assert digest(state.averages.moments) == digest(state.moments)
    assert digest(state.averages.params) != digest(state.params)


def test_bits_sent_are_those_of_exchanges(prepare: Callable):
    """Of six, after steps 1, 3, 5, ... as they are sent a step early; the first two are before step 4."""
    run = prepare(**FIELDS | {"compress_from": 4})
    floats, ternary = (run.wires[phase].bits_per_element for phase in (0, 1))
    told = run.describe_sent()
    assert told.startswith(f"{(2 * floats + 4 * ternary) / 6:.2f} bits per gradient element")
    assert told.endswith("(2 of 6 exchanges float)")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"local.steps": 5}, "local.fragments=2: must divide steps=5"),
        ({"local.steps": 8}, "local.steps=8: must divide run.num_steps=12, as 6 and 12 would"),
        ({"local.delay": 2}, "local.delay=2: must be below steps / fragments = 2"),
        ({"local.mixing": 2.0}, "local.mixing=2.0: must be from 0 to 1"),
        ({"local.outer_momentum": 1.0}, "local.outer_momentum=1.0: must be 0 or more, and below 1"),
        ({"precision": "float16"}, "model.precision='float16': must be another where local.steps=4"),
        ({"batch_norm": "sync"}, "model.batch_norm='sync': must be 'local' where local.steps=4"),
        ({"batch_norm": "first"}, "model.batch_norm='first': must be 'local' where local.steps=4"),
        ({"virtual_workers": "vmapped"}, "run.virtual_workers='vmapped': must be 'unrolled' where local.steps=4"),
        ({"histograms_every": 3}, "run.histograms_every=3: must be 0 where local.steps=4"),
        ({"mean.statistics": True}, "mean.statistics=True: must be False where local.steps=4"),
        ({"mean.delayed": True}, "mean.delayed=True: must be False where local.steps=4"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused_in_one_line(
    small_recipe: Callable[..., Recipe], fields: dict[str, Any], message: str
):
    with pytest.raises(ValueError, match="must") as error:
        small_recipe(**FIELDS | fields)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_section_names_all_of_its_fields(small_recipe: Callable[..., Recipe]):
    local = small_recipe(**FIELDS).local
    assert dataclasses.asdict(local) == {
        "steps": 4, "outer_rate": 0.7, "outer_momentum": 0.9, "fragments": 2, "delay": 1, "mixing": 0.25,
    }  # fmt: skip
