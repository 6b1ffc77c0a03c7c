"""Which steps are float, and which go to the devices together: neither changes what a step does."""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, strategies as st

from jaxtern.configs import cifar10
from jaxtern.training.recipe.mean import MeanSection
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.recipe.run import RunSection
from jaxtern.training.run import loop
from jaxtern.training.run.calls import Call, phase_at, plan_calls, steps_per_call
from jaxtern.training.run.metrics import read_metrics
from jaxtern.training.run.run import Run
from jaxtern.training.run.stopping import Stopped
from jaxtern.training.saved.trees import digest

EPOCHS = {  # of four steps
    "data": "synthetic", "synthetic_shape": (4, 4, 1), "synthetic_examples": 32,
    "synthetic_classes": 3, "num_workers": 2, "num_devices": 2, "batch_size": 8, "exchange": "gather",
}  # fmt: skip
TIMES = ("examples_per_second", "steps_per_second")


def walk(run: Run) -> Iterator[tuple[Call, Any, Any, Any]]:
    """Calls, with the state before and after, and the batch."""
    calls = list(plan_calls(run.recipe.run, run.recipe.mean, run.inputs.dataset.train.size, 0, 0))
    batches = run.feed.batches(0, (call.num_steps for call in calls))
    for call, batch in zip(calls, batches, strict=True):
        before = jax.tree.map(np.array, run.state)
        run.state, _ = run.train_step(run.state, run.feed.examples, batch, call)
        yield call, before, jax.tree.map(np.array, run.state), batch


def finish(run: Run) -> Any:
    result = loop.train(run)
    run.close()
    return result


def records(workdir: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k not in TIMES} for record in read_metrics(workdir)]


@given(
    num_steps=st.integers(1, 60), steps_per_call=st.integers(1, 25), periods=st.tuples(*[st.integers(1, 17)] * 3),
    evaluates=st.booleans(), float_epochs=st.integers(0, 4), compress_from=st.integers(0, 30),
    num_examples=st.integers(8, 90), done=st.integers(0, 59),
)  # fmt: skip
def test_calls_take_every_step_once_and_none_goes_beyond_what_the_host_does(
    num_steps: int, steps_per_call: int, periods: tuple[int, int, int], evaluates: bool, float_epochs: int,
    compress_from: int, num_examples: int, done: int,
):  # fmt: skip
    log, evaluate, checkpoint = periods[0], periods[1] * evaluates, periods[2]
    run = RunSection(
        num_steps=num_steps, steps_per_call=steps_per_call, log_every=log, evaluate_every=evaluate, batch_size=8,
        checkpoint_every=checkpoint,
    )  # fmt: skip
    sections = (
        run,
        MeanSection(method="top_k", float_epochs=float_epochs, compress_from=compress_from, density_warmup=(0.5, 0.25)),
    )
    step = min(done, num_steps)
    calls = list(plan_calls(*sections, num_examples, step, 8 * step))
    assert len({call.num_steps for call in calls} | {1}) <= 2
    for number, call in enumerate(calls):
        assert 1 <= call.num_steps <= steps_per_call
        inside, end = range(step, step + call.num_steps), step + call.num_steps
        for i in inside:
            epoch = 8 * i // num_examples
            is_float = i < compress_from or (float_epochs and epoch % float_epochs == float_epochs - 1)
            assert call.phase == (0 if is_float else 1 + max(0, 2 - epoch))
            if i > step:
                assert all(i % period for period in (evaluate, checkpoint) if period)
        step = end
        assert list(plan_calls(*sections, num_examples, step, 8 * step)) == calls[number + 1 :]  # as after a stop there
    assert step == num_steps


@pytest.mark.parametrize(
    ("steps_per_call", "in_an_epoch"),
    [(1, {1: 390}), (26, {26: 15}), (100, {100: 3, 1: 90}), (390, {390: 1}), (1000, {390: 1})],
)
def test_calls_of_cifar10_are_of_two_lengths_and_take_a_whole_epoch_if_asked(
    steps_per_call: int, in_an_epoch: dict[int, int]
):
    recipe = Recipe.from_dict(cifar10.get_config().to_dict()).replace(run={"steps_per_call": steps_per_call})
    assert (recipe.run.num_steps, recipe.run.log_every, recipe.run.evaluate_every) == (30 * 390, 130, 390)
    counts = Counter(call.num_steps for call in plan_calls(recipe.run, recipe.mean, 50_000, 0, 0))
    assert counts == {length: 30 * count for length, count in in_an_epoch.items()}


@pytest.mark.parametrize(
    ("backend", "is_resident", "fields", "expected"),
    [
        ("gpu", True, {}, 50),
        ("gpu", True, {"num_steps": 997}, 1),
        ("gpu", True, {"evaluate_every": 0, "log_every": 1000}, 100),
        ("gpu", True, {"steps_per_call": 7}, 7),
        ("gpu", False, {}, 1),
        ("cpu", True, {}, 1),
    ],
)
def test_gpus_take_the_most_steps_that_leave_none_over(
    monkeypatch: pytest.MonkeyPatch, backend: str, is_resident: bool, fields: dict[str, int], expected: int
):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    periods = {"num_steps": 1000, "log_every": 100, "evaluate_every": 250, "checkpoint_every": 500}
    assert steps_per_call(RunSection(**periods | fields), is_resident) == expected


def test_calls_take_a_whole_epoch_where_every_second_is_float():
    run = RunSection(batch_size=8, steps_per_call=100, num_steps=18)
    calls = list(plan_calls(run, MeanSection(float_epochs=2), 32, 0, 0))
    assert calls == [Call(4, 1), Call(4, 0)] * 2 + [Call(1, 1)] * 2


def test_phases_are_float_epochs_the_method_and_the_epochs_of_its_warm_up():
    mean = MeanSection(float_epochs=2)
    assert [phase_at(mean, 32, i, 8 * i) for i in range(16)] == ([1] * 4 + [0] * 4) * 2
    mean = MeanSection(compress_from=3)
    assert [phase_at(mean, 32, i, 8 * i) for i in range(5)] == [0] * 3 + [1] * 2
    assert phase_at(MeanSection(method="float", compress_from=3), 32, 0, 0) == 1
    mean = MeanSection(method="dgc", density_warmup=(0.5, 0.1))
    assert [phase_at(mean, 32, i, 8 * i) for i in range(13)] == [3] * 4 + [2] * 4 + [1] * 5


def test_floats_go_by_their_own_options(prepare: Callable, tmp_path: Path):
    """In 16 bits, and a step late, so that the first one moves nothing."""
    fields = {"method": "float", "optimizer": "sgd", "num_workers": 2, "num_steps": 1, "weight_decay": 0.0}
    before, runs = "", {}
    for number, own in enumerate(({}, {"dtype": "bfloat16"}, {"mean.delayed": True})):
        run = prepare(tmp_path / str(number), **fields | own)
        before = digest(jax.device_get(run.state.params))
        loop.train(run)
        runs[number] = digest(jax.device_get(run.state.params)), run.describe_sent()
    assert len({weights for weights, _ in runs.values()} | {before}) == 3
    assert runs[2][0] == before
    assert runs[0][1].startswith("32.00 bits per gradient element")
    assert runs[1][1].startswith("16.00 bits per gradient element")


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{"float_epochs": 2}, {"compress_from": 5}])
def test_float_steps_are_those_of_a_float_run_and_the_others_of_a_ternary_one(
    prepare: Callable, tmp_path: Path, fields: dict[str, int]
):
    """Bit for bit from the same state; the count of the noise goes on in both."""
    fields = EPOCHS | {"num_steps": 10, **fields}
    run = prepare(**fields)
    plain = EPOCHS | {"num_steps": 10}
    others = {c: prepare(tmp_path / str(c), method="ternary" if c else "float", **plain) for c in (1, 0)}
    seen = set()
    for i, (call, before, after, batch) in enumerate(walk(run)):
        other = others[call.phase]
        own = other.state.compressor._replace(count=before.compressor.count)  # neither method has more state
        before = before._replace(compressor=own)
        state = jax.device_put(before, jax.tree.map(lambda leaf: leaf.sharding, other.state))
        state, _ = other.train_step(state, run.feed.examples, batch, Call(1, 1))
        assert digest(jax.device_get(state)) == digest(after)
        assert int(after.compressor.count) == i + 1
        seen.add(call.phase)
    assert seen == {0, 1}


def test_log_says_what_a_step_sent_and_measures_ternary_ones(prepare: Callable, tmp_path: Path):
    fields = EPOCHS | {"num_steps": 9, "float_epochs": 2, "statistics": True}
    run = prepare(tmp_path / "each", log_every=1, **fields)
    finish(run)
    finish(prepare(tmp_path / "all", log_every=9, **fields))
    each, (whole,) = ([r for r in records(tmp_path / name) if "loss" in r] for name in ("each", "all"))
    is_ternary = [True] * 4 + [False] * 4 + [True]
    sent = [run.wires[1].bits_per_element if ternary else 32.0 for ternary in is_ternary]
    assert run.wires[1].bits_per_element < 20
    assert [r["sent_bits_per_element"] for r in each] == sent
    for name in ("zero_fraction", "error", "cosine"):
        measured = [r.get(f"compression/{name}") for r in each]
        assert [number is not None and np.isfinite(number) for number in measured] == is_ternary
        assert whole[f"compression/{name}"] == pytest.approx(np.mean([n for n in measured if n is not None]))
    assert whole["sent_bits_per_element"] == pytest.approx(np.mean(sent))
    assert whole["sent_bytes_per_step"] == pytest.approx(np.mean([r["sent_bytes_per_step"] for r in each]))


@pytest.mark.slow
@pytest.mark.parametrize("stop", [3, 6])
def test_run_with_float_epochs_goes_on_as_if_never_stopped(prepare: Callable, tmp_path: Path, stop: int):
    fields = EPOCHS | {"float_epochs": 2, "steps_per_call": 3}
    straight = prepare(tmp_path / "straight", num_steps=10, checkpoint_every=stop, **fields)
    finish(straight)
    finish(prepare(tmp_path / "stopped", num_steps=stop, **fields))
    again = prepare(tmp_path / "stopped", allow_config_change=True, num_steps=10, checkpoint_every=stop, **fields)
    finish(again)
    assert digest(jax.device_get(again.state)) == digest(jax.device_get(straight.state))


@pytest.mark.parametrize("name", ["float_epochs", "compress_from"])
@pytest.mark.parametrize(
    ("fields", "why"),
    [({"delayed": True}, "where mean.delayed=True"), ({"method": "dgc"}, "where mean.method='dgc'")],
    ids=["delayed", "dgc"],
)
def test_float_steps_between_means_that_carry_are_refused(fields: dict[str, Any], why: str, name: str):
    with pytest.raises(ValueError, match=f"mean.{name}=2: must be 0 {why}"):
        MeanSection(**fields, **{name: 2})


@pytest.mark.usefixtures("emitters")
@pytest.mark.few("extra1")
@pytest.mark.parametrize(
    "extra",
    [
        {"model": "lenet", "num_devices": 1, "weight_decay": 0.01},
        {"model": "tiny_drop", "accumulation": 2},
        {"delayed": True},
    ],
)
def test_steps_that_go_together_leave_what_single_ones_do(prepare: Callable, tmp_path: Path, extra: dict[str, Any]):
    """The same records, evaluations and checkpoints, bit for bit on a CPU, though 3 divides none of the periods.

    With batch norm and averages, not quite: see below.
    """
    fields = EPOCHS | {"num_steps": 11, "log_every": 5, "evaluate_every": 4, "checkpoint_every": 7, **extra}
    runs = {k: prepare(tmp_path / str(k), steps_per_call=k, **fields) for k in (1, 3)}
    assert finish(runs[1]) == finish(runs[3])
    assert records(tmp_path / "1") == records(tmp_path / "3")
    assert [r["step"] for r in records(tmp_path / "3")] == [4, 5, 8, 10, 11, 11]
    for step in (0, 7, 11):
        states = [run.checkpoints.restore(step, run.state).state for run in runs.values()]
        assert digest(states[0]) == digest(states[1])


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-6), ("float16", 1e-3)])
def test_steps_that_go_together_with_batch_norm_and_averages_are_single_ones_but_for_rounding(
    prepare: Callable, tmp_path: Path, precision: str, tolerance: float
):
    """A compiler that sees several may join other operations."""
    fields = EPOCHS | {"model": "tiny_norm", "average_decay": 0.9, "precision": precision, "method": "float"}
    runs = [prepare(tmp_path / str(k), steps_per_call=k, log_every=5, num_steps=5, **fields) for k in (1, 3)]
    for run in runs:
        finish(run)
    for one, other in zip(*(jax.tree.leaves(run.state) for run in runs), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


@pytest.mark.slow
def test_log_spreads_the_time_of_a_call_over_its_steps(prepare: Callable, tmp_path: Path):
    start = time.perf_counter()
    finish(prepare(**EPOCHS, num_steps=12, steps_per_call=4, log_every=1))
    elapsed = time.perf_counter() - start
    rates = [r["examples_per_second"] for r in read_metrics(tmp_path / "run") if "loss" in r]
    for first in (0, 4, 8):
        assert rates[first : first + 4] == pytest.approx([rates[first]] * 4)
    assert 0 < sum(8 / rate for rate in rates) < elapsed


@pytest.mark.slow
def test_signal_stops_at_the_end_of_a_call(prepare: Callable, tmp_path: Path, capfd: pytest.CaptureFixture):
    """Of the call after that in which it comes, and says so; and of the steps that are logged in it none is lost."""
    fields = EPOCHS | {"num_steps": 12, "steps_per_call": 4, "log_every": 2}
    straight = prepare(tmp_path / "straight", **fields)
    finish(straight)
    run = prepare(tmp_path / "stopped", **fields)
    train_step = run.train_step

    def interrupted(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        run.train_step = train_step
        return train_step(*arguments)

    run.train_step = interrupted
    with pytest.raises(Stopped, match="stopped by SIGTERM at step 8;"):
        loop.train(run)
    assert "stopping once all is saved; a second signal stops at once\n" in capfd.readouterr().err
    run.close()
    again = prepare(tmp_path / "stopped", **fields)
    assert again.checkpoints.steps() == [0, 8]
    finish(again)
    assert digest(jax.device_get(again.state)) == digest(jax.device_get(straight.state))
    assert records(tmp_path / "stopped") == records(tmp_path / "straight")


def test_nonfinite_step_in_the_middle_of_a_call_is_named(prepare: Callable, tmp_path: Path):
    """Steps before it are logged, as they are where each is a call."""
    run = prepare(**EPOCHS, num_steps=9, steps_per_call=4, log_every=3, checkpoint_every=100)
    train_step = run.train_step

    def spoiled(*arguments: Any) -> Any:
        state, metrics = train_step(*arguments)
        return state, metrics | {"loss": metrics["loss"].at[2].set(np.nan)} if int(state.step) == 8 else metrics

    run.train_step = spoiled
    with pytest.raises(loop.NonFiniteError, match=r"^step 7: loss nan, .*; the last good checkpoint is at step 0$"):
        loop.train(run)
    assert [r["step"] for r in records(tmp_path / "run")] == [3, 6]


def test_steps_of_streamed_images_go_one_by_one(prepare: Callable, tmp_path: Path):
    prepare(**EPOCHS, feed="streaming")
    with pytest.raises(ValueError, match=r"^run.steps_per_call=2: must be 1 where images are streamed"):
        prepare(tmp_path / "other", **EPOCHS, feed="streaming", steps_per_call=2)
    assert not (tmp_path / "other").exists()
