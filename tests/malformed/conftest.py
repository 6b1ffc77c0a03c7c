"""The doors, as fast as tables of hundreds of bad inputs need them, and what all refusals have in common."""

import hashlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

LONGEST_LINE = 400 + len("error: ")
MOST_MEMORY = 1200  # MiB that a refusal may take, of which the imports are half
RECIPE = {
    "data": "synthetic", "synthetic_shape": (8, 8, 1), "synthetic_classes": 3, "synthetic_examples": 32,
    "num_workers": 2, "batch_size": 8, "num_steps": 2, "checkpoint_every": 1, "log_every": 1,
}  # fmt: skip


def snapshot(folder: Path) -> dict[str, str]:
    """All that lies in a folder: what kind it is of, and a digest of its bytes."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"link to {path.readlink()}"
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[name] = "folder"
    return found


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the rows of a table every fifth is for all to run, the others are slow."""
    tests: dict[str, int] = {}
    for item in items:
        if (
            isinstance(item, pytest.Function)
            and item.path.parent == Path(__file__).parent
            and hasattr(item, "callspec")
        ):
            name = f"{item.path}::{item.originalname}"
            tests[name] = tests.get(name, -1) + 1
            if tests[name] % 5:
                item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def refuses(run_door: Callable) -> Callable[..., str]:
    """Runs a door that must refuse what it is given; the line that it says."""

    def check(
        door: str,
        *arguments: object,
        cwd: Path,
        names: Sequence[str] = (),
        leaves: str | None = None,
        **environment: str,
    ) -> str:
        before = snapshot(cwd)
        answer = run_door(door, *arguments, cwd=cwd, **environment)
        assert answer.status == 2, answer
        *others, line = answer.err.splitlines()
        assert line.startswith("error: "), answer.err
        assert all(other.startswith(("WARNING: ", "INFO: kernels: ")) for other in others), answer.err
        assert "Traceback" not in answer.out
        assert len(line) <= LONGEST_LINE, line
        assert line.isprintable(), line
        for name in names:
            assert name in line
        assert answer.memory < MOST_MEMORY, answer
        after = snapshot(cwd)
        if leaves is not None and answer.out:  # it had begun, and what is whole stays for the same command
            after = {name: kind for name, kind in after.items() if Path(name).parts[0] != leaves}
        assert after == before
        return line

    return check


@pytest.fixture(scope="session")
def recipe_flags(full_names: Callable) -> list[str]:
    """Of a run that takes a second."""
    return [f"--config.{name}={value}" for name, value in full_names(**RECIPE).items()]


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory, run_door: Callable, recipe_flags: list[str]) -> Path:
    """A run with checkpoints of steps 0, 1 and 2."""
    folder = tmp_path_factory.mktemp("trained")
    answer = run_door("train", *recipe_flags, "--workdir=run", cwd=folder)
    assert answer.status == 0, answer.err
    return folder / "run"


@pytest.fixture
def run_copy(run_folder: Path, tmp_path: Path) -> Path:
    """The same, for a test to damage; it is called `run` in an empty folder."""
    return Path(shutil.copytree(run_folder, tmp_path / "run"))
