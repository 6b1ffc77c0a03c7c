"""What studies of trained networks share: a run of `python -m jaxtern.train` for each variant and seed, and tables.

A run has a folder of its own; one that is there already is finished or taken as it is, so a study that was stopped goes
on with the same command.
"""

import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from jaxtern.training.run.metrics import read_metrics


def train(config: str, fields: Iterable[str], workdir: Path) -> None:
    """Trains a recipe to its end, what it prints going to `<workdir>.log`.

    Args:
      config: the recipe's name.
      fields: "section.field=value", in place of what the recipe has.
      workdir: of the run.

    Raises:
      subprocess.CalledProcessError: if it fails.
    """
    overrides = [f"--config.{field}" for field in fields]
    command = [sys.executable, "-m", "jaxtern.train", f"--config={config}", *overrides, f"--workdir={workdir}"]
    print(shlex.join(command), flush=True)
    workdir.parent.mkdir(parents=True, exist_ok=True)
    with log_of(workdir).open("a") as log:
        subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)


def log_of(workdir: Path) -> Path:
    return workdir.parent / f"{workdir.name}.log"


def read_evaluations(workdir: Path) -> list[dict]:
    """Records of the evaluations, rising by step; none if the run has not reached its last step."""
    if not (workdir / "curves.png").exists():
        return []
    return [record for record in read_metrics(workdir) if "test/loss" in record]


def summarize(results: Sequence[float | None], digits: int = 2) -> list[str]:
    """Cells of a table: the result of each seed, empty where there is none yet, their mean, and their deviation."""
    done = [result for result in results if result is not None]
    mean = f"{statistics.mean(done):.{digits}f}" if done else ""
    deviation = f"{statistics.stdev(done):.{digits}f}" if len(done) > 1 else ""
    return ["" if result is None else f"{result:.{digits}f}" for result in results] + [mean, deviation]
