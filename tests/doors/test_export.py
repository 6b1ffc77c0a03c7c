"""python -m jaxtern.export and python -m jaxtern.predict: what was evaluated is what is predicted, bit for bit."""

import contextlib
import csv
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
FIELDS = {"num_steps": 4, "evaluate_every": 0, "statistics": False, "keep_checkpoints": 2}
# What predicting must do without: all of training, and all that only training needs.
TRAINING = ("jaxtern.training", "jaxtern.models", "jaxtern.compression", "jaxtern.configs", "flax", "optax", "orbax")
PREDICT = """
import atexit, runpy, sys
atexit.register(lambda: print("imported", sorted(set(sys.modules) & set({banned})), file=sys.stderr))
sys.argv[0] = "predict.py"
runpy.run_module("jaxtern.predict", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory, run_door: Callable) -> Path:
    """32 images of two classes, of one shape each, in a folder, and 8 of them prepared as the test split."""
    root, generator = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 4)):
        for name, level in (("cat", 60), ("dog", 190)):
            folder = root / "source" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = np.clip(generator.normal(level, 40, (20, 24, 3)), 0, 255).astype(np.uint8)
                cv2.imwrite(str(folder / f"{number}.jpg"), pixels)
    done = run_door("prepare", root / "source", root / "prepared")
    assert done.returncode == 0, done.stderr
    return root


def read(path: Path) -> dict[str, list[str]]:
    """Rows by key."""
    with path.open(newline="") as file:
        _, *rows = csv.reader(file)
    return {key: values for key, *values in rows}


@contextlib.contextmanager
def without(folder: Path) -> Iterator[None]:
    """While the folder is elsewhere."""
    elsewhere = folder.rename(folder.with_name("elsewhere"))
    try:
        yield
    finally:
        elsewhere.rename(folder)


@pytest.mark.parametrize(
    "family",
    [
        {"preprocessing": "mnist"},
        {"preprocessing": "inception", "image_size": 16},
    ],
)
def test_network_exported_without_its_dataset_predicts_files_and_dataset_as_evaluation_does(
    photos: Path, tmp_path: Path, run_door: Callable, train_arguments: Callable, family: dict
):
    workdir, dataset = tmp_path / "run", photos / "prepared"
    evaluated, of_dataset, of_files = (tmp_path / f"{name}.csv" for name in ("evaluated", "dataset", "files"))
    for door, arguments in (
        ("train", train_arguments(workdir, **FIELDS, data=dataset, **family)),
        ("evaluate", [f"--workdir={workdir}", f"--predictions={evaluated}"]),
    ):
        done = run_door(door, *arguments)
        assert done.returncode == 0, done.stderr
    with without(dataset):
        done = run_door("export", f"--workdir={workdir}", f"--out={tmp_path / 'exported'}")
    assert done.returncode == 0, done.stderr
    shutil.rmtree(workdir)
    (tmp_path / "exported").rename(tmp_path / "moved")
    done = run_door("predict", tmp_path / "moved", f"--dataset={dataset}", f"--out={of_dataset}")
    assert (done.returncode, done.stderr) == (0, "")
    told, precision = done.stdout.splitlines()
    assert told == f"predictions in {of_dataset}, of images: 8"
    done = run_door("predict", tmp_path / "moved", photos / "source" / "test", f"--out={of_files}")
    assert (done.returncode, done.stderr) == (0, "")
    assert of_dataset.read_bytes() == evaluated.read_bytes()
    expected = {key.removeprefix("test/"): row[1:] for key, row in read(evaluated).items()}  # files have no label
    right = [row[0] == row[1] for row in read(evaluated).values()]
    assert precision == f"precision@1 {np.mean(right):.2%}"
    if family["preprocessing"] == "inception":  # takes images of any shape
        of_others = tmp_path / "others.csv"
        done = run_door("predict", tmp_path / "moved", "--dataset=digits", f"--out={of_others}")
        assert (done.returncode, done.stdout) == (0, f"predictions in {of_others}, of images: 360\n")
        assert done.stderr == "--dataset=digits: has other classes than the network; its labels are not compared\n"
    assert all(key.split("/")[1] == row[0] for key, row in read(evaluated).items())
    assert read(of_files) == expected
    assert len({tuple(row) for row in expected.values()}) == 8
    assert {row[0] for row in expected.values()} | {row[2] for row in expected.values()} == {"cat", "dog"}


def test_run_of_before_facts_were_kept_is_exported_by_its_dataset(
    photos: Path, tmp_path: Path, run_door: Callable, train_arguments: Callable, snapshot: Callable
):
    workdir, dataset = tmp_path / "run", photos / "prepared"
    done = run_door("train", *train_arguments(workdir, **FIELDS, data=dataset))
    assert done.returncode == 0, done.stderr
    assert run_door("export", f"--workdir={workdir}", f"--out={tmp_path / 'by_facts'}").returncode == 0
    (workdir / "dataset.json").unlink()
    with without(dataset):
        done = run_door("export", f"--workdir={workdir}", f"--out={tmp_path / 'lost'}")
        moved = run_door(
            "export", f"--workdir={workdir}", f"--out={tmp_path / 'moved'}", f"--data_dir={photos / 'elsewhere'}"
        )
    assert (done.returncode, done.stderr) == (2, f"error: dataset={str(dataset)!r}: no such folder\n")
    assert not (tmp_path / "lost").exists()
    assert moved.returncode == 0, moved.stderr
    assert snapshot(tmp_path / "moved") == snapshot(tmp_path / "by_facts")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory, run_door: Callable, train_arguments: Callable) -> Path:
    """A folder with a run on digits, the network of its step 3 in `exported`."""
    root = tmp_path_factory.mktemp("digits")
    done = run_door("train", *train_arguments(root / "run", **FIELDS))
    assert done.returncode == 0, done.stderr
    done = run_door("export", "--workdir=run", "--out=exported", "--step=3", cwd=root)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "lenet of step 3 (131,080 numbers), images of 8 by 8 by 1 to 10 classes, for cpu and cuda",
        "in exported",
        "to predict: python -m jaxtern.predict exported IMAGE_OR_FOLDER",
    ]
    return root


def test_export_says_what_the_network_is_and_comes_from(digits: Path):
    manifest = json.loads((digits / "exported" / "manifest.json").read_text())
    assert manifest["recipe"] == json.loads((digits / "run" / "config.json").read_text())
    expected = {"model": "lenet", "step": 3, "averaged": False, "preprocessing": "mnist", "input_shape": [8, 8, 1]}
    assert {name: manifest[name] for name in expected} == expected


def test_export_names_the_steps_that_there_are(digits: Path, run_door: Callable):
    done = run_door("export", "--workdir=run", "--out=other", "--step=1", cwd=digits)
    assert done.returncode == 2
    assert done.stderr == "error: step=1: workdir='run' holds no such checkpoint; available: 3, 4\n"
    assert not (digits / "other").exists()


def test_predict_needs_nothing_of_training_and_names_damaged_images(
    digits: Path, tmp_path: Path, without_progress: Callable
):
    """As a table on a terminal, keys as they were given; the damaged image is named, the other predicted."""
    for name in ("a.png", "b.png"):
        cv2.imwrite(str(tmp_path / name), np.full((8, 8), 100, np.uint8))
    (tmp_path / "b.png").write_bytes((tmp_path / "b.png").read_bytes()[:-30])
    script = PREDICT.format(banned=TRAINING)
    done = subprocess.run(
        [sys.executable, "-c", script, str(digits / "exported"), "a.png", "b.png", "--top=2"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": ""}, text=True, capture_output=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    said = without_progress(done.stderr).splitlines()
    assert said == ["error: b.png: the PNG is damaged or cut short: Truncated File Read", "imported []"]
    (line,) = done.stdout.splitlines()
    key, *values = line.split()
    assert key == "a.png"
    assert len(values) == 4
    assert values[0].endswith("%")
    assert values[1] in "0123456789"


def test_exported_program_runs_without_jaxtern_as_the_page_says(digits: Path):
    *_, snippet = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "export.md").read_text(), flags=re.DOTALL)
    script = f"{snippet}\nimport sys\nassert logits.shape == (2, 10)\nassert 'jaxtern' not in sys.modules"
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", script], cwd=digits, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_predictions_of_a_dataset_without_files_have_numbers_as_keys(digits: Path, tmp_path: Path, run_door: Callable):
    done = run_door("evaluate", f"--workdir={digits / 'run'}", f"--predictions={tmp_path / 'evaluated.csv'}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("step 4: test loss")
    network = tmp_path / "newest"
    assert run_door("export", f"--workdir={digits / 'run'}", f"--out={network}").returncode == 0
    done = run_door("predict", network, "--dataset=digits", f"--out={tmp_path / 'predicted.csv'}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "predicted.csv").read_bytes() == (tmp_path / "evaluated.csv").read_bytes()
    _, *rows = (tmp_path / "predicted.csv").read_text().splitlines()
    assert [row.partition(",")[0] for row in rows] == [str(number) for number in range(360)]
