"""A run that is killed and stopped again and again ends like one that never was, and is evaluated beside."""

import json
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.slow
NUM_STEPS = 60
TIMES = ("examples_per_second", "steps_per_second")


class Adventures(NamedTuple):
    """What was seen of the interrupted run.

    Attributes:
      workdir: its folder.
      statuses: of every start, in order.
      steps: of the checkpoints on disk after every interruption.
      outputs: what every start that could say something said.
      second: the trainer that was started while the first one trained.
      follower: the evaluator that ran beside.
    """

    workdir: Path
    statuses: list[int]
    steps: list[list[int]]
    outputs: list[str]
    second: subprocess.CompletedProcess
    follower: subprocess.CompletedProcess


def steps_in(workdir: Path) -> list[int]:
    return sorted(int(path.name) for path in (workdir / "checkpoints").glob("*") if path.name.isdigit())


def records(workdir: Path) -> list[dict[str, Any]]:
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]


@pytest.fixture(scope="module")
def adventures(
    tmp_path_factory: pytest.TempPathFactory,
    open_door: Callable[..., subprocess.Popen],
    run_door: Callable[..., subprocess.CompletedProcess],
    train_arguments: Callable,
    wait_until: Callable,
) -> Iterator[Adventures]:
    workdir = tmp_path_factory.mktemp("interrupted") / "run"
    checkpoints, arguments = workdir / "checkpoints", train_arguments(workdir)
    statuses, steps, outputs, second = [], [], [], None
    follower = open_door("evaluate", f"--workdir={workdir}", "--follow", "--poll_seconds=0.05")

    def has(step: int) -> Callable[[], bool]:
        return lambda: max(steps_in(workdir), default=-1) >= step

    def is_writing(step: int) -> Callable[[], bool]:
        return lambda: has(step)() and any(checkpoints.glob("*tmp*"))

    interruptions = [
        (signal.SIGKILL, lambda: any(checkpoints.glob("*"))),  # at the first sign of the first checkpoint
        (signal.SIGKILL, is_writing(8)),
        (signal.SIGTERM, has(15)),
        (signal.SIGKILL, is_writing(22)),
        (signal.SIGINT, has(30)),
    ]
    process = None
    try:
        for number, when in interruptions:
            process = open_door("train", *arguments)
            wait_until(when, process)
            process.send_signal(number)
            outputs.append("".join(process.communicate(timeout=600)))
            statuses.append(process.returncode)
            steps.append(steps_in(workdir))
        process = open_door("train", *arguments)
        wait_until(has(36), process)
        process.send_signal(signal.SIGSTOP)
        second = run_door("train", *arguments)
        process.send_signal(signal.SIGCONT)
        outputs.append("".join(process.communicate(timeout=600)))
        statuses.append(process.returncode)
        out, err = follower.communicate(timeout=300)
        followed = subprocess.CompletedProcess(follower.args, follower.returncode, out, err)
        yield Adventures(workdir, statuses, steps, outputs, second, followed)
    finally:
        for started in (process, follower):
            if started is not None:
                started.kill()


def test_run_killed_at_many_points_ends_with_the_same_bits(
    adventures: Adventures, straight: Path, saved_digest: Callable
):
    assert adventures.statuses[-1] == 0, adventures.outputs[-1]
    assert steps_in(adventures.workdir) == steps_in(straight) == [58, 59, 60]
    for step in (58, 59, 60):
        assert saved_digest(adventures.workdir, step) == saved_digest(straight, step)


def test_run_killed_at_many_points_has_the_same_metrics(adventures: Adventures, straight: Path):
    assert records(adventures.workdir) == records(straight)
    steps = [record["step"] for record in records(straight) if "loss" in record]
    assert steps == list(range(1, NUM_STEPS + 1))


def test_run_killed_was_interrupted_where_it_was_meant_to(adventures: Adventures):
    assert adventures.statuses[:2] == [-signal.SIGKILL, -signal.SIGKILL]
    assert adventures.statuses[3] == -signal.SIGKILL
    assert [max(steps, default=0) < NUM_STEPS for steps in adventures.steps] == [True] * 5
    assert max(adventures.steps[0], default=0) < 8
    assert max(adventures.steps[1]) >= 8


@pytest.mark.parametrize(("start", "number"), [(2, signal.SIGTERM), (4, signal.SIGINT)])
def test_run_stopped_by_a_signal_saves_says_so_and_leaves(adventures: Adventures, start: int, number: signal.Signals):
    assert adventures.statuses[start] == 128 + number
    step = max(adventures.steps[start])
    assert f"stopped by {number.name} at step {step}; the same command continues" in adventures.outputs[start]
    assert f"from step {step}, " in adventures.outputs[start + 1]
    assert "Traceback" not in adventures.outputs[start]


def test_trainer_is_refused_where_another_one_trains(adventures: Adventures):
    assert adventures.second.returncode == 2
    assert adventures.second.stderr.splitlines() == [
        f"error: workdir={str(adventures.workdir)!r}: another process is training there"
    ]


def test_evaluator_beside_training_sees_each_checkpoint_once_and_ends_with_the_last(adventures: Adventures):
    assert adventures.follower.returncode == 0, adventures.follower.stderr
    assert "Traceback" not in adventures.follower.stderr
    evaluated = [json.loads(line) for line in (adventures.workdir / "evaluations.jsonl").read_text().splitlines()]
    steps = [record["step"] for record in evaluated]
    assert len(set(steps)) == len(steps)
    assert steps[-1] == NUM_STEPS
    assert len(steps) > 5
    last = next(record for record in reversed(records(adventures.workdir)) if "test/loss" in record)
    assert evaluated[-1].pop("digest")
    assert evaluated[-1] == {"step": 60, "split": "test", "averaged": True} | {
        name.removeprefix("test/"): value for name, value in last.items() if name != "step"
    }
    lines = adventures.follower.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"step {step}" for step in steps]


def test_run_that_is_finished_trains_nothing_and_reports_again(
    straight: Path, tmp_path: Path, run_door: Callable, train_arguments: Callable, snapshot: Callable
):
    workdir = tmp_path / "run"
    shutil.copytree(straight, workdir)
    before = snapshot(workdir)
    done = run_door("train", *train_arguments(workdir))
    assert done.returncode == 0, done.stderr
    assert "finished, in" in done.stdout
    assert "\nstep " not in done.stdout
    assert "test accuracy" in done.stdout
    after = snapshot(workdir)
    assert {name for name in before | after if before.get(name) != after.get(name)} <= {"curves.png"}


def test_run_with_another_config_is_refused_until_allowed(
    straight: Path, tmp_path: Path, run_door: Callable, train_arguments: Callable, snapshot: Callable
):
    workdir = tmp_path / "run"
    shutil.copytree(straight, workdir)
    before = snapshot(workdir)
    arguments = train_arguments(workdir, num_steps=63, learning_rate=0.002)
    refused = run_door("train", *arguments)
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    for words in (str(workdir), "learning_rate is 0.001 there and 0.002 here", "num_steps is 60 there and 63 here"):
        assert words in line
    assert "--allow_config_change" in line
    assert snapshot(workdir) == before
    allowed = run_door("train", *arguments, "--allow_config_change")
    assert allowed.returncode == 0, allowed.stderr
    assert steps_in(workdir) == [61, 62, 63]
    assert json.loads((workdir / "config.json").read_text())["optimizer"]["learning_rate"] == 0.002
