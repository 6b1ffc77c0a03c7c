"""Programs that are started as several processes."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120  # seconds, on a machine that does other things too


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def open_script() -> Iterator[Callable[..., subprocess.Popen]]:
    """Starts one of the scripts in this folder; what is left of them is killed in the end."""
    started: list[subprocess.Popen] = []

    def start(script: str, *arguments: object, **environment: str) -> subprocess.Popen:
        own = {name: value for name, value in os.environ.items() if not name.startswith(("JAXTERN_", "TF_CONFIG"))}
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(script)), *map(str, arguments)],
            env=own | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": ""} | environment,
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.communicate()


@pytest.fixture
def end_of() -> Callable[[subprocess.Popen], tuple[int, list[str], list[str]]]:
    """Waits for a process: its status, and the lines of its standard output and error."""

    def end(process: subprocess.Popen) -> tuple[int, list[str], list[str]]:
        out, err = process.communicate(timeout=PATIENCE)
        return process.returncode, out.splitlines(), err.splitlines()

    return end
