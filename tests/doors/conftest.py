"""The commands as a user types them, and one run of theirs that many tests look at."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 600  # seconds for a command, on a machine that does other things too
NUM_STEPS = 60
FIELDS = {
    "num_steps": NUM_STEPS, "batch_size": 16, "num_workers": 2, "checkpoint_every": 1, "log_every": 1,
    "evaluate_every": 20, "statistics": True,
}  # fmt: skip
Door = Callable[..., subprocess.CompletedProcess]


def command(door: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", f"jaxtern.{door}", *map(str, arguments)]


def environment() -> dict[str, str]:
    """The caller's, with one CPU device and this repository to import from any folder."""
    assert "JAX_COMPILATION_CACHE_DIR" in os.environ
    return os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}


@pytest.fixture(scope="session")
def open_door() -> Callable[..., subprocess.Popen]:
    """Starts a command."""

    def start(door: str, *arguments: object, cwd: Path | None = None) -> subprocess.Popen:
        return subprocess.Popen(
            command(door, *arguments),
            cwd=cwd or ROOT, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    return start


@pytest.fixture(scope="session")
def run_command(open_door: Callable[..., subprocess.Popen], without_progress: Callable) -> Door:
    """Runs a command to its end, in a process of its own from the first line on."""

    def run(door: str, *arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess:
        process = open_door(door, *arguments, cwd=cwd)
        try:
            out, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
        return _done(process.args, process.returncode, out, without_progress(err))

    return run


@pytest.fixture(scope="session", name="run_door")
def _run_door(run_door: Callable) -> Door:
    """The same, in a process that need not import what takes seconds."""

    def run(door: str, *arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess:
        answer = run_door(door, *arguments, cwd=cwd or ROOT)
        return _done([door, *arguments], answer.status, answer.out, answer.err)

    return run


def _done(command: Any, status: int, out: str, err: str) -> subprocess.CompletedProcess:
    # Which kernels run, a matter of the machine and its compiler, is none of the door's.
    own = [line for line in err.splitlines(keepends=True) if not line.startswith("INFO: kernels: ")]
    return subprocess.CompletedProcess(command, status, out, "".join(own))


@pytest.fixture(scope="session")
def train_arguments(full_names: Callable) -> Callable[..., list[str]]:
    """Arguments of the short run, with a checkpoint and a record after every step."""

    def make(workdir: Path, **fields: object) -> list[str]:
        given = full_names(**FIELDS | fields)
        return [*(f"--config.{name}={value}" for name, value in given.items()), f"--workdir={workdir}"]

    return make


@pytest.fixture(scope="session")
def straight(tmp_path_factory: pytest.TempPathFactory, run_command: Door, train_arguments: Callable) -> Path:
    """The folder of the short run, never interrupted."""
    workdir = tmp_path_factory.mktemp("straight") / "run"
    done = run_command("train", *train_arguments(workdir))
    assert done.returncode == 0, done.stderr
    return workdir


def wait_until(condition: Callable[[], object], process: subprocess.Popen) -> None:
    """Waits while the process runs."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, f"it ended with {process.returncode}: {process.stderr.read()}"
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.002)


@pytest.fixture(scope="session", name="wait_until")
def _wait_until() -> Callable:
    return wait_until


@pytest.fixture(scope="session")
def saved_digest() -> Callable[[Path, int], str]:
    """The digest of all arrays of a checkpoint, as saved with it."""

    def read(workdir: Path, step: int) -> str:
        return json.loads((workdir / "checkpoints" / str(step) / "metadata" / "metadata").read_text())["digest"]

    return read


@pytest.fixture(scope="session")
def snapshot() -> Callable[[Path], dict[str, bytes]]:
    """All files under a folder."""

    def read(folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    return read
