"""Trains many runs, some at a time, and gathers what the finished ones measured in a CSV file."""

import csv
import io
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.accuracy.methods import fields_of
from benchmarks.commands import say
from jaxtern.data.durable import replace_durably
from jaxtern.data.json_files import read_json
from jaxtern.training.run.metrics import read_metrics

PATIENCE = 20  # seconds that a run has to save itself before it is killed
COLUMNS = (
    *("recipe", "optimizer", "overrides", "method", "workers", "seed"),  # name a run
    *("sent_bits", "coded_bits", "sent_bytes", "examples_per_second"),  # of the run; what a worker sends a step
    *("step", "test_loss", "test_accuracy"),  # of an evaluation
)
Row = dict[str, str]


class Run(NamedTuple):
    recipe: str
    data: tuple[str, ...]  # fields that say where the data lie
    optimizer: str
    overrides: tuple[str, ...]  # "section.field=value", in place of what the recipe has
    method: str
    workers: int
    seed: int

    def place(self, out: Path) -> Path:
        """Its folder."""
        return out / self.recipe / f"{self.method}_{self.workers}_{self.optimizer}_{self.seed}"

    def command(self, out: Path) -> list[str]:
        own = fields_of(self.method, self.optimizer)
        own |= {"run.num_workers": self.workers, "run.seed": self.seed}
        own |= dict(each.split("=", 1) for each in (*self.data, *self.overrides))  # a tuple given twice would be joined
        fields = [f"--config.{name}={str(value).replace(' ', '')}" for name, value in own.items()]
        trainer = [sys.executable, "-m", "jaxtern.train", f"--config={self.recipe}"]
        return [*trainer, *fields, f"--workdir={self.place(out)}"]


def is_finished(workdir: Path) -> bool:
    """Whether the run has been evaluated after its last step."""
    if not (workdir / "config.json").exists():
        return False
    last_step = read_json(workdir / "config.json")["run"]["num_steps"]
    return any(record["step"] == last_step and "test/loss" in record for record in read_metrics(workdir))


def train_all(runs: Iterable[Run], out: Path, jobs: int, seconds: float) -> dict[Run, int]:
    """Trains what is not finished, in order, `jobs` at a time; what a run prints goes to `<its folder>.log`.

    After so many seconds, no other run begins, and those that go on are told to save themselves; the same call goes on
    with them.

    Returns:
      The exit status of each run that failed.
    """
    waiting = [run for run in runs if not is_finished(run.place(out))]
    going: dict[Run, subprocess.Popen] = {}
    failed, end = {}, time.monotonic() + seconds
    try:
        while (waiting or going) and time.monotonic() < end:
            while waiting and len(going) < jobs:
                run = waiting.pop(0)
                going[run] = _start(run, out)
            time.sleep(0.1)
            for run in [run for run, process in going.items() if process.poll() is not None]:
                if status := going.pop(run).returncode:
                    failed[run] = status
                say(f"{run.place(out)}: {f'failed with status {status}' if status else 'done'}")
    finally:
        _stop(going.values())
    return failed


def _start(run: Run, out: Path) -> subprocess.Popen:
    command, workdir = run.command(out), run.place(out)
    workdir.parent.mkdir(parents=True, exist_ok=True)
    say(shlex.join(command))
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | os.environ  # several runs share a GPU
    with Path(f"{workdir}.log").open("a") as log:
        # In a session of its own, so that Ctrl-C reaches it once, from here.
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True)


def _stop(processes: Iterable[subprocess.Popen]) -> None:
    """Has them save their state, and kills what does not end in time."""
    processes = list(processes)
    for process in processes:
        process.send_signal(signal.SIGTERM)
    end = time.monotonic() + PATIENCE
    for process in processes:
        try:
            process.wait(max(0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def rows_of(run: Run, workdir: Path) -> list[Row]:
    """A row for each evaluation of a finished run."""
    records = read_metrics(workdir)
    logged = [record for record in records if "examples_per_second" in record]
    means = {
        column: statistics.mean(record[name] for record in logged)
        for column, name in (
            ("sent_bits", "sent_bits_per_element"),
            ("coded_bits", "coded_bits_per_element"),
            ("sent_bytes", "sent_bytes_per_step"),
        )
    }
    named = run._asdict() | {"overrides": " ".join(run.overrides)}
    named |= means | {"examples_per_second": statistics.median(each["examples_per_second"] for each in logged)}
    rows = []
    for record in records:
        if "test/loss" in record:
            tested = {"step": record["step"], "test_loss": record["test/loss"]}
            tested |= {"test_accuracy": 100 * record["test/precision_at_1"]}
            rows.append({column: _as_text((named | tested)[column]) for column in COLUMNS})
    return rows


def _as_text(value: float | str) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def read_rows(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def run_of(row: Row) -> tuple[str, ...]:
    """What names the run of a row."""
    return tuple(row[column] for column in COLUMNS[:6])


def _order(row: Row) -> tuple:
    return run_of(row), int(row["step"])


def merge_rows(path: Path, rows: Sequence[Row]) -> None:
    """Puts rows into the file, in place of those of the same runs; those of other runs stay."""
    own = {run_of(row) for row in rows}
    others = [row for row in read_rows(path) if run_of(row) not in own] if path.exists() else []
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(sorted([*others, *rows], key=_order))
    replace_durably(path, text.getvalue())
