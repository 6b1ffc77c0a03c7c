"""Programs that are started as several processes."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from jaxtern.training.saved.checkpoints import Checkpoints
from jaxtern.training.saved.trees import digest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120  # seconds, on a machine that does other things too
SMALL = {"num_steps": 6, "checkpoint_every": 3, "evaluate_every": 3, "log_every": 1, "num_workers": 4, "batch_size": 16}


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _open_piped(command: Sequence[str], inherited: Mapping[str, str], own: Mapping[str, str]) -> subprocess.Popen:
    environment = {**inherited, "PYTHONPATH": str(ROOT), "XLA_FLAGS": "", **own}
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.fixture
def open_script() -> Iterator[Callable[..., subprocess.Popen]]:
    """Starts one of the scripts in this folder; what is left of them is killed in the end."""
    started: list[subprocess.Popen] = []

    def start(script: str, *arguments: object, **environment: str) -> subprocess.Popen:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("JAXTERN_")}
        command = [sys.executable, str(Path(__file__).with_name(script)), *map(str, arguments)]
        started.append(_open_piped(command, inherited, environment))
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.communicate()


@pytest.fixture
def end_of() -> Callable[..., tuple[int, list[str], list[str]]]:
    """Waits for a process: its status, and the lines of its standard output and error."""

    def end(process: subprocess.Popen, patience: float = PATIENCE) -> tuple[int, list[str], list[str]]:
        out, err = process.communicate(timeout=patience)
        return process.returncode, out.splitlines(), err.splitlines()

    return end


@pytest.fixture
def train(tmp_path: Path, full_names: Callable) -> Iterator[Callable[..., subprocess.Popen]]:
    """Starts a run in `<tmp_path>/<name>`, in so many processes of so many devices; SIGTERM ends what is left."""
    started: list[subprocess.Popen] = []

    def start(
        name: str,
        processes: int = 1,
        devices: int = 1,
        flags: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        **fields: object,
    ) -> subprocess.Popen:
        config = [f"--config.{field}={value}" for field, value in full_names(**SMALL | fields).items()]
        launch = [sys.executable, "-m", "jaxtern.launch", "-n", str(processes), "--"]
        alone = [sys.executable, "-m", "jaxtern.train"]
        own = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
        command = [*(launch if processes > 1 else alone), *flags, *config, f"--workdir={tmp_path / name}"]
        started.append(_open_piped(command, os.environ, own | (environment or {})))
        return started[-1]

    yield start
    for process in started:
        process.terminate()
        process.communicate(timeout=300)


@pytest.fixture(scope="session")
def digests() -> Callable[[Path], dict[int, str]]:
    """Of all that each checkpoint in a folder holds."""

    def read(workdir: Path) -> dict[int, str]:
        checkpoints = Checkpoints(workdir)
        return {step: digest(checkpoints.restore(step).state) for step in checkpoints.steps()}

    return read
