"""python -m jaxtern.evaluate: the newest whole checkpoint, each one once."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from jaxtern import evaluate
from jaxtern.training.saved.checkpoints import CheckpointError

pytestmark = pytest.mark.slow


@pytest.fixture
def workdir(straight: Path, tmp_path: Path) -> Path:
    shutil.copytree(straight, tmp_path / "run")
    return tmp_path / "run"


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_evaluator_finds_what_training_found_and_evaluates_once(workdir: Path, run_door: Callable):
    first = run_door("evaluate", f"--workdir={workdir}")
    assert first.returncode == 0, first.stderr
    assert first.stderr == ""
    assert first.stdout.startswith("step 60: test loss ")
    (record,) = read(workdir / "evaluations.jsonl")
    (trained,) = (r for r in read(workdir / "metrics.jsonl") if r["step"] == 60 and "test/loss" in r)
    kind = ("step", "split", "averaged", "digest")
    assert {f"test/{name}": value for name, value in record.items() if name not in kind} == {
        name: value for name, value in trained.items() if name != "step"
    }
    again = run_door("evaluate", f"--workdir={workdir}")
    assert (again.returncode, again.stdout) == (0, first.stdout)
    assert read(workdir / "evaluations.jsonl") == [record]


def test_evaluator_does_not_take_the_result_of_other_weights_or_data(workdir: Path, run_door: Callable):
    assert run_door("evaluate", f"--workdir={workdir}").returncode == 0
    (record,) = read(workdir / "evaluations.jsonl")
    (workdir / "evaluations.jsonl").write_text(json.dumps(record | {"digest": "of others", "loss": 9.0}) + "\n")
    again = run_door("evaluate", f"--workdir={workdir}")
    assert (again.returncode, "loss 9." in again.stdout) == (0, False)
    assert read(workdir / "evaluations.jsonl")[1] == record


def test_evaluator_goes_on_from_a_line_that_a_kill_cut_short(workdir: Path, run_door: Callable):
    path = workdir / "evaluations.jsonl"
    first = run_door("evaluate", f"--workdir={workdir}")
    text = path.read_bytes()
    path.write_bytes(text + text[: len(text) // 2])
    again = run_door("evaluate", f"--workdir={workdir}")
    assert (again.returncode, again.stdout, again.stderr) == (0, first.stdout, "")
    train = run_door("evaluate", f"--workdir={workdir}", "--split=train")
    assert (train.returncode, train.stderr) == (0, "")
    assert [(record["step"], record["split"]) for record in read(path)] == [(60, "test"), (60, "train")]


def test_evaluator_takes_the_checkpoint_before_a_damaged_one(workdir: Path, run_door: Callable, snapshot: Callable):
    files = [path for path in (workdir / "checkpoints" / "60" / "state").rglob("*") if path.is_file()]
    path = max(files, key=lambda path: path.stat().st_size)
    path.write_bytes(path.read_bytes()[:1000])
    before = snapshot(workdir)
    done = run_door("evaluate", f"--workdir={workdir}", "--split=train")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("step 59: train loss ")
    warning, *others = done.stderr.splitlines()
    assert not others, done.stderr
    assert warning.startswith(f"WARNING: checkpoint {workdir / 'checkpoints' / '60'} cannot be read: ")
    assert warning.endswith("; taking the one before it")
    after = snapshot(workdir)
    assert {name for name in before | after if before.get(name) != after.get(name)} == {"evaluations.jsonl"}
    (record,) = read(workdir / "evaluations.jsonl")
    assert (record["step"], record["split"], record["num_examples"]) == (59, "train", 1437)


def test_evaluator_takes_the_best_of_what_was_evaluated_in_training(workdir: Path, run_door: Callable):
    """Only step 60 of those that are there was; with nothing of it left, there is none."""
    done = run_door("evaluate", f"--workdir={workdir}", "--best")
    assert done.stdout.startswith("step 60: test loss "), done.stderr
    shutil.rmtree(workdir / "checkpoints" / "60")
    none = run_door("evaluate", f"--workdir={workdir}", "--best")
    assert (none.returncode, none.stdout) == (2, "")
    assert none.stderr.endswith(
        "holds no checkpoint that was evaluated when it was saved (run.evaluate_every, run.checkpoint_every)\n"
    )


def test_evaluator_that_follows_a_finished_run_ends(workdir: Path, run_door: Callable):
    done = run_door("evaluate", f"--workdir={workdir}", "--follow")
    assert done.returncode == 0, done.stderr
    records = read(workdir / "evaluations.jsonl")
    assert [record["step"] for record in records] == [58, 59, 60]
    (events,) = (workdir / "tensorboard" / "evaluated_test").glob("events.*")
    assert events.read_bytes().count(b"test/precision_at_1") == 3


@pytest.mark.parametrize("num_steps", [1, 0])
def test_evaluator_that_follows_tries_again_what_the_system_does_not_read_just_now(tmp_path: Path, num_steps: int):
    """It ends with the last step, or one after it, as the number may have been lowered."""
    restore = mock.Mock(side_effect=[CheckpointError("stale"), "state of step 1"])
    evaluator = object.__new__(evaluate.Evaluator)
    recipe = SimpleNamespace(run=SimpleNamespace(num_steps=num_steps))
    evaluator._run = SimpleNamespace(
        recipe=recipe, checkpoints=mock.Mock(**{"steps.return_value": [1]}), restore=restore
    )
    evaluator._split_name, evaluator._averaged, evaluator._path = "test", True, tmp_path / "evaluations.jsonl"
    with mock.patch.object(evaluator, "_evaluate") as evaluated:
        evaluator.follow(0.01)
    assert [call.args for call in evaluated.mock_calls] == [("state of step 1",)]


def test_evaluator_takes_a_step_that_is_asked_for(workdir: Path, run_door: Callable):
    done = run_door("evaluate", f"--workdir={workdir}", "--step=59", "--noaveraged")
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    assert re.fullmatch(r"step 59: test loss [\d.]+ \(cross entropy\), precision@1 .* on 360 examples", line)
    (record,) = read(workdir / "evaluations.jsonl")
    assert (record["step"], record["averaged"]) == (59, True)  # this run keeps none, so the last are all there are
    none = run_door("evaluate", f"--workdir={workdir}", "--step=5")
    assert none.returncode == 2
    assert none.stderr == f"error: step=5: workdir={str(workdir)!r} holds no such checkpoint; available: 58, 59, 60\n"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--step=5", "--follow"], "--step=5: is for one checkpoint; leave out --follow"),
        (["--best", "--follow"], "--best=True: is for one checkpoint; leave out --follow"),
        (["--best", "--step=5"], "--step=5: leave it out, as --best picks the checkpoint"),
    ],
)
def test_evaluator_refuses_flags_of_two_checkpoints(run_door: Callable, tmp_path: Path, flags: list[str], words: str):
    done = run_door("evaluate", *flags, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, f"error: {words}\n")
