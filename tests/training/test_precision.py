"""Half precision: of activations alone; and overflows, which skip a step on all workers alike."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.run import loop
from jaxtern.training.run.calls import Call
from jaxtern.training.run.metrics import read_metrics
from jaxtern.training.run.run import Run
from jaxtern.training.saved.trees import digest
from jaxtern.training.step import step as step_lib
from jaxtern.training.step.mesh import FAST_AXIS, create_mesh
from jaxtern.training.step.precision import LossScale, adjust_scale
from jaxtern.training.step.step import create_train_step

HALF = {"model": "tiny_norm", "precision": "float16", "batch_size": 16, "optimizer": "adam", "average_decay": 0.9}
LAYOUTS = {
    "devices": {"num_workers": 4, "num_devices": 4},
    "unrolled": {"num_workers": 4, "num_devices": 2},
    "vmapped": {"num_workers": 4, "num_devices": 2, "virtual_workers": "vmapped"},
    "of a worker": {"num_workers": 4, "num_devices": 8, "devices_per_worker": 2},
}


def overflow_in(monkeypatch: pytest.MonkeyPatch, steps: tuple[int, ...], worker: int = 2) -> None:
    """One element of one worker's gradient, on the last of its devices, is infinite in these steps, counted from 0."""
    create = step_lib.create_local_gradients

    def create_overflowing(recipe: Recipe, *arguments: Any) -> Callable:
        local_gradients = create(recipe, *arguments)

        def overflowing(state: Any, batch: Any, first: jax.Array) -> list:
            is_due = jnp.any(state.step == jnp.array(steps))
            is_due &= jax.lax.axis_index(FAST_AXIS) == recipe.mean.worker_devices - 1

            def spoil(number: int, each: Any) -> Any:
                kernel = each.gradients["fc2"]["kernel"]
                worst = jnp.where(is_due & (first + number == worker), jnp.inf, kernel[0, 0])
                gradients = {**each.gradients, "fc2": {**each.gradients["fc2"], "kernel": kernel.at[0, 0].set(worst)}}
                return each._replace(gradients=gradients)

            return [spoil(number, each) for number, each in enumerate(local_gradients(state, batch, first))]

        return overflowing

    monkeypatch.setattr(step_lib, "create_local_gradients", create_overflowing)


def walk(run: Run, num_steps: int) -> tuple[list[Any], list[dict[str, Any]]]:
    """States, the first among them, and metrics."""
    states, metrics, batches = [jax.tree.map(np.array, run.state)], [], run.feed.batches(0)
    for _ in range(num_steps):
        run.state, measured = run.train_step(run.state, run.feed.examples, next(batches), Call(1, 1))
        states.append(jax.tree.map(np.array, run.state))
        metrics.append(jax.device_get(measured))
    batches.close()
    return states, metrics


@pytest.mark.parametrize(("precision", "name"), [("bfloat16", "bf16"), ("float16", "f16"), ("float32", "f32")])
def test_products_are_of_that_precision_and_weights_are_float32(prepare: Callable, precision: str, name: str):
    run = prepare(model="tiny_norm", precision=precision, method="float")
    step: Any = create_train_step(run.recipe, run.program, create_mesh(run.recipe))
    text = step.lower(run.state, run.feed.examples, next(run.feed.batches(0))).as_text()
    products = re.findall(r"stablehlo\.dot_general .*? : \(tensor<\S*x(\w+)>, tensor<\S*x(\w+)>\)", text)
    assert products == [(name, name)] * 5  # two layers, their weights' gradients, one of activations
    for part in (run.state.params, run.state.moments, run.state.optimizer):
        assert {str(leaf.dtype) for leaf in jax.tree.leaves(part)} <= {"float32", "int32"}
    assert (run.state.loss_scale is None) == (precision != "float16")


@pytest.mark.few("float16*")
@pytest.mark.parametrize(("precision", "tolerance"), [("bfloat16", 0.1), ("float16", 0.02)])
def test_update_is_that_of_float32_but_for_rounding(take_steps: Callable, precision: str, tolerance: float):
    fields = {"model": "tiny_norm", "optimizer": "sgd", "learning_rate": 1.0, "num_workers": 2, "batch_size": 16}
    for method in ("float", "ternary"):
        half, full = (
            take_steps(1, precision=each, method=method, statistics=method == "ternary", **fields)
            for each in (precision, "float32")
        )
        for name in ("loss", *(["compression/error"] if method == "ternary" else [])):
            np.testing.assert_allclose(half.metrics[0][name], full.metrics[0][name], rtol=0.02)
        if method == "float":
            moved = [jax.tree.map(np.subtract, *(run.states[i].params for i in (0, 1))) for run in (half, full)]
            for one, other in zip(*map(jax.tree.leaves, moved), strict=True):
                np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * np.abs(other).max())


def test_factor_does_not_change_the_update(take_steps: Callable):
    """A power of two that is taken out again; but for what vanishes, or has fewer digits, near float16's least."""
    fields = HALF | {"optimizer": "sgd", "learning_rate": 1.0, "method": "float", "average_decay": 0.0}
    first, other = (take_steps(1, loss_scale=scale, **fields) for scale in (2.0**10, 2.0**13))
    for one, two in zip(*(jax.tree.leaves(run.states[1].params) for run in (first, other)), strict=True):
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    ["devices", "unrolled", *(pytest.param(layout, marks=pytest.mark.slow) for layout in ("vmapped", "of a worker"))],
)
def test_overflow_of_one_worker_skips_the_step_of_all(prepare: Callable, monkeypatch: pytest.MonkeyPatch, layout: str):
    overflow_in(monkeypatch, (1,))
    states, metrics = walk(prepare(loss_scale=1024.0, **HALF | LAYOUTS[layout]), 3)
    assert [m["overflow"] for m in metrics] == [0, 1, 0]
    assert [m["loss_scale"] for m in metrics] == [1024, 1024, 512]
    assert not any(m["nonfinite"].any() for m in metrics)
    for name in ("params", "moments", "optimizer", "averages"):
        one, skipped, two = (jax.tree.leaves(getattr(states[i], name)) for i in (1, 2, 3))
        assert [leaf.tobytes() for leaf in one] == [leaf.tobytes() for leaf in skipped]
        assert any(leaf.tobytes() != other.tobytes() for leaf, other in zip(one, two, strict=True))
        assert all(np.all(np.isfinite(leaf)) for leaf in two)
    assert [(int(state.step), int(state.compressor.count)) for state in states] == [(0, 0), (1, 1), (2, 1), (3, 2)]
    assert [tuple(map(float, state.loss_scale)) for state in states] == [(1024, 0), (1024, 1), (512, 0), (512, 1)]


@pytest.mark.few("dgc")
@pytest.mark.parametrize("method", ["dgc", "low_rank"])  # local state, and shared
def test_overflow_leaves_what_the_method_carries_as_it_was(
    prepare: Callable, monkeypatch: pytest.MonkeyPatch, method: str
):
    overflow_in(monkeypatch, (1,))
    fields = HALF | LAYOUTS["unrolled"] | {"method": method, "density": 0.1, "two_way": True, "optimizer": "sgd"}
    states, metrics = walk(prepare(loss_scale=1024.0, **fields), 3)
    assert [m["overflow"] for m in metrics] == [0, 1, 0]
    carried = [digest(state.compressor) for state in states]
    assert carried[1] == carried[2]
    assert len(set(carried)) == 3
    assert bool(jax.tree.leaves(states[1].compressor.local)) == (method != "ternary")


def test_factor_that_is_too_high_comes_down_by_itself(prepare: Callable):
    """float16 ends at 65,504."""
    states, metrics = walk(prepare(loss_scale=2.0**24, **HALF), 10)
    skipped = [bool(m["overflow"]) for m in metrics]
    assert all(skipped[:3])
    assert sum(skipped) < 10
    assert states[-1].loss_scale.factor == 2.0 ** (24 - sum(skipped))
    assert np.all(np.isfinite(states[-1].params["fc1"]["kernel"]))


@pytest.mark.slow
def test_divergence_ends_the_run_once_no_factor_helps(
    prepare: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    overflow_in(monkeypatch, tuple(range(20)), worker=0)
    run = prepare(loss_scale=4.0, num_steps=20, **HALF)
    with pytest.raises(loop.NonFiniteError, match=r"^step 3: loss \d.*, not finite in fc2/kernel; the last good"):
        loop.train(run)
    assert [record.get("loss") for record in read_metrics(tmp_path / "run")] == [None, None]


@pytest.mark.slow
def test_log_leaves_skipped_steps_out_of_its_means(
    prepare: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, read_jsonl: Callable
):
    """And says how many were, by which factor, and the rate, which such a step does not move."""
    overflow_in(monkeypatch, (1, 2), worker=0)
    fields = HALF | {"schedule": "exponential", "decay_epochs": 8 / 1437, "batch_size": 8, "learning_rate": 0.01}
    fields |= {"loss_scale": 1024.0, "num_steps": 5, "statistics": True}
    loop.train(prepare(tmp_path / "each", log_every=1, **fields))
    loop.train(prepare(tmp_path / "all", log_every=5, **fields))
    each, (record,) = (
        [r for r in read_jsonl(tmp_path / name / "metrics.jsonl") if "learning_rate" in r] for name in ("each", "all")
    )
    assert [r["step"] for r in each if "loss" in r] == [1, 4, 5]
    for name in ("loss", "accuracy", "compression/cosine"):
        assert [name in r for r in each] == [True, False, False, True, True]
        assert record[name] == pytest.approx(np.mean([r[name] for r in each if name in r]))
    assert (record["overflow"], record["loss_scale"]) == (0.4, np.mean([1024, 1024, 512, 256, 256]))
    rates = [1e-2, 1e-3, 1e-3, 1e-3, 1e-4]
    np.testing.assert_allclose([r["learning_rate"] for r in each], rates, rtol=1e-5)
    assert record["learning_rate"] == pytest.approx(1e-4, rel=1e-5)


def test_factor_halves_down_to_one_and_doubles_after_two_thousand_good_steps():
    scale = LossScale(jnp.float32(4), jnp.int32(0))
    for expected in (2, 1, 1):
        scale = adjust_scale(scale, jnp.bool_(True))
        assert tuple(map(float, scale)) == (expected, 0)
    for good, expected in ((1998, (8, 1999)), (1999, (16, 0))):
        scale = adjust_scale(LossScale(jnp.float32(8), jnp.int32(good)), jnp.bool_(False))
        assert tuple(map(float, scale)) == expected
    scale = adjust_scale(LossScale(jnp.float32(2**24), jnp.int32(1999)), jnp.bool_(False))
    assert tuple(map(float, scale)) == (2**24, 0)
    scale = adjust_scale(LossScale(jnp.float32(8), jnp.int32(1999)), jnp.bool_(True))
    assert tuple(map(float, scale)) == (4, 0)


def test_float16_of_delayed_means_is_refused(recipe_of: Callable):
    assert recipe_of(precision="bfloat16", delayed=True).mean.delayed
    with pytest.raises(ValueError, match=r"precision='float16': must be another where mean.delayed=True"):
        recipe_of(precision="float16", delayed=True)
