"""`python -m benchmarks.training`: steps send what is predicted, hosts keep the same weights, mistakes in a line."""

import argparse
import gzip
import json
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import numpy as np
import pytest

from benchmarks.training import step, time_to

ROOT = Path(__file__).parents[2]
SMALL = ("--hosts", "2", "--rates", "1gbit", "--batch", "2")


def run(*arguments: str, timeout: float = 60) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "benchmarks.training", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)


def write_mnist(folder: Path, examples: int) -> None:
    """A fifth of which is of each of five shades, which is the class."""
    labels = (np.arange(examples) % 5).astype(np.uint8)
    images = np.broadcast_to((labels * 60)[:, None, None], (examples, 28, 28)).astype(np.uint8)
    for name in ("train", "t10k"):
        header = struct.pack(">4I", 0x0803, *images.shape)
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + images.tobytes()))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x0801, examples) + labels.tobytes())


@pytest.mark.netlab
def test_steps_send_what_is_predicted_and_hosts_keep_the_same_weights(netlab: ModuleType, tmp_path: Path):
    del netlab
    file, figure = tmp_path / "training.json", tmp_path / "training.png"
    variants = ("--variants", "delayed", "none", "float", "ternary")
    done = run("--models", "lenet", *SMALL, *variants, "--json", str(file), "--plot", str(figure))
    assert done.returncode == 0, done
    rows = {row["variant"]: row for row in json.loads(file.read_text())["rows"]}
    assert list(rows) == ["none", "float", "ternary", "delayed"]
    assert rows["none"]["sent_bytes"] < 2000
    assert not rows["none"]["same_weights"]
    for row in list(rows.values())[1:]:
        assert 0.97 < row["sent_over_predicted"] < 1.15
        assert row["same_weights"]
        assert row["min"] <= row["milliseconds"] <= row["max"]
        assert row["over_none"] == row["milliseconds"] / rows["none"]["milliseconds"]
    assert rows["ternary"]["sent_bytes"] < rows["float"]["sent_bytes"] / 15
    table = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1
    assert figure.stat().st_size > 10_000


@pytest.mark.netlab
def test_training_ends_at_the_accuracy_or_says_that_it_did_not_reach_it(netlab: ModuleType, tmp_path: Path):
    del netlab
    write_mnist(tmp_path, 50)
    file, figure = tmp_path / "training.json", tmp_path / "training.png"
    what = ("--data_dir", str(tmp_path), "--every", "4", "--json", str(file), "--plot", str(figure))
    done = run("--time_to", "0.2", *SMALL, "--variants", "ternary", "local_10", *what)
    assert done.returncode == 0, done
    rows = json.loads(file.read_text())["rows"]
    assert [row["variant"] for row in rows] == ["ternary", "local_10"]
    for row in rows:
        assert row["steps"] == 4 * len(row["evaluations"])
        assert row["evaluations"][-1] == [row["steps"], row["seconds"], row["accuracy"]]
        assert row["accuracy"] >= 0.2
    assert rows[1]["predicted_bytes"] == rows[0]["predicted_bytes"] / 10
    assert figure.stat().st_size > 10_000


@pytest.mark.netlab
def test_torch_trains_the_same_network_on_the_same_batches(netlab: ModuleType, tmp_path: Path):
    pytest.importorskip("torch")
    del netlab
    write_mnist(tmp_path, 50)
    file = tmp_path / "training.json"
    what = ("--data_dir", str(tmp_path), "--every", "4", "--json", str(file), "--torch", sys.executable)
    done = run("--time_to", "0.2", *SMALL, "--variants", "float", *what, timeout=300)
    assert done.returncode == 0, done
    rows = json.loads(file.read_text())["rows"]
    assert [row["variant"] for row in rows] == ["float", *time_to.TORCH]
    assert len({row["elements"] for row in rows}) == 1
    assert rows[1]["evaluations"][0][2] == rows[0]["evaluations"][0][2]


def test_accuracy_that_is_not_reached_is_an_error_after_the_most_steps():
    class Team:
        orders: ClassVar[list] = []

        def ask(self, order: str, timeout: float, **arguments: int) -> list[dict]:
            self.orders.append((order, arguments.get("first")))
            return [{"seconds": 1.0, "right": 3, "examples": 5}, {"seconds": 1.5, "right": 4, "examples": 5}]

    arguments = argparse.Namespace(time_to=0.9, every=4, max_steps=7)
    found = time_to.measure_accuracy(Team(), {"elements": 10, "rate": "1gbit", "batch": 2}, arguments)
    assert found.pop("evaluations") == [(4, 1.5, 0.7), (8, 3.0, 0.7)]
    assert found == {"steps": 8, "seconds": 3.0, "accuracy": 0.7, "error": "did not reach 90.0%"}
    assert Team.orders == [("train", 0), ("evaluate", None), ("train", 4), ("evaluate", None)]


@pytest.mark.netlab
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hosts", "1"], "--hosts: '1': must be an integer from 2 to 64"),
        (["--rates", "fast"], "rate='fast': must be a number and bit"),
        (["--repeats", "1"], "--repeats: '1': must be an integer, 9 or more"),
        (["--batch", "0"], "--batch: '0': must be an integer, 1 or more"),
        (["--models", "vgg"], "invalid choice: 'vgg'"),
        (["--time_to", "97", "--data_dir", "."], "--time_to=97.0: must be above 0 and at most 1"),
        (["--time_to", "0.97"], "--data_dir: must be given with --time_to"),
        (["--torch", sys.executable], "--torch: must be given with --time_to"),
        (["--time_to", "0.97", "--data_dir", ".", "--torch", "/bin/false"], "--torch=/bin/false: must be a Python"),
        (["--variants", "local_10"], "--variants: local steps are measured with --time_to"),
        (["--time_to", "0.97", "--data_dir", "/nonexistent"], "--data_dir=/nonexistent: must be a folder"),
    ],
)
def test_mistakes_are_told_in_a_line(arguments: list[str], message: str):
    done = run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]


def test_delayed_means_and_local_steps_lie_on_each_host_and_others_on_all():
    everywhere = step.PartitionSpec()
    assert {variant: step.create_optimizer(variant, "gather")[1] == everywhere for variant in step.VARIANTS} == {
        "none": True,
        "float": True,
        "ternary": True,
        "two_way": True,
        "delayed": False,
        "local_10": False,
        "local_30": False,
    }
