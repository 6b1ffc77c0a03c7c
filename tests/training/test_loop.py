"""The run: where it stops, what it has saved by then, and that going on is as if it had never stopped."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxtern.training.run import loop, run as run_module, stopping
from jaxtern.training.run.curves import plot_curves
from jaxtern.training.run.metrics import read_metrics
from jaxtern.training.run.run import Run
from jaxtern.training.run.stopping import Stopped
from jaxtern.training.saved.checkpoints import CheckpointError
from jaxtern.training.saved.trees import digest

FIELDS = {"num_steps": 7, "checkpoint_every": 3, "evaluate_every": 3, "keep_checkpoints": 10}


def finish(run: Run) -> Any:
    result = loop.train(run)
    run.close()
    return result


def losses(workdir: Path) -> list[tuple]:
    names = ("step", "loss", "accuracy", "learning_rate", "test/loss", "test/precision_at_1", "test/recall_at_5")
    return [tuple(record.get(name) for name in names) for record in read_metrics(workdir)]


def during(run: Run, step: int, act: Callable[[], None]) -> None:
    """Does something while the run's step number `step` (from 1) runs."""
    train_step, calls = run.train_step, []

    def acting(*arguments: Any) -> Any:
        calls.append(None)
        if len(calls) == step:
            act()
        return train_step(*arguments)

    run.train_step = acting


@pytest.mark.few("15")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_run_stopped_by_a_signal_saves_and_goes_on_as_if_never_stopped(prepare: Callable, tmp_path: Path, number: int):
    handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    straight = prepare(tmp_path / "straight", **FIELDS)
    result = finish(straight)
    run = prepare(tmp_path / "stopped", **FIELDS)
    during(run, 4, lambda: os.kill(os.getpid(), number))
    with pytest.raises(Stopped) as caught:
        loop.train(run)
    run.close()
    name = signal.Signals(number).name
    assert str(caught.value) == f"stopped by {name} at step 5; the same command continues"
    assert caught.value.signal_number == number
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == handlers
    again = prepare(tmp_path / "stopped", **FIELDS)
    assert int(again.state.step) == 5
    assert again.checkpoints.steps() == [0, 3, 5]
    assert finish(again) == result
    assert digest(jax.device_get(again.state)) == digest(jax.device_get(straight.state))
    assert losses(tmp_path / "stopped") == losses(tmp_path / "straight")


def test_run_whose_lines_nobody_reads_is_saved_and_ends(
    prepare: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run, (reader, writer) = prepare(tmp_path, **FIELDS), os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        with pytest.raises(Stopped, match="stopped by SIGTERM at step 2;"):
            loop.train(run)
        print("nor this line", flush=True)
    assert run.checkpoints.steps() == [0, 2]


def test_run_whose_terminal_closes_is_saved_though_its_lines_then_fail(
    prepare: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The failure of a line, some time after the signal, is no second signal."""
    run, (reader, writer) = prepare(tmp_path, **FIELDS), os.pipe()
    monkeypatch.setattr(stopping, "_ONE_SIGNAL_SECONDS", 0.0)
    during(run, 2, lambda: (os.close(reader), signal.raise_signal(signal.SIGHUP)))
    with os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        with pytest.raises(Stopped, match="stopped by SIGHUP at step 3;"):
            loop.train(run)
    assert run.checkpoints.steps() == [0, 3]


def test_signal_that_comes_twice_at_once_is_one(prepare: Callable, monkeypatch: pytest.MonkeyPatch):
    """As where a supervisor sends it to the launcher, which passes it on, and to its processes; a later one acts."""
    run, before = prepare(**FIELDS), signal.getsignal(signal.SIGTERM)
    acted: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: acted.append(number))
    try:
        with stopping.StopSignals(run.mesh) as stop:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            assert (stop.received, acted) == (signal.SIGTERM, [])
            monkeypatch.setattr(stopping, "_ONE_SIGNAL_SECONDS", 0.0)
            signal.raise_signal(signal.SIGTERM)
            assert acted == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_run_that_is_refused_for_its_data_keeps_its_recipe(prepare: Callable, tmp_path: Path):
    prepare(tmp_path / "run", **FIELDS).close()
    facts, config = tmp_path / "run" / "dataset.json", (tmp_path / "run" / "config.json").read_text()
    kept = json.loads(facts.read_text())
    facts.write_text(json.dumps(kept | {"digest": "of others"}))
    with pytest.raises(ValueError, match=f"another dataset .digest is 'of others' there and '{kept['digest']}' here"):
        prepare(tmp_path / "run", **FIELDS | {"num_steps": 2 * FIELDS["num_steps"]})
    assert (tmp_path / "run" / "config.json").read_text() == config
    del kept["digest"]  # as in folders of before
    facts.write_text(json.dumps(kept))
    prepare(tmp_path / "run", **FIELDS).close()
    assert json.loads(facts.read_text())["digest"]


def test_signal_that_is_ignored_stays_ignored(prepare: Callable):
    run, before = prepare(**FIELDS), signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stopping.StopSignals(run.mesh) as stop:
            signal.raise_signal(signal.SIGINT)
            assert stop.received is None
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_run_told_to_stop_in_its_last_step_ends(prepare: Callable):
    run = prepare(**FIELDS)
    during(run, 7, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert loop.train(run).num_examples == 360


def test_run_writes_the_records_of_a_step_before_its_checkpoint(prepare: Callable, tmp_path: Path):
    """So a run that is killed after the checkpoint and resumes behind these records has them."""
    run = prepare(**FIELDS)
    save, seen = run.checkpoints.save, {}

    def noting(step: int, *arguments: Any, **metadata: Any) -> None:
        seen[step] = {name for record in read_metrics(tmp_path / "run") if record["step"] == step for name in record}
        save(step, *arguments, **metadata)

    run.checkpoints.save = noting
    finish(run)
    assert set(seen) == {3, 6, 7}
    assert all("loss" in names for names in seen.values())
    assert all("test/loss" in names for names in seen.values())


def test_run_that_is_finished_trains_nothing_and_reports_again(prepare: Callable, tmp_path: Path):
    fields = FIELDS | {"num_steps": 2}
    first = finish(prepare(**fields))
    written = losses(tmp_path / "run")
    run = prepare(**fields)
    run.train_step = None
    assert finish(run) == first
    assert losses(tmp_path / "run") == written
    assert [step for step, *_ in written] == [1, 2, 2]


def test_run_evaluates_when_asked_and_at_the_end(prepare: Callable, tmp_path: Path):
    run = prepare(**FIELDS)
    result = finish(run)
    tested = {step: row for step, *row in losses(tmp_path / "run") if row[3] is not None}
    assert set(tested) == {3, 6, 7}
    assert tested[7][3:] == [result.loss, result.precision_at_1, result.recall_at_5]
    assert run.evaluate() == result


def test_run_logs_means_since_the_line_before(prepare: Callable, tmp_path: Path, read_jsonl: Callable):
    fields = {"num_steps": 5, "evaluate_every": 0}
    finish(prepare(tmp_path / "each", log_every=1, **fields))
    finish(prepare(tmp_path / "pairs", log_every=2, **fields))
    each = [r["loss"] for r in read_jsonl(tmp_path / "each" / "metrics.jsonl") if "loss" in r]
    pairs = {r["step"]: r["loss"] for r in read_jsonl(tmp_path / "pairs" / "metrics.jsonl") if "loss" in r}
    assert pairs == {2: np.mean(each[:2]), 4: np.mean(each[2:4]), 5: each[4]}


def test_run_refuses_what_does_not_fit_before_it_touches_the_folder(prepare: Callable, tmp_path: Path):
    for fields in (
        {"model": "lenett"},
        {"exchange": "pigeon"},
        {"data": "mnist"},
        {"method": "quantized", "levels": 0},
        {"num_devices": 99},
    ):
        with pytest.raises(ValueError, match=r"=|not set"):
            prepare(**fields)
    assert not (tmp_path / "run").exists()


def test_run_whose_state_does_not_fit_another_config_changes_nothing(prepare: Callable, tmp_path: Path):
    finish(prepare(num_steps=2))
    config = (tmp_path / "run" / "config.json").read_text()
    with pytest.raises(ValueError, match="checkpoints/2 lacks 'optimizer/"):
        prepare(num_steps=2, optimizer="adam", allow_config_change=True)
    assert (tmp_path / "run" / "config.json").read_text() == config
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == ["0", "2"]


def test_run_gives_its_folder_back_though_its_checkpoints_are_lost(prepare: Callable, tmp_path: Path):
    run = prepare(num_steps=2)
    run.checkpoints.wait()  # for the first one, as nothing can be removed for good into which orbax still writes
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(CheckpointError):
        run.close()
    finish(prepare(num_steps=2))


def test_run_that_cannot_be_made_gives_its_folder_back(prepare: Callable, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "write_run", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepare(num_steps=2)
    finish(prepare(num_steps=2))


def test_curves_are_a_picture(prepare: Callable, tmp_path: Path):
    finish(prepare(**FIELDS))
    picture = plot_curves(tmp_path / "run", "a title", "cross_entropy").read_bytes()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = (int.from_bytes(picture[i : i + 4], "big") for i in (16, 20))
    assert width > 1000
    assert height > 300
    assert picture[-8:-4] == b"IEND"


def test_run_counts_the_time_in_which_it_writes_its_log_too(prepare: Callable, tmp_path: Path, read_jsonl: Callable):
    """The devices work meanwhile, and reading the schedule's rate off them waits for their step."""
    run = prepare(num_steps=4, log_every=1)
    schedule = run.program.schedule

    def slow(step: int) -> Any:
        time.sleep(0.1)
        return schedule(step)

    run.program = run.program._replace(schedule=slow)
    loop.train(run)
    rates = [r["examples_per_second"] for r in read_jsonl(tmp_path / "run" / "metrics.jsonl") if "loss" in r]
    assert len(rates) == 4
    assert max(rates[1:]) < 8 / 0.1


def test_bits_sent_are_the_mean_over_float_and_other_steps(prepare: Callable, tmp_path: Path):
    run = prepare(tmp_path, num_steps=4, compress_from=1, num_workers=2)
    floats, ternary = (run.wires[phase].bits_per_element for phase in (0, 1))
    told, coded = run.describe_sent(), run.wires[1].coded_bits_per_element
    assert told.startswith(f"{(floats + 3 * ternary) / 4:.2f} bits per gradient element")
    assert f" ({(floats + 3 * coded) / 4:.2f} by an ideal entropy coder)" in told
    assert told.endswith("(1 of 4 exchanges float)")
    assert not prepare(tmp_path / "all", num_steps=4).describe_sent().endswith("float)")
