"""Processes that would not train the same are refused, before anything is written, with the difference."""

import functools
import os
import runpy
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import jaxtern
from jaxtern.hosts.agreement import describe_source

ROOT = Path(__file__).resolve().parents[2]
EndOf = Callable[[subprocess.Popen], tuple[int, list[str], list[str]]]


@pytest.fixture
def refusal(train: Callable, end_of: EndOf, free_port: int, tmp_path: Path) -> Callable[[list[dict]], str]:
    """The line in which two processes are refused, which are given these settings beside `train`'s own."""

    def refuse(settings: list[dict]) -> str:
        where = {"JAXTERN_COORDINATOR": f"127.0.0.1:{free_port}", "JAXTERN_NUM_PROCESSES": "2"}
        processes = []
        for number, given in enumerate(settings):
            environment = where | {"JAXTERN_PROCESS_ID": str(number)} | given.pop("environment", {})
            processes.append(train("run", environment=environment, **given))
        differences = set()
        for process in processes:
            status, _, err = end_of(process)
            assert status == 2, err
            (line,) = (line for line in err if line.startswith("error:"))
            assert "do not train the same: " in line
            differences.add(line.partition("do not train the same: ")[2])
        assert not (tmp_path / "run").exists()
        (difference,) = differences  # both say the same
        return difference

    return refuse


@pytest.mark.slow
def test_processes_with_another_config_are_refused_with_the_difference(refusal: Callable):
    line = refusal([{"learning_rate": 0.01}, {"learning_rate": 0.02}])
    assert line == "config optimizer.learning_rate is 0.02 and 0.01"


@pytest.mark.slow
def test_processes_with_other_images_are_refused_with_the_difference(refusal: Callable, tmp_path: Path):
    """Each has a folder of its own, which may be; but in one, a bit of one test image is another."""
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8), np.uint8)
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        for split, count in (("train", 32), ("t10k", 8)):
            labels = np.arange(count, dtype=np.uint8) % 10
            _write_idx(folder / f"{split}-images-idx3-ubyte", images[:count])
            _write_idx(folder / f"{split}-labels-idx1-ubyte", labels)
        images[0, 0, 0] ^= 1
    shutil.copyfile(folders[0] / "train-images-idx3-ubyte", folders[1] / "train-images-idx3-ubyte")
    line = refusal([{"data": "mnist", "dir": folder} for folder in folders])
    assert line.startswith("data test digest is '")
    assert ";" not in line


@pytest.mark.slow
def test_processes_with_other_code_are_refused_with_the_difference(refusal: Callable, tmp_path: Path):
    """In Python and in C."""
    shutil.copytree(ROOT / "jaxtern", tmp_path / "jaxtern", ignore=shutil.ignore_patterns("__pycache__"))
    for name, comment in (("kernels/native/decode.c", "/* */"), ("training/step/step.py", "#")):
        with (tmp_path / "jaxtern" / name).open("a") as file:
            file.write(f"{comment}\n")
    elsewhere = {"PYTHONPATH": os.fspath(tmp_path), "PYTHONSAFEPATH": "1"}  # which leaves out this folder
    line = refusal([{}, {"environment": elsewhere}])
    first, second = line.split("; ")
    assert first.startswith("code kernels/native/decode.c is '")
    assert second.startswith("code training/step/step.py is '")


@pytest.mark.slow
def test_a_run_that_process_0_does_not_have_is_not_begun_anew(
    train: Callable, end_of: EndOf, free_port: int, tmp_path: Path
):
    (tmp_path / "old" / "checkpoints" / "3").mkdir(parents=True)
    where = {"JAXTERN_COORDINATOR": f"127.0.0.1:{free_port}", "JAXTERN_NUM_PROCESSES": "2"}
    processes = [
        train(folder, environment=where | {"JAXTERN_PROCESS_ID": str(number)})
        for number, folder in enumerate(["new", "old"])
    ]
    for process in processes:
        status, _, err = end_of(process)
        (line,) = (line for line in err if line.startswith("error:"))
        assert status == 2
        assert "process 1 (host " in line
        assert "has checkpoints there, and process 0 (host " in line
    assert not (tmp_path / "new").exists()


def test_source_of_a_method_is_told_by_its_file():
    assert list(describe_source([functools.partial(jaxtern.low_rank, 2)])) == ["low_rank.py"]
    assert describe_source([None]) == {}


def test_of_two_files_of_one_name_both_are_told(tmp_path: Path):
    functions = []
    for number in range(2):
        path = tmp_path / str(number) / "model.py"
        path.parent.mkdir()
        path.write_text(f"def create(): return {number}\n")
        functions.append(runpy.run_path(str(path))["create"])
    (digests,) = describe_source(functions).values()
    own = [describe_source([each])["model.py"] for each in functions]
    assert sorted(own) == digests.split()
    assert describe_source(reversed(functions)) == {"model.py": digests}


def _write_idx(path: Path, array: np.ndarray) -> None:
    header = np.array([0x800 + array.ndim, *array.shape], ">u4")
    path.write_bytes(header.tobytes() + array.tobytes())
