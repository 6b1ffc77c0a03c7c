"""A folder of images to a network: fine-tuned from another run, stopped and resumed, exported, its predictions those of
the evaluation.
"""

import csv
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import pytest

from jaxtern.training.recipe.model import ModelSection
from jaxtern.training.saved.initialization import read_weights

pytestmark = pytest.mark.slow

NUM_STEPS = 40
HEAD = "fc2/.*"
FIELDS = {
    "model": "mnistnet", "image_size": 16, "learning_rate": 3e-4, "statistics": False, "evaluate_every": 0,
}  # fmt: skip
FIRST = FIELDS | {"data": "synthetic", "synthetic_shape": (16, 16, 3), "synthetic_classes": 5, "num_steps": 3}
TUNED = FIELDS | {
    "num_steps": NUM_STEPS, "init_exclude": (HEAD,), "train_only": ("fc1/.*", HEAD), "average_decay": 0.9,
    "checkpoint_every": 4, "keep_checkpoints": 20,
}  # fmt: skip


class Runs(NamedTuple):
    """What the commands left.

    Attributes:
      photos: the folder of images.
      dataset: made of it.
      first: a run on five other classes.
      straight: fine-tuned from there, never interrupted.
      resumed: likewise, but stopped on its way.
      stopped: the start that was.
      again: the start by the same command after that.
    """

    photos: Path
    dataset: Path
    first: Path
    straight: Path
    resumed: Path
    stopped: subprocess.CompletedProcess
    again: subprocess.CompletedProcess


def draw_photos(folder: Path) -> None:
    """36 and 12 images of three classes, of many shapes; all PNG, so that they are prepared byte for byte."""
    generator = np.random.default_rng(0)
    for split, count in (("TrainData", 12), ("ValidationData", 4)):
        for name, level in (("cat", 60), ("dog", 130), ("hen", 200)):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = np.clip(generator.normal(level, 60, (20 + number, 30 - number, 3)), 0, 255).astype(np.uint8)
                cv2.imwrite(str(folder / split / name / f"{number}.png"), pixels)


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory,
    run_door: Callable[..., subprocess.CompletedProcess],
    open_door: Callable[..., subprocess.Popen],
    train_arguments: Callable,
    wait_until: Callable,
) -> Runs:
    root = tmp_path_factory.mktemp("fine_tuning")
    photos, dataset, first, straight, resumed = (root / name for name in ("photos", "data", "first", "one", "two"))
    draw_photos(photos)
    fields = TUNED | {"data": dataset, "init_from": first}
    for door, arguments in (
        ("prepare", [photos, dataset]),
        ("train", ["--config=image_folder", *train_arguments(first, **FIRST, init_exclude=())]),
        ("train", ["--config=image_folder", *train_arguments(straight, **fields)]),
    ):
        done = run_door(door, *arguments)
        assert done.returncode == 0, done.stderr
    command = ["train", "--config=image_folder", *train_arguments(resumed, **fields)]
    process = open_door(*command)
    try:
        wait_until((resumed / "checkpoints" / "4" / "metadata").exists, process)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=600)
    finally:
        process.kill()
    stopped = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    return Runs(photos, dataset, first, straight, resumed, stopped, run_door(*command))


def read_newest(workdir: Path) -> dict[str, np.ndarray]:
    """Weights by path, the averages where they are kept."""
    return read_weights(ModelSection(init_from=str(workdir)), {})


def read_rows(path: Path) -> dict[str, dict[str, str]]:
    """Predictions by file, by class and name."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {"/".join(Path(row.pop("key")).parts[-2:]): row for row in rows}


def test_fine_tuning_that_was_stopped_ends_with_the_bits_of_one_that_was_not(runs: Runs, saved_digest: Callable):
    assert runs.stopped.returncode == 128 + signal.SIGTERM, runs.stopped.stderr
    step = re.search(r"stopped by SIGTERM at step (\d+); the same command continues", runs.stopped.stdout)
    assert 4 <= int(step[1]) < NUM_STEPS
    assert runs.again.returncode == 0, runs.again.stderr
    assert f"from step {step[1]}, " in runs.again.stdout
    assert saved_digest(runs.resumed, NUM_STEPS) == saved_digest(runs.straight, NUM_STEPS)


def test_fine_tuning_trains_what_it_is_to_from_where_the_other_run_ended(runs: Runs):
    before, after = read_newest(runs.first), read_newest(runs.resumed)
    assert before.keys() == after.keys()
    kept = {path for path in after if np.array_equal(before[path], after[path])}
    assert kept == {"conv1/kernel", "conv1/bias", "conv2/kernel", "conv2/bias"}
    moved = np.abs(after["fc1/kernel"] - before["fc1/kernel"]).max()
    assert moved < NUM_STEPS * FIELDS["learning_rate"]  # Adam moves by about the rate a step; fresh ones lie .3 apart
    assert after["fc2/kernel"].shape == (1024, 3)


def test_fine_tuned_network_predicts_files_as_evaluation_does(runs: Runs, tmp_path: Path, run_door: Callable):
    evaluated, predicted, exported = (tmp_path / name for name in ("evaluated.csv", "predicted.csv", "exported"))
    for door, arguments in (
        ("evaluate", [f"--workdir={runs.resumed}", f"--predictions={evaluated}"]),
        ("export", [f"--workdir={runs.resumed}", f"--out={exported}"]),
        ("predict", [exported, runs.photos / "ValidationData", f"--out={predicted}"]),
    ):
        done = run_door(door, *arguments)
        assert (done.returncode, done.stderr) == (0, "")
    rows, labelled = read_rows(predicted), read_rows(evaluated)
    assert {key: row.pop("true") for key, row in labelled.items()} == {key: key.split("/")[0] for key in rows}
    assert rows == labelled
    assert len(rows) == len({tuple(row.values()) for row in rows.values()}) == 12
    assert {row["label_1"] for row in rows.values()} <= {"cat", "dog", "hen"}
    precision = np.mean([key.split("/")[0] == row["label_1"] for key, row in rows.items()])
    assert f"test accuracy {precision:.2%} " in runs.again.stdout
