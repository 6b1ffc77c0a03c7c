"""Trains many runs, some at a time, and gathers what the finished ones measured in a CSV file."""

import contextlib
import csv
import functools
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
from typing import Any, NamedTuple

from absl import flags
from absl.testing import flagsaver

from benchmarks.accuracy.methods import METHODS, OPTIMIZERS, fields_of
from benchmarks.commands import say
from jaxtern import recipe_flags
from jaxtern.data.durable import replace_durably
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.run.metrics import read_metrics
from jaxtern.training.saved.workdir import WITHOUT_EFFECT, read_recipe

PATIENCE = 20  # seconds that a run has to save itself before it is killed
COLUMNS = (
    *("recipe", "optimizer", "overrides", "method", "workers", "seed"),  # name a run
    *("sent_bits", "coded_bits", "sent_bytes", "examples_per_second"),  # of the run; what a worker sends a step
    *("step", "test_loss", "test_accuracy"),  # of an evaluation
)
Row = dict[str, str]
_NO_MATTER = {*WITHOUT_EFFECT, "data.name", "data.dir"}  # a run may have been trained elsewhere
# Several runs share a GPU, and the cores.
_ENVIRONMENT = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "OMP_NUM_THREADS": "1"}


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

    def words(self) -> list[str]:
        """Of the trainer's command line, for its recipe."""
        given = dict(each.split("=", 1) for each in (*self.data, *self.overrides))
        others = OPTIMIZERS[self.optimizer] | {"run.num_workers": self.workers, "run.seed": self.seed}
        own = fields_of(self.method, read(_words(self.recipe, others | given)).optimizer)
        return _words(self.recipe, others | own | given)  # each once, as a tuple given twice would be joined

    def command(self, out: Path) -> list[str]:
        return [sys.executable, "-m", "jaxtern.train", *self.words(), f"--workdir={self.place(out)}"]


def _words(recipe: str, fields: dict[str, Any]) -> list[str]:
    return [f"--config={recipe}", *(f"--config.{name}={str(value).replace(' ', '')}" for name, value in fields.items())]


def read(words: Sequence[str]) -> Recipe:
    """The recipe that the trainer makes of these words; raises flags.Error or UsageError where it takes none."""
    return _read(tuple(words))


@functools.cache
def _read(words: tuple[str, ...]) -> Recipe:
    with flagsaver.flagsaver():
        flags.FLAGS(["train", *words])
        return recipe_flags.read_recipe()


def is_finished(run: Run, out: Path) -> bool:
    """Whether it has been evaluated after its last step; raises ValueError if what has been was of another recipe."""
    recipe, workdir = read(run.words()), run.place(out)
    tested = [record["step"] for record in read_metrics(workdir) if "test/loss" in record]
    if recipe.run.num_steps not in tested:
        return False
    there = read_recipe(workdir).by_name()
    for name, value in recipe.by_name().items():
        if there[name] != value and name not in _NO_MATTER:
            raise ValueError(f"--out={out}: {workdir} was trained with {name}={there[name]}, not {value}; take another")
    return True


def train_all(runs: Iterable[Run], out: Path, jobs: int, seconds: float) -> dict[Run, int]:
    """Trains what is not finished, in order, `jobs` at a time; what a run prints goes to `<its folder>.log`.

    After so many seconds, no other run begins, and those that go on are told to save themselves; the same call goes on
    with them.

    Returns:
      The exit status of each run that failed.
    """
    waiting = [run for run in runs if not is_finished(run, out)]
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
    with Path(f"{workdir}.log").open("a") as log:
        # In a session of its own, so that Ctrl-C reaches it once, from here.
        return subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=_ENVIRONMENT | os.environ, start_new_session=True
        )


def _stop(processes: Iterable[subprocess.Popen]) -> None:
    """Has them save their state, and kills those that do not end in time, or before another Ctrl-C."""
    processes = list(processes)
    for process in processes:
        process.terminate()
    end = time.monotonic() + PATIENCE
    try:
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0, end - time.monotonic()))
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with the processes that decode for it
                process.wait()


def rows_of(run: Run, out: Path) -> list[Row]:
    """A row for each evaluation of a finished run."""
    records = read_metrics(run.place(out))
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
    """Raises ValueError for another kind of file, OSError if it cannot be read."""
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise ValueError(f"--csv={path}: must have the columns {','.join(COLUMNS)}")
    for number, row in enumerate(rows, 2):
        if not _is_evaluation(row):
            raise ValueError(f"--csv={path}: line {number} is no evaluation of a method that is known here")
    return rows


def _is_evaluation(row: Row) -> bool:
    try:
        numbers = [float(row[name] or "nan") for name in COLUMNS[6:]]
        numbers += [int(row[name]) for name in ("workers", "seed", "step")]
    except (TypeError, ValueError):
        return False
    return row["method"] in METHODS and row["optimizer"] in OPTIMIZERS and not any(number < 0 for number in numbers)


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
