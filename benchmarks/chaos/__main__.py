"""Runs that are disturbed: each is struck by a fault at a random moment, and held to the undisturbed run in the end.

    python -m benchmarks.chaos --runs=50 --data=FOLDER_OF_MNIST --out=runs/chaos
    python -m benchmarks.chaos --runs=30 --data=FOLDER_OF_MNIST --out=runs/chaos_local --local_steps=10

LeNet, four workers in as many processes, 100 steps with a checkpoint every 25, over four times through the first 1,500
examples of MNIST. With --local_steps=H workers exchange every H steps, and a checkpoint follows each exchange. The
fault is drawn by --seed and the run's number: its kind, the process, and the moment, uniformly over the time that the
undisturbed run takes, start and end included. When all processes have ended they are started again by the same command,
until the run is finished. As root, every process has a host of its own (see `benchmarks.netlab`), and some runs go by
jaxtern.launch; otherwise all do, without the faults of links and disks.

A run is right if every start went on from the newest checkpoint that was whole; if it ends with the bits of the
undisturbed one in every checkpoint that both have, the same records of every step, each once, and examples seen as
steps have them; if on hosts, where the examples of every step are noted, each comes once in every epoch; with nothing
left running or half written, and no silence beyond the limit; or if it refuses to go on as docs/what_can_fail.md says.
What came of each is a line of OUT/runs.jsonl, what it printed OUT/RUN.log; a folder is kept only where something was
wrong. The same command goes on where it was stopped. The table is OUT/table.md.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import absl.logging

from benchmarks import netlab
from benchmarks.chaos import check, examples, faults, table
from benchmarks.chaos.faults import MEANING, ON_HOSTS, Fault
from benchmarks.chaos.run import LIMIT, PEER_TIMEOUT, START_TIMEOUT, Session, Setting
from benchmarks.commands import create_parser

BATCH_SIZE = 64
REFUSAL = "no checkpoint is whole"
TOLD = re.compile(r"(error|WARNING|launch|stopped|[\d,]+ steps of)\b")


def main() -> None:
    arguments = _parse()
    absl.logging.set_verbosity(absl.logging.ERROR)  # orbax tells of every option
    out = Path(arguments.out).absolute()
    out.mkdir(parents=True, exist_ok=True)
    unmount(out)
    by_hosts = arguments.way != "launch" and netlab.why_not() is None
    kinds = arguments.kinds or [kind for kind in MEANING if by_hosts or kind not in ON_HOSTS]
    impossible = [kind for kind in kinds if kind in ON_HOSTS and not by_hosts]
    if impossible:
        sys.exit(f"chaos: {', '.join(impossible)}: {netlab.why_not() or 'not by jaxtern.launch'}")
    if arguments.data:
        examples.take_few(arguments.data, out / "data")
    every = arguments.local_steps or max(arguments.steps // 4, 1)
    flags = make_flags(arguments, every, out)
    setting = Setting(arguments.processes, flags, make_environment(out), out, arguments.steps, every)
    undisturbed = find_undisturbed(setting, by_hosts)
    results = read_lines(out / "runs.jsonl")
    for run in sorted(set(range(arguments.runs)) - {result["run"] for result in results}):
        timeline = undisturbed["timeline"]
        fault = faults.draw(run, arguments.seed, kinds, arguments.processes, timeline, by_hosts)
        results.append(disturb(setting, fault, undisturbed))
        print(json.dumps(results[-1]), flush=True)
        with (out / "runs.jsonl").open("a") as file:
            file.write(json.dumps(results[-1]) + "\n")
        (out / "table.md").write_text(table.make_table(results))
    print(table.make_table(results))
    sys.exit(any(result["wrong"] for result in results))


def make_flags(arguments: argparse.Namespace, checkpoint_every: int, out: Path) -> tuple[str, ...]:
    """Of jaxtern.train, in all runs."""
    fields: dict[str, Any] = {
        "run.num_workers": arguments.processes,
        "run.batch_size": BATCH_SIZE,
        "run.num_steps": arguments.steps,
        "run.checkpoint_every": checkpoint_every,
        "local.steps": arguments.local_steps,
        "run.log_every": 1,
        "run.evaluate_every": 0,
        "mean.latency": 1e-3,  # given, so that all take the same exchange, and programs are compiled once
        "mean.bandwidth": 1e8,
    }
    if arguments.data:
        fields["data.dir"] = out / "data"
    config = f"--config={'mnist' if arguments.data else 'digits'}"
    limits = f"--start_timeout={START_TIMEOUT}", f"--peer_timeout={PEER_TIMEOUT}"
    return (config, *(f"--config.{name}={value}" for name, value in fields.items()), *limits)


def make_environment(out: Path) -> dict[str, str]:
    """One device a process, and programs that are compiled once for all runs."""
    own = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", "XLA_FLAGS": "", "PYTHONFAULTHANDLER": "1"}
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(out / "compiled"))
    small = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    return own | small | {"JAX_COMPILATION_CACHE_DIR": cache}


def find_undisturbed(setting: Setting, by_hosts: bool) -> dict[str, Any]:
    """What the undisturbed run has left, and seconds to each step's line and to its end; trained where it is not there.

    Where no cache of compiled programs is given it is trained twice: the first one compiles for all others.
    """
    path = setting.out / "undisturbed.json"
    if path.exists():
        found = json.loads(path.read_text())
        if found["flags"] != list(setting.flags):
            sys.exit(f"chaos: out={setting.out}: holds runs with {found['flags']}, not {list(setting.flags)}")
        return found
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        train_undisturbed(setting, "compiling", by_hosts)
    found = train_undisturbed(setting, "undisturbed", by_hosts)
    path.write_text(json.dumps(found))
    return found


def train_undisturbed(setting: Setting, name: str, by_hosts: bool) -> dict[str, Any]:
    clear(setting.out, name)
    with laboratory(setting.processes, by_hosts) as lab:
        session = Session(setting, name, None, lab)
        facts = session.run()
    if session.wrong or facts["left"] is None:
        sys.exit(f"chaos: the undisturbed run failed, see {setting.out / name}.log: {session.wrong}")
    timeline = [moment - facts["began"] for moment in (*session.printed.steps, facts["ended"])]
    return {"flags": setting.flags, "timeline": timeline, "left": facts["left"]}


def disturb(setting: Setting, fault: Fault, undisturbed: dict[str, Any]) -> dict[str, Any]:
    """One run; a moment for which it is over too soon is drawn nearer."""
    name = f"{fault.run:03d}_{fault.kind}"
    while True:
        clear(setting.out, name)
        with laboratory(setting.processes, fault.way == "hosts") as lab:
            session = Session(setting, name, fault, lab)
            facts = session.run()
        if facts["phase"] or session.wrong:
            break
        fault = fault._replace(delay=fault.delay / 2)
    lines = [line for line in session.printed.lines if TOLD.match(line.text)]
    refused = any(line.start == session.printed.start and REFUSAL in line.text for line in lines)
    wrong = session.wrong + judge(fault, facts, undisturbed["left"], refused)
    wrong += [f"namespace left: {path.name}" for path in left_namespaces()]
    if not wrong:
        clear(setting.out, name)
    told = [f"{line.start} [{line.process}] {line.text.replace(str(setting.out / name), 'RUN')}" for line in lines]
    kept = {fact: facts[fact] for fact in ("phase", "did", "seconds", "restarts", "by_launcher", "from", "statuses")}
    kept["steps"] = len(undisturbed["timeline"]) - 1
    kept["lost"] = round(facts["ended"] - facts["began"] - undisturbed["timeline"][-1], 2)
    tracebacks = sum(line.text.startswith("Traceback") for line in session.printed.lines)
    outcome = "refused" if refused else "finished"
    return fault._asdict() | kept | {"outcome": outcome, "wrong": wrong, "tracebacks": tracebacks, "told": told[:24]}


def clear(out: Path, name: str) -> None:
    """Removes what a run has left, but for what it printed."""
    shutil.rmtree(out / name, ignore_errors=True)
    for path in out.glob(f"{name}.examples.*"):
        path.unlink()


def judge(fault: Fault, facts: dict[str, Any], undisturbed: dict[str, Any], refused: bool) -> list[str]:
    """What is wrong with a run, a line each."""
    wrong = []
    limit = LIMIT + (START_TIMEOUT if facts["phase"] == "start-up" else 0)
    if fault.kind not in ("disk_full", "flip") and (facts["seconds"] or 0) > limit:
        wrong.append(f"ended after {facts['seconds']} s, not {limit}")
    if refused:
        return wrong if fault.kind == "torn" and facts["did"].startswith("0/") else [*wrong, "refused"]
    if facts["left"] is None:
        return [*wrong, f"not finished: {facts['statuses']}"]
    return wrong + check.differences(facts["left"], undisturbed, BATCH_SIZE)


@contextlib.contextmanager
def laboratory(hosts: int, by_hosts: bool) -> Iterator[netlab.Lab | None]:
    """Hosts for a run, or None where jaxtern.launch starts it."""
    with netlab.Lab(hosts) if by_hosts else contextlib.nullcontext() as lab:
        yield lab


def left_namespaces() -> list[Path]:
    """Of this process's laboratories."""
    return sorted(Path("/run/netns").glob(f"{netlab.PREFIX}{os.getpid()}-*"))


def unmount(out: Path) -> None:
    """What a benchmark that was killed has left mounted."""
    for line in Path("/proc/mounts").read_text().splitlines():
        kind, where = line.split()[2], line.split()[1]
        if kind == "tmpfs" and where.startswith(f"{out}/"):
            subprocess.run(["umount", "-l", where], check=True)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _parse() -> argparse.Namespace:
    parser = create_parser(__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--data", help="folder of MNIST's idx files; left out: scikit-learn's digits")
    parser.add_argument("--out", default="runs/chaos")
    parser.add_argument("--seed", type=int, default=0, help="of the faults")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--local_steps", type=int, default=0, help="H; 0: an exchange in every step")
    parser.add_argument("--kinds", nargs="+", choices=MEANING, help="of faults; left out: all that are possible")
    parser.add_argument("--way", choices=["auto", "launch"], default="auto", help="launch: without hosts, without root")
    return parser.parse_args()


if __name__ == "__main__":
    main()
