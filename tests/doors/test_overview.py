"""python -m jaxtern names every command, and its version."""

import subprocess
import sys
from pathlib import Path

import pytest

import jaxtern

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "jaxtern", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_overview_names_every_command_with_its_purpose(arguments: list[str]):
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    doors = {path.stem for path in (ROOT / "jaxtern").glob("*.py") if 'if __name__ == "__main__":' in path.read_text()}
    lines = done.stdout.splitlines()[2:]
    usages, purposes = lines[::2], lines[1::2]
    assert {usage.split()[2] for usage in usages} == {f"jaxtern.{door}" for door in doors - {"__main__"}}
    assert all(purpose.startswith("    ") and purpose.endswith(".") for purpose in purposes)


def test_version_is_the_packages():
    assert run("--version").stdout == f"jaxtern {jaxtern.__version__}\n"


def test_command_that_is_none_is_refused_in_a_line():
    done = run("trian")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: 'trian': is no command; run python -m jaxtern.COMMAND, as train, ")
    assert done.stderr.count("\n") == 1
