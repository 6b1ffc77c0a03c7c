"""python -m jaxtern.prepare as a user types it."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxtern.preparation.plan import name_dataset


def test_door_prepares_says_so_and_goes_on(
    tmp_path: Path, make, class_folders, run_door: Callable, read_back: Callable
):
    source, out = make.zip(tmp_path / "My-Animals.zip", class_folders), tmp_path / "out"
    done = run_door(source, "--shards=2", out, "--workers=2")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"21 images of 3 classes in 4 shards, to {out}" in done.stdout
    assert re.search(r"^train +2 +15 +3 +5 +[\d.]+kB +0 +0$", done.stdout, re.MULTILINE)
    assert re.search(r"^test +2 +6 +3 +2 +[\d.]+kB +0 +0$", done.stdout, re.MULTILINE)
    assert f"--config.data.name={out}" in done.stdout
    assert sorted(path.name for path in out.iterdir()) == [
        "dataset_info.json", "features.json", "label.labels.txt",
        *(f"my_animals-{split}.array_record-0000{i}-of-00002" for split in ("test", "train") for i in (0, 1)),
        "preparation.json",
    ]  # fmt: skip
    assert len(read_back(out)["train"]) == 15
    again = run_door(source, out, "--shards=2")
    assert again.returncode == 0
    assert again.stdout.startswith(f"{out} is prepared already, from files of these names and sizes\n")


CASES = {
    "no OUT": (["{source}"], ["OUT is missing: give SOURCE OUT"]),
    "an argument too many": (["{source}", "{out}", "{out}"], ["is one too many; flags start with --"]),
    "source missing": (["nowhere", "{out}"], ["SOURCE='nowhere': no such file or folder", "TensorFlow Datasets"]),
    "unknown format": (["{source}", "{out}", "--format=hdf5"], ["format", "idx", "images"]),
    "too many shards": (["{source}", "{out}", "--shards=9"], ["shards=9: split test has only 6 images"]),
    "a sheet of no picture": (["{source}", "{out}", "--sheet=sheet.txt"], ["--sheet='sheet.txt': must end in .png, "]),
    "a sheet in no folder": (
        ["{source}", "{out}", "--sheet={out}/a/b.png"],
        ["--sheet='", "b.png': there is no folder"],
    ),
    "another's flag": (["{source}", "{out}", "--coarse_labels"], ["coarse_labels: is for --format=cifar"]),
}


@pytest.mark.parametrize("case", CASES)
def test_door_refuses_in_one_line(tmp_path: Path, make, class_folders, run_door: Callable, case: str):
    arguments, words = CASES[case]
    source, out = make.folder(tmp_path / "source", class_folders), tmp_path / "out"
    done = run_door(*(argument.format(source=source, out=out) for argument in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    for word in words:
        assert word in line
    assert not out.exists()


def test_door_explains_itself(run_door: Callable):
    done = run_door("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("python -m jaxtern.prepare SOURCE OUT", "--resize_shortest", "--max_bad", "--validation_fraction"):
        assert word in done.stdout


@pytest.mark.slow
def test_door_stopped_by_hand_says_how_to_go_on(tmp_path: Path, make):
    image = make.jpeg(0, 400, 500)
    source = make.folder(tmp_path / "source", {f"train/{c}/{i}.jpg": image for c in "ab" for i in range(1800)})
    command = (sys.executable, "-m", "jaxtern.prepare", source, tmp_path / "out", "--shards=120", "--workers=2")
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        [*map(str, command), "--validation_fraction=0"], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu"}, start_new_session=True,
    )  # fmt: skip
    while not list((tmp_path / "out").glob("*array_record*")):
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does: to the workers too
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (
        said.removeprefix("loading JAX\n")
        == "stopped: finished shards are kept; run the same command again to continue\n"
    )
    assert not (tmp_path / "out" / "dataset_info.json").exists()
    assert not list((tmp_path / "out" / ".preparation").glob("*.tmp"))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/x/My-Animals.zip", "my_animals"), ("/x/cifar-10-python.tar.gz", "cifar_10_python"),
        ("/x/2024 photos", "data_2024_photos"), ("/x/mnist/", "mnist"), ("/x/---", "data"), ("/x/a.b.tgz", "a_b"),
        ("/x/my.target", "my_target"), ("/x/photos.tar.bz2", "photos"), ("/x/v1.gzipped.zip", "v1_gzipped"),
    ],
)  # fmt: skip
def test_dataset_is_called_like_its_source(path: str, name: str):
    assert name_dataset(path) == name
