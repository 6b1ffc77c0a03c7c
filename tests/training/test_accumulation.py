"""Batches in parts: the same gradients as of whole ones, and no more exchanges."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from jaxtern.training.run.calls import Call
from jaxtern.training.run.run import Run
from jaxtern.training.step.mesh import create_mesh
from jaxtern.training.step.step import create_train_step

PLAIN = {"method": "float", "optimizer": "sgd", "learning_rate": 1.0, "batch_size": 24}
LAYOUTS = {
    "one": {"num_workers": 1},
    "devices": {"num_workers": 2, "num_devices": 2},
    "unrolled": {"num_workers": 2, "num_devices": 1},
    "vmapped": {"num_workers": 2, "num_devices": 1, "virtual_workers": "vmapped"},
    "of a worker": {"num_workers": 2, "num_devices": 4, "devices_per_worker": 2},
}


def compile_text(run: Run, num_steps: int = 1) -> str:
    """The optimised program of a run's step."""
    step: Any = create_train_step(run.recipe, run.program, create_mesh(run.recipe), num_steps=num_steps)
    batch = next(run.feed.batches(0, [num_steps]))
    return step.lower(run.state, run.feed.examples, batch).compile().as_text()


@pytest.mark.few("unrolled")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_give_the_step_of_the_whole_batch(take_steps: Callable, layout: str):
    """Weight decay in the loss counts once, too; loss and accuracy are those of all examples."""
    whole, parts = (
        take_steps(2, weight_decay=0.25, accumulation=k, **PLAIN | LAYOUTS[layout]) for k in (1, 3)
    )  # fmt: skip
    for i in (1, 2):
        for one, other in zip(*(jax.tree.leaves(run.states[i].params) for run in (whole, parts)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        for name in ("loss", "accuracy"):
            np.testing.assert_allclose(whole.metrics[i - 1][name], parts.metrics[i - 1][name], rtol=1e-5)


def test_moving_moments_move_once_a_part(take_steps: Callable):
    """Parts normalise by their own moments, one behind another: the share of batches is then 1 - momentum^3, not ^1."""
    whole, parts = (take_steps(1, accumulation=k, **PLAIN | {"model": "tiny_norm"}) for k in (1, 3))
    shares = [float(run.states[1].moments["norm"]["share"]) for run in (whole, parts)]
    assert shares == pytest.approx([0.25, 1 - 0.75**3])
    means = [run.states[1].moments["norm"]["mean"] for run in (whole, parts)]
    np.testing.assert_allclose(means[1], means[0], atol=0.3 * np.abs(means[0]).max())
    assert np.abs(means[1] - means[0]).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ternary", "float"])
def test_parts_are_exchanged_once(prepare: Callable, wire: Callable, tmp_path: Any, method: str):
    fields = {"num_workers": 4, "num_devices": 4, "batch_size": 24, "exchange": "gather"}
    sent = []
    for k in (1, 3):
        run = prepare(tmp_path / str(k), method=method, accumulation=k, **fields)
        step: Any = create_train_step(run.recipe, run.program, create_mesh(run.recipe))
        sent.append(wire(step, run.state, run.feed.examples, next(run.feed.batches(0))))
    assert sent[0] == sent[1]
    assert sent[0]


@pytest.mark.usefixtures("emitters")
@pytest.mark.few("fields0")
@pytest.mark.parametrize("fields", [{"accumulation": 3}, {"num_steps": 6}, {"accumulation": 3, "num_steps": 6}])
def test_program_for_cpus_has_no_loop(prepare: Callable, fields: dict[str, int]):
    """There a convolution in one is slow."""
    run = prepare(num_workers=2, batch_size=24, method="float", **fields)
    assert " while(" not in compile_text(run, fields.get("num_steps", 1))


def test_loops_can_be_seen(prepare: Callable):
    """So the test above can fail: noise and dropout draw in loops."""
    assert " while(" in compile_text(prepare(model="tiny_drop", batch_size=24))


def test_batch_that_does_not_divide_into_parts_is_refused(recipe_of: Callable):
    assert recipe_of(batch_size=24, num_workers=2, devices_per_worker=2, accumulation=3).run.accumulation == 3
    with pytest.raises(ValueError, match="accumulation=4: must divide the 6 examples that a device has of a batch"):
        recipe_of(batch_size=24, num_workers=2, devices_per_worker=2, accumulation=4)
    with pytest.raises(ValueError, match="accumulation=0: must be 1 or more"):
        recipe_of(accumulation=0)


def test_call_of_one_step_has_no_axis_of_steps(prepare: Callable):
    run = prepare(num_steps=3)
    _, metrics = run.train_step(run.state, run.feed.examples, next(run.feed.batches(0)), Call(1, True))
    assert metrics["loss"].shape == ()
