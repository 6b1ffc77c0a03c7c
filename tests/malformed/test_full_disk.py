"""A disk that is full, as links to /dev/full are: a run that cannot go on says so, and one that is whole is whole."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxtern import command_line


@pytest.mark.parametrize("name", ["config", "dataset", "metrics"])
def test_train_ends_with_status_1_where_the_disk_is_full(
    run_door: Callable, recipe_flags: list, run_copy: Path, name: str
):
    """Not with 2, which says that starting again is in vain."""
    shutil.rmtree(run_copy / "checkpoints" / "2")
    temporary = run_copy / f"{name}.tmp"
    temporary.symlink_to("/dev/full")
    answer = run_door("train", *recipe_flags, "--workdir=run", cwd=run_copy.parent)
    assert answer.status == 1, answer
    (file,) = run_copy.glob(f"{name}.json*")
    assert answer.err.splitlines()[-1] == f"error: run/{file.name}: No space left on device"
    assert "Traceback" not in answer.err
    temporary.unlink()
    answer = run_door("train", *recipe_flags, "--workdir=run", cwd=run_copy.parent)
    assert answer.status == 0, answer.err
    assert "from step 1" in answer.out


def test_train_ends_with_status_2_where_the_folder_is_wrong(refuses: Callable, recipe_flags: list, tmp_path: Path):
    (tmp_path / "file").touch()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").touch()
    (tmp_path / "run" / "lock").touch()
    refuses("train", *recipe_flags, "--workdir=file/run", cwd=tmp_path, names=["file/run", "cannot be made"])
    refuses("train", *recipe_flags, f"--workdir={'x' * 300}", cwd=tmp_path, names=["File name too long"])
    line = refuses("train", *recipe_flags, "--workdir=run", cwd=tmp_path, names=["run/checkpoints"])
    assert line.endswith("File exists")


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "out.csv"), 1, "out.csv: No space left on device"),
        (OSError(errno.EFBIG, "File too large"), 1, "run: File too large"),
        (OSError(errno.EACCES, "Permission denied", "out.csv"), 2, "[Errno 13] Permission denied: 'out.csv'"),
        (ValueError("out='x': must be y"), 2, "out='x': must be y"),
    ],
)
def test_every_door_tells_a_mistake_from_a_failure_of_the_system(error: Exception, status: int, line: str):
    with pytest.raises(command_line.Failure) as caught, command_line.refusing(place="run"):
        raise error
    assert (caught.value.status, str(caught.value)) == (status, line)


PICTURES = {
    "a folder": (Path.mkdir, "run/curves.png: Is a directory"),
    "a full disk": (lambda path: path.symlink_to("/dev/full"), "run: No space left on device"),
}


@pytest.mark.parametrize("case", PICTURES)
def test_run_that_is_finished_is_whole_without_its_picture(
    run_door: Callable, recipe_flags: list, run_copy: Path, case: str
):
    make, reason = PICTURES[case]
    (run_copy / "curves.png").unlink()
    make(run_copy / "curves.png")
    answer = run_door("train", *recipe_flags, "--workdir=run", cwd=run_copy.parent)
    assert answer.status == 0, answer
    assert answer.err.splitlines()[-1] == f"WARNING: curves cannot be drawn: {reason}"
    assert "Traceback" not in answer.err
    assert "test accuracy" in answer.out
    assert "curves in" not in answer.out
