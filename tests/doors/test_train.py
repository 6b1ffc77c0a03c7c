"""python -m jaxtern.train from the first line to the curves, and where it stops."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory, run_command: Callable) -> tuple[Path, str]:
    """The default command but for its length, in an empty folder: the folder and what it said."""
    folder = tmp_path_factory.mktemp("default")
    done = run_command("train", "--config.run.num_steps=250", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return folder, done.stdout


@pytest.mark.slow
def test_train_reaches_95_percent_with_ternary_gradients(default: tuple[Path, str]):
    _, said = default
    accuracy = re.search(r"^test accuracy ([\d.]+)%", said, re.MULTILINE)
    assert float(accuracy[1]) > 95


@pytest.mark.slow
def test_train_says_what_it_does_and_what_was_sent(default: tuple[Path, str]):
    _, said = default
    for words in (
        "lenet (131,080 parameters) on digits (1,437 training and 360 test examples, resident)",
        "4 workers, gradients by ternary\n",
        "4 workers, by gather: ",
        "250 steps of 64 examples, from the start, in runs/digits",
        "curves in runs/digits/curves.png",
        "checkpoints in runs/digits/checkpoints",
    ):
        assert words in said
    sent = re.search(r"^sent ([\d.]+) bits per gradient element.* float32 all-reduce ([\d.]+)", said, re.MULTILINE)
    assert 4.8 <= float(sent[1]) < 4.9  # 1.6 to each of three others, or 2 * 3/4 * 32/10, and the scales
    assert float(sent[2]) == 48.0  # 2 * 3/4 * 32


@pytest.mark.slow
def test_train_leaves_a_run_in_its_folder(default: tuple[Path, str]):
    folder, _ = default
    workdir = folder / "runs" / "digits"
    assert [path.name for path in folder.iterdir()] == ["runs"]
    names = {"checkpoints", "config.json", "curves.png", "dataset.json", "lock", "metrics.jsonl", "tensorboard"}
    assert {path.name for path in workdir.iterdir()} == names
    assert (workdir / "curves.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert (workdir / "checkpoints" / "250").is_dir()
    assert json.loads((workdir / "config.json").read_text())["run"]["num_steps"] == 250
    assert list((workdir / "tensorboard").glob("events.*"))


def test_train_stops_where_numbers_are_not_finite(run_door: Callable, tmp_path: Path):
    workdir = tmp_path / "run"
    fields = "optimizer.learning_rate=1e30 optimizer.name=sgd run.num_steps=9 run.num_workers=1 run.checkpoint_every=1"
    done = run_door("train", *(f"--config.{field}" for field in fields.split()), f"--workdir={workdir}")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: step 2: loss ")
    assert "fc2/kernel" in line
    assert line.endswith("the last good checkpoint is at step 1")
    assert sorted(path.name for path in (workdir / "checkpoints").iterdir()) == ["0", "1"]


def test_train_reads_a_recipe_from_a_file(run_door: Callable, tmp_path: Path):
    recipe = tmp_path / "mine.py"
    recipe.write_text(
        "from jaxtern.configs import digits\n\n\ndef get_config():\n    config = digits.get_config()\n"
        "    config.run.num_steps = 2\n    config.run.num_workers = 1\n    config.run.batch_size = 8\n"
        "    return config\n"
    )
    done = run_door("train", f"--config={recipe}", "--config.mean.method=float", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 workers, gradients by float\n" in done.stdout
    assert (tmp_path / "runs" / "mine" / "checkpoints" / "2").is_dir()
