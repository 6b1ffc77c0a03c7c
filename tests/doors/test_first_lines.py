"""What a command says while it loads and compiles, and of a package that is missing."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxtern.command_line import EXTRAS
from jaxtern.training.saved.checkpoints import Checkpoints
from jaxtern.training.saved.trees import digest

ROOT = Path(__file__).resolve().parents[2]
DOORS = ("train", "evaluate", "export", "predict", "prepare", "plan")

# Runs a door in whose process no import of jax ever ends.
STUCK = """
import runpy, sys, threading
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "jax":
            sys.stderr.flush()
            import _thread
            _thread.interrupt_main()
            threading.Event().wait(60)
sys.meta_path.insert(0, Finder())
door = sys.argv.pop(1)
runpy.run_module("jaxtern." + door, run_name="__main__", alter_sys=True)
"""


def run(code: str, *arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess:
    own = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"} | environment
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=cwd, env=own, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("door", DOORS)
def test_first_line_comes_before_jax_and_ctrl_c_ends_in_a_line(tmp_path: Path, door: str):
    done = run(STUCK, door, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.splitlines() == ["loading JAX", "stopped by Ctrl-C"]


def test_of_several_processes_the_first_alone_says_that_it_loads(tmp_path: Path):
    done = run(STUCK, "train", cwd=tmp_path, JAXTERN_PROCESS_ID="1")
    assert done.stderr.splitlines() == ["stopped by Ctrl-C"]


@pytest.mark.few("prepare*")
@pytest.mark.parametrize(
    ("door", "arguments", "package", "extra"),
    [
        ("prepare", ["photos", "out"], "cv2", "images"),
        ("train", ["--config.data.name=./photos"], "tensorflow_datasets", "images"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, door: str, arguments: list[str], package: str, extra: str
):
    (tmp_path / "photos").mkdir()
    code = f"""
import runpy, sys
sys.modules["{package}"] = None
runpy.run_module("jaxtern.{door}", run_name="__main__", alter_sys=True)
"""
    done = run(code, *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == f"error: {package} is missing: pip install 'jaxtern[{extra}]'"
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_without_any_extra_digits_are_trained_evaluated_and_exported(tmp_path: Path):
    def run_without_extras(door: str, *arguments: str) -> subprocess.CompletedProcess:
        code = f"""
import runpy, sys
sys.modules |= dict.fromkeys({sorted(EXTRAS)})
runpy.run_module("jaxtern.{door}", run_name="__main__", alter_sys=True)
"""
        done = run(code, *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done

    trained = run_without_extras("train", "--config.run.num_steps=2")
    assert trained.stdout.splitlines()[-1] == "no curves.png: matplotlib is missing: pip install 'jaxtern[plots]'"
    assert "step 2: test loss" in run_without_extras("evaluate").stdout
    assert "lenet of step 2" in run_without_extras("export", "--out=exported").stdout


@pytest.mark.slow
def test_training_says_what_it_compiles_and_how_long_that_took(tmp_path: Path, run_door: Callable, train_arguments):
    done = run_door("train", *train_arguments(tmp_path / "run", num_steps=6, steps_per_call=4, checkpoint_every=6))
    said = [line for line in done.stdout.splitlines() if line.startswith("compil")]
    assert said[::2] == ["compiling 4 steps at once", "compiling a step"]
    assert all(line.startswith("compiled in ") and line.endswith(" s") for line in said[1::2])
    assert len(said) == 4


@pytest.mark.slow
def test_the_second_start_takes_the_first_one_s_program_to_the_same_bits(
    tmp_path: Path, run_command: Callable, train_arguments: Callable, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    states = []
    for name in ("first", "second"):
        done = run_command("train", *train_arguments(tmp_path / name, num_steps=2, evaluate_every=0))
        assert (done.returncode, done.stderr) == (0, "")
        checkpoints = Checkpoints(tmp_path / name)
        states.append(digest(checkpoints.restore(checkpoints.steps()[-1]).state))
    assert states[0] == states[1]
    assert list(tmp_path.glob("cache/jaxtern/programs-*/*"))
