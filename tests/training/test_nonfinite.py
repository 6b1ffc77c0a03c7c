"""What is not finite stops the run at its step, by name, and never reaches a checkpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtern.training.run import loop
from jaxtern.training.run.run import Run
from jaxtern.training.step import update
from jaxtern.training.step.compiler import step_options
from jaxtern.training.step.state import TrainState
from jaxtern.training.step.step import Metrics

ALL = [f"{layer}/{leaf}" for layer in ("fc1", "fc2") for leaf in ("bias", "kernel")]
Change = Callable[[Any], Any]


def change_before(run: Run, step: int, before: Change = lambda x: x, after: Change = lambda x: x) -> None:
    """Hands the run's step number `step` (from 1) a changed state, or its caller changed metrics."""
    train_step, calls = run.train_step, []

    def changed(state: TrainState, *arguments: Any) -> tuple[TrainState, Metrics]:
        calls.append(state)
        now = len(calls) == step
        state, metrics = train_step(before(state) if now else state, *arguments)
        return state, after(metrics) if now else metrics

    run.train_step = changed


def poison(tree: Any, path: str, value: float) -> Any:
    """The tree with one number of the leaf whose path ends so replaced."""

    def replace(keys: Any, leaf: jax.Array) -> jax.Array:
        hit = jax.tree_util.keystr(keys, simple=True, separator="/").endswith(path)
        return leaf.at[(0,) * leaf.ndim].set(value) if hit else leaf

    return jax.tree_util.tree_map_with_path(replace, tree)


def stop(run: Run) -> str:
    with pytest.raises(loop.NonFiniteError) as caught:
        loop.train(run)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_finite_checkpoints(prepare: Callable, workdir: Path, steps: list[int], **fields: Any) -> None:
    run = prepare(workdir, **fields)
    assert run.checkpoints.steps() == steps
    for step in steps:
        for leaf in jax.tree.leaves(run.checkpoints.restore(step, run.state).state):
            assert np.all(np.isfinite(leaf))
    assert int(run.state.step) == steps[-1]


@pytest.mark.parametrize("shape", [(), (1,), (1000,), (7, 3000)])
def test_nonfinite_is_one_element_among_the_largest_floats(shape: tuple[int, ...]):
    """Whose own sum is beyond all floats, and no sign of anything."""
    largest = np.full(shape, np.finfo(np.float32).max, np.float32)
    tree = {"largest": largest, "least": np.full(shape, 1e-45, np.float32), "negative": -largest}
    for name, value in (("inf", np.inf), ("minus_inf", -np.inf), ("nan", np.nan)):
        tree[name] = largest.copy()
        tree[name][(-1,) * len(shape)] = value
    found = jax.jit(update.nonfinite, compiler_options=step_options(jax.default_backend()))(tree)
    assert dict(zip(sorted(tree), found.tolist(), strict=True)) == {
        "inf": True, "largest": False, "least": False, "minus_inf": True, "nan": True, "negative": False,
    }  # fmt: skip


@pytest.mark.few("nan-ternary")
@pytest.mark.parametrize("method", ["ternary", "float"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nonfinite_weight_stops_the_run_at_its_step(prepare: Callable, tmp_path: Path, value: float, method: str):
    fields = {"num_steps": 8, "checkpoint_every": 2, "method": method}
    run = prepare(**fields)
    change_before(run, 5, before=lambda state: state._replace(params=poison(state.params, "fc2/kernel", value)))
    message = stop(run)
    run.close()
    assert message.startswith("step 5: loss nan, not finite in ")
    for path in ("fc1/kernel", "fc2/bias", "fc2/kernel"):
        assert path in message
    assert message.endswith("the last good checkpoint is at step 4")
    assert_finite_checkpoints(prepare, tmp_path / "run", [0, 2, 4], **fields)


def test_nonfinite_in_the_first_step_leaves_the_first_weights(prepare: Callable, tmp_path: Path):
    run = prepare(checkpoint_every=1)
    change_before(run, 1, before=lambda state: state._replace(params=poison(state.params, "fc2/bias", np.nan)))
    assert stop(run).endswith("the last good checkpoint is at step 0")
    run.close()
    assert_finite_checkpoints(prepare, tmp_path / "run", [0], checkpoint_every=1)


def test_nonfinite_update_of_finite_gradients_is_never_saved(prepare: Callable, tmp_path: Path):
    """An optimiser that overflows spoils one weight while the loss and all gradients are still finite."""
    run = prepare(checkpoint_every=1)
    change_before(run, 3, before=lambda state: state._replace(optimizer=poison(state.optimizer, "fc1/kernel", np.inf)))
    message = stop(run)
    run.close()
    assert message.startswith("step 3: loss 2.")
    assert "not finite in fc1/kernel;" in message
    assert_finite_checkpoints(prepare, tmp_path / "run", [0, 1, 2], checkpoint_every=1)


@pytest.mark.few("bad0-4", "bad1-6")
@pytest.mark.parametrize("step", [1, 4, 6])  # the last one too
@pytest.mark.parametrize("bad", [[0], [1, 2]])
def test_nonfinite_tensors_are_named(prepare: Callable, step: int, bad: list[int]):
    run = prepare()
    change_before(
        run, step, after=lambda metrics: metrics | {"nonfinite": jnp.zeros(4, bool).at[jnp.array(bad)].set(True)}
    )
    message = stop(run)
    assert message.startswith(f"step {step}: loss ")
    assert f"not finite in {', '.join(ALL[i] for i in bad)};" in message


def test_nonfinite_loss_alone_stops_the_run(prepare: Callable):
    run = prepare()
    change_before(run, 2, after=lambda metrics: metrics | {"loss": jnp.float32(np.inf)})
    assert stop(run).startswith("step 2: loss inf, gradients and weights finite;")


def test_nonfinite_learning_rate_too_high_stops_the_run(prepare: Callable, tmp_path: Path):
    fields = {"learning_rate": 1e30, "checkpoint_every": 1}
    run = prepare(**fields)
    message = stop(run)
    run.close()
    assert message.startswith("step 2: loss")
    assert_finite_checkpoints(prepare, tmp_path / "run", [0, 1], **fields)
