"""A method of a user's own, from the recipe's file: it trains, goes on, is rehearsed and evaluated."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

RECIPE = '''
import jaxtern
from jaxtern.configs import digits


def largest_late(density: float = 0.25, own: int = 3) -> jaxtern.Reducer:
    """Its `density` is not the recipe's field of this name; `own` is none of its fields."""
    assert (density, own) == (0.25, 3)
    return jaxtern.momentum_correction(jaxtern.top_k(density, feedback=False), 0.5)


jaxtern.METHODS["mine"] = largest_late


def get_config():
    config = digits.get_config()
    config.mean.method = "mine"
    config.optimizer.name, config.optimizer.schedule = "sgd", "fixed"
    config.run.num_workers = 2
    config.run.batch_size = 8
    config.run.log_every = 1
    config.run.evaluate_every = 0
    return config
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, run_door: Callable) -> Path:
    """Where the recipe lies, with `straight`, a run of four steps, and `stopped`, one that went on after two."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "mine.py").write_text(RECIPE)
    for workdir, num_steps in (("straight", 4), ("stopped", 2), ("stopped", 4)):
        flags = f"--config.run.num_steps={num_steps}", f"--workdir={workdir}", "--allow_config_change"
        done = run_door("train", "--config=./mine.py", *flags, cwd=folder)
        assert (done.returncode, done.stderr) == (0, "")
        assert "2 workers, gradients by mine\n" in done.stdout
    return folder


def test_own_method_trains_and_goes_on_where_it_stood(folder: Path):
    straight, stopped = (
        {
            record["step"]: record["loss"]
            for record in map(json.loads, (folder / name / "metrics.jsonl").read_text().splitlines())
            if "loss" in record
        }
        for name in ("straight", "stopped")
    )
    assert straight == stopped
    assert list(straight) == [1, 2, 3, 4]


def test_own_method_is_rehearsed(folder: Path, run_door: Callable):
    done = run_door("train", "--config=./mine.py", "--config.run.dry_run=True", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\ndry run passed\n")


@pytest.mark.parametrize(
    ("own", "line"),
    [
        ("jaxtern.top_k(0.1)", "mean.method='mine': must be one of float, ternary, "),
        ("lambda: 3", "reducer=3: must be a jaxtern.Reducer, or one of float, "),
    ],
)
def test_what_makes_no_reducer_is_refused_in_a_line(tmp_path: Path, run_door: Callable, own: str, line: str):
    (tmp_path / "mine.py").write_text(RECIPE.replace('["mine"] = largest_late', f'["mine"] = {own}'))
    for flags in (["--config.run.dry_run=True"], []):
        done = run_door("train", "--config=./mine.py", *flags, cwd=tmp_path)
        assert done.returncode == 2
        assert line in done.stderr
        assert done.stderr.count("\n") == 1


def test_run_of_an_own_method_is_evaluated_with_its_file_and_else_refused_in_a_line(folder: Path, run_door: Callable):
    done = run_door("evaluate", "--workdir=straight", "--networks=mine.py", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    done = run_door("evaluate", "--workdir=straight", cwd=folder)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "mean.method='mine': must be one of float, ternary, " in line
    assert line.endswith(", or what a recipe or --networks adds to them")
