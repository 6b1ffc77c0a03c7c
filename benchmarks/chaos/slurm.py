"""The restart loop of docs/hosts.md under a real SLURM: tasks are killed or stopped at random moments.

    python -m benchmarks.chaos.slurm --kills=20 --stops=4 --out=runs/slurm

As root, with slurmctld, slurmd and munge installed. Two nodes of a SLURM on this machine (`benchmarks.netlab.slurm`)
run the page's script, with a short run in the place of a long one: the digits, four workers, a checkpoint every tenth
of its steps. A task drawn by --seed is sent SIGKILL at a moment drawn from the time that the undisturbed job takes, its
start and end included; or all tasks are sent SIGTERM, as before a time limit.

A killed job is right if the loop has started it again and it ends with the bits of the undisturbed one; a stopped job
if it ends with status 143 without a second start, and the same script, submitted again, ends with those bits. What came
of each is a line of OUT/slurm.jsonl.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import absl.logging

from benchmarks.chaos import check
from benchmarks.commands import create_parser
from benchmarks.netlab import slurm
from benchmarks.netlab.slurm import Slurm

PAGE = Path(__file__).resolve().parents[2] / "docs" / "hosts.md"
BATCH_SIZE, START_TIMEOUT, LIMIT = 64, 60, 900
KILL, STOP = "kill", "stop"


def main() -> None:
    arguments = _parse()
    absl.logging.set_verbosity(absl.logging.ERROR)  # orbax tells of every option
    if reason := slurm.why_not():
        sys.exit(f"chaos.slurm: {reason}")
    out = Path(arguments.out).absolute()
    out.mkdir(parents=True, exist_ok=True)
    kinds = [KILL] * arguments.kills + [STOP] * arguments.stops
    results = []
    with tempfile.TemporaryDirectory() as folder, Slurm(Path(folder), 2, make_environment(out)) as cluster:
        trial = Trial(cluster, shorten(read_script(), arguments.steps))
        trial.run_undisturbed()  # compiles
        undisturbed, seconds = trial.run_undisturbed()
        for number, kind in enumerate(kinds):
            source = random.Random(f"{arguments.seed} {number}")
            moment, victim = source.uniform(0, seconds), source.randrange(2)
            result = {"run": number, "kind": kind, "victim": victim}
            results.append(result | trial.disturb(kind, moment, victim, undisturbed))
            print(json.dumps(results[-1]), flush=True)
            with (out / "slurm.jsonl").open("a") as file:
                file.write(json.dumps(results[-1]) + "\n")
    right = sum(not result["wrong"] for result in results)
    print(f"{right} of {len(results)} right; the undisturbed job takes {seconds:.0f} s")
    sys.exit(right < len(results))


def read_script() -> str:
    """The batch script of docs/hosts.md."""
    return next(each for each in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL) if "#SBATCH" in each)


def shorten(script: str, steps: int) -> str:
    """The script with a short run of small intervals in the place of its own."""
    fields = {"num_steps": steps, "checkpoint_every": steps // 10, "evaluate_every": 0, "log_every": 1}
    flags = " ".join(f"--config.run.{name}={value}" for name, value in fields.items())
    given = f"{flags} --start_timeout={START_TIMEOUT} --config.run.batch_size={BATCH_SIZE}"
    return script.replace("--workdir=/shared/run", f"--workdir=/shared/run {given}").replace("nodes=4", "nodes=2")


def make_environment(out: Path) -> dict[str, str]:
    """One device a process, and programs that are compiled once for all runs."""
    own = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", "XLA_FLAGS": "", "PYTHONUNBUFFERED": "1"}
    cache = {"JAX_COMPILATION_CACHE_DIR": str(out / "compiled"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return dict(os.environ) | own | cache | {"PATH": path, "PYTHONPATH": str(PAGE.parents[1])}


class Trial:
    """Jobs of one script, one after the other."""

    def __init__(self, cluster: Slurm, script: str):
        self._cluster, self._script, self._workdir = cluster, script, cluster.sandbox.shared / "run"

    def run_undisturbed(self) -> tuple[dict[str, Any], float]:
        """What it leaves, and the seconds that it takes."""
        shutil.rmtree(self._workdir, ignore_errors=True)
        began = time.monotonic()
        job = self._cluster.submit(self._script)
        facts = self._cluster.wait(job, LIMIT)
        if facts["JobState"] != "COMPLETED":
            sys.exit(f"chaos.slurm: the undisturbed job failed:\n{self._cluster.log(job)}")
        return check.read_run(self._workdir), time.monotonic() - began

    def disturb(self, kind: str, moment: float, victim: int, undisturbed: dict[str, Any]) -> dict[str, Any]:
        """One job that is struck, earlier where it would be over; what came of it."""
        shutil.rmtree(self._workdir, ignore_errors=True)
        job = self._cluster.submit(self._script)
        deadline = time.monotonic() + moment
        while time.monotonic() < deadline or not self._cluster.tasks():
            time.sleep(0.05)
            if self._cluster.facts(job)["JobState"] != "RUNNING" and time.monotonic() > deadline:
                break
        step = _last_step(self._cluster.log(job))
        struck = self._strike(kind, victim)
        began = time.monotonic()
        facts = self._cluster.wait(job, LIMIT)
        log = self._cluster.log(job)
        if not struck and facts["ExitCode"] == "0:0":
            return self.disturb(kind, moment / 2, victim, undisturbed)
        found = {"step": step, "seconds": round(time.monotonic() - began, 1)}
        found |= {"failed_starts": log.count("srun: Force Terminated"), "status": facts["ExitCode"]}
        wrong = []
        if kind == STOP and facts["ExitCode"] != "0:0":  # it may have come in the last step
            if facts["ExitCode"] != "143:0":
                wrong.append(f"ended with {facts['ExitCode']}, not 143")
            if found["failed_starts"] > 1:
                wrong.append("started again after a stop")
            facts = self._cluster.wait(self._cluster.submit(self._script), LIMIT)
        if facts["JobState"] != "COMPLETED":
            wrong.append(f"not finished: {facts['JobState']} with {facts['ExitCode']}")
        else:
            wrong += check.differences(check.read_run(self._workdir), undisturbed, BATCH_SIZE)
        told = [line for line in log.splitlines() if re.match(r"error|srun|stopped|Traceback", line)]
        return found | {"wrong": wrong, "told": told[:12]}

    def _strike(self, kind: str, victim: int) -> bool:
        """Whether it hit."""
        if kind == KILL:
            return self._cluster.kill(victim)
        return sum(self._cluster.kill(rank, signal.SIGTERM) for rank in self._cluster.tasks()) > 0


def _last_step(log: str) -> int:
    """The last step that a job has told of."""
    return max((int(each) for each in re.findall(r"^step (\d+):", log, re.MULTILINE)), default=0)


def _parse() -> argparse.Namespace:
    parser = create_parser(__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--stops", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="runs/slurm")
    return parser.parse_args()


if __name__ == "__main__":
    main()
