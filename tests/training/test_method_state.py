"""What a method carries is never lost: by a stop, a kill, float steps, or another number of workers."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest

from jaxtern.compression.reducer import share_out
from jaxtern.training.run import loop
from jaxtern.training.run.calls import Call, plan_calls
from jaxtern.training.run.metrics import read_metrics
from jaxtern.training.run.run import Run
from jaxtern.training.run.saved_run import open_run
from jaxtern.training.run.stopping import Stopped
from jaxtern.training.saved import elastic
from jaxtern.training.saved.trees import MisfitError, digest

EPOCHS = {  # of four steps
    "data": "synthetic", "synthetic_shape": (4, 4, 1), "synthetic_examples": 32,
    "synthetic_classes": 3, "num_workers": 4, "num_devices": 2, "batch_size": 8, "optimizer": "sgd",
    "num_steps": 10,
}  # fmt: skip
METHODS: dict[str, dict[str, Any]] = {
    "top_k": {"method": "top_k", "density": 0.1},
    "dgc": {"method": "dgc", "density": 0.05, "density_warmup": (0.5, 0.2)},
    "low_rank": {"method": "low_rank", "rank": 2, "min_ratio": 1.0},
    "sign": {"method": "sign", "two_way": True},
    "delayed": {"delayed": True, "exchange": "gather"},
    "ternary with feedback": {"error_feedback": True, "exchange": "two_way"},
}
FEW = [pytest.param(name, marks=[pytest.mark.slow] * (name != "low_rank")) for name in METHODS]


def to_host(tree: Any) -> Any:
    return jax.tree.map(np.array, jax.device_get(tree))


def walk(run: Run, num_steps: int) -> list[Any]:
    """The compressor's state before each step, and after the last."""
    calls = plan_calls(run.recipe.run, run.recipe.mean, run.inputs.dataset.train.size, 0, 0)
    batches, states = run.feed.batches(0), [to_host(run.state.compressor)]
    for call, batch, _ in zip(calls, batches, range(num_steps), strict=False):
        run.state, _ = run.train_step(run.state, run.feed.examples, batch, call)
        states.append(to_host(run.state.compressor))
    batches.close()
    return states


def finish(run: Run) -> None:
    loop.train(run)
    run.close()


def records(workdir: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if not k.endswith("_per_second")} for record in read_metrics(workdir)]


def before_step(run: Run, step: int, happens: Callable[[], None]) -> None:
    """Something happens as this step, counted from 1, begins."""
    train_step = run.train_step

    def disturbed(state: Any, *arguments: Any) -> Any:
        if int(state.step) + 1 == step:
            happens()
        return train_step(state, *arguments)

    run.train_step = disturbed


class Killed(Exception):
    pass


def kill() -> None:
    raise Killed


@pytest.mark.parametrize("name", FEW)
def test_run_that_is_stopped_and_killed_goes_on_to_the_bit(prepare: Callable, tmp_path: Path, name: str):
    fields = EPOCHS | METHODS[name] | {"checkpoint_every": 3}
    straight = prepare(tmp_path / "straight", **fields)
    finish(straight)
    run = prepare(**fields)
    before_step(run, 4, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Stopped):
        loop.train(run)
    run.close()
    run = prepare(**fields)
    assert 4 <= int(run.state.step) < 8
    before_step(run, 9, kill)
    with pytest.raises(Killed):
        loop.train(run)
    run.close()
    run = prepare(**fields)
    assert int(run.state.step) == 6
    finish(run)
    assert digest(to_host(run.state)) == digest(to_host(straight.state))
    assert records(tmp_path / "run") == records(tmp_path / "straight")
    assert jax.tree.leaves(to_host(straight.state.compressor.local))


def owed(name: str, local: Any, num_workers: int) -> list[Any]:
    """The mean of what workers owe, or the errors of all shards side by side."""
    if name not in ("sign", "ternary with feedback"):
        return [np.mean(leaf, axis=0, dtype=np.float64) for leaf in jax.tree.leaves(local)]
    residuals, shards = local[-1]  # of the tensors that do not stay float
    means = [np.mean(leaf, axis=0, dtype=np.float64) for leaf in residuals]
    if name != "sign":
        return means + [leaf.reshape(-1)[: sum(x[0].size for x in residuals)] for leaf in shards]
    words = [-(-leaf[0].size // 32) for leaf in residuals]
    wholes = [np.moveaxis(leaf, 0, 1).reshape(32, -1) for leaf in shards]
    assert all(len(leaf) == num_workers for leaf in shards)
    return means + [whole[:, :count] for whole, count in zip(wholes, words, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("name", FEW)
def test_other_workers_owe_together_what_those_before_did(prepare: Callable, name: str):
    fields = EPOCHS | METHODS[name] | {"num_devices": None}
    run = prepare(**fields)
    walk(run, 3)
    run.save(3)
    run.close()
    before, count = to_host(run.state.compressor), 4
    # What workers owe may cancel in the mean, so rounding is that of the largest.
    rounding = 2.0**-22 * max(np.max(np.abs(leaf), initial=0.0) for leaf in jax.tree.leaves(before.local))
    for workers in (2, 8):
        run = prepare(allow_config_change=True, **fields | {"num_workers": workers})
        after = to_host(run.state.compressor)
        assert after.count == before.count
        assert digest(after.shared) == digest(before.shared)
        assert any(np.any(expected) for expected in owed(name, before.local, count))
        for found, expected in zip(owed(name, after.local, workers), owed(name, before.local, count), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=rounding)
        run.state, metrics = run.train_step(run.state, run.feed.examples, next(run.feed.batches(24)), Call(1, 1))
        assert np.isfinite(metrics["loss"])
        run.close()


def test_share_out_keeps_the_mean_where_neither_number_divides_the_other():
    local = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    shared = share_out(local, None, 3)
    np.testing.assert_allclose(shared.mean(axis=0), local.mean(axis=0), atol=1e-7)
    np.testing.assert_allclose(shared[0], (3 * local[0] + local[1]) / 4, rtol=1e-6)


@pytest.mark.few("low_rank*")
@pytest.mark.parametrize(
    ("name", "fields"),
    [("top_k", {"float_epochs": 2}), ("low_rank", {"compress_from": 4}), ("sign", {"float_epochs": 2})],
    ids=str,
)
def test_float_steps_leave_what_a_method_carries_as_it_was(prepare: Callable, name: str, fields: dict[str, int]):
    """The steps of one epoch of two; the noise is counted on."""
    states = walk(prepare(**EPOCHS | METHODS[name] | fields), 8)
    first = 4 if "float_epochs" in fields else 0
    assert [int(state.count) for state in states] == list(range(9))
    carried = [digest((state.shared, state.local)) for state in states]
    assert len(set(carried[first : first + 5])) == 1
    assert len(set(carried)) == 5
    assert any(np.any(leaf) for leaf in jax.tree.leaves(states[8].local))


@pytest.mark.slow
def test_dgc_goes_through_its_densities_epoch_by_epoch_and_says_so(prepare: Callable, tmp_path: Path):
    run = prepare(**EPOCHS | METHODS["dgc"])
    bits = [wire.bits_per_element for wire in run.wires]
    assert bits[3] > bits[2] > bits[1]
    finish(run)
    sent = [record["sent_bits_per_element"] for record in records(tmp_path / "run") if "loss" in record]
    assert sent == [bits[3]] * 4 + [bits[2]] * 4 + [bits[1]] * 2
    saved = open_run(tmp_path / "run")[0].restore(10)
    assert digest(saved.params) == digest(to_host(run.state.params))


OTHERS = {
    "top_k to low_rank": ("top_k", METHODS["low_rank"]),
    "top_k to ternary": ("top_k", {"method": "ternary"}),
    "low_rank of another rank": ("low_rank", METHODS["low_rank"] | {"rank": 3}),
    "ternary to dgc": (None, METHODS["dgc"]),
    "delayed to not": ("delayed", {}),
}


def test_what_a_method_of_ones_own_refuses_damages_no_checkpoint(prepare: Callable, monkeypatch: pytest.MonkeyPatch):
    fields = EPOCHS | METHODS["low_rank"] | {"num_devices": None}
    finish(prepare(**fields | {"num_steps": 1}))
    refuse = mock.Mock(side_effect=ValueError("mine: cannot go on with 1 worker"))
    monkeypatch.setattr(elastic, "_hand_over", refuse)
    with pytest.raises(MisfitError, match=r"^checkpoint \S* mine: cannot go on with 1 worker$"):
        prepare(allow_config_change=True, **fields | {"num_steps": 2, "num_workers": 1})


@pytest.mark.slow
@pytest.mark.parametrize("case", OTHERS)
def test_state_of_another_method_is_refused_and_the_folder_stays(prepare: Callable, tmp_path: Path, case: str):
    name, other = OTHERS[case]
    run = prepare(**EPOCHS | METHODS.get(name, {}) | {"num_steps": 1})
    finish(run)
    files = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(
        MisfitError, match=r"^checkpoint \S* of mean.method='\w+'(, delayed,)? does not go on by [^\n]*$"
    ):
        prepare(allow_config_change=True, **EPOCHS | other | {"num_steps": 2})
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == files
