"""Bad input: one line on standard error that names the thing, status 2, no traceback, and nothing made or changed."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

OWN_RECIPE = """
from jaxtern.configs import default

def get_config():
    config = default.get_config()
    config.{}
    return config
"""

CASES = {
    "unknown field": ("train", ["--config.optimizer.learning_rat=0.1"], ["learning_rat", "learning_rate"]),
    "field without its section": (
        "train",
        ["--config.num_workers=2"],
        ["config.num_workers", "config.run.num_workers"],
    ),
    "section": ("train", ["--config.run=2"], ["config.run"]),
    "unknown field in the middle": ("train", ["--config.run.seed=1", "--config.colour=red"], ["config.colour"]),
    "unknown flag": ("train", ["--wokdir=x"], ["wokdir"]),
    "missing recipe": ("train", ["--config=nothing"], ["--config=nothing", "charlm, cifar10", "mnist"]),
    "missing recipe file": ("train", ["--config=./nothing.py"], ["--config=./nothing.py: no such file"]),
    "batch does not divide": ("train", ["--config.run.batch_size=62"], ["batch_size=62", "num_workers=4"]),
    "no workers": ("train", ["--config.run.num_workers=0"], ["run.num_workers=0: must be 1 or more"]),
    "too many devices": ("train", ["--config.run.num_devices=4"], ["num_devices=4: there are 1"]),
    "unknown exchange": ("train", ["--config.mean.exchange=pigeon"], ["exchange='pigeon'", "gather, sum"]),
    "unknown method": (
        "train",
        ["--config.mean.method=zip"],
        ["mean.method='zip'", "float, ternary, terngrad, quantized, top_k, dgc"],
    ),
    "unknown model": ("train", ["--config.model.name=lenett"], ["model.name='lenett'", "lenet"]),
    "unknown dataset": ("train", ["--config.data.name=cifar99"], ["dataset='cifar99'", "TFDS knows none"]),
    "no such folder": ("train", ["--config.data.name=./nowhere"], ["dataset='./nowhere': no such folder"]),
    "text that is not there": (
        "train",
        ["--config=charlm", "--config.data.name=./nowhere.txt"],
        ["dataset='./nowhere.txt': no such file"],
    ),
    "text as images": ("train", ["--config.data.name=../play.txt"], ["dataset='../play.txt': is no folder", "'text'"]),
    "images as text": ("train", ["--config=charlm", "--config.data.name=digits"], ["dataset='digits'", "a text file"]),
    "text that is too short": (
        "train",
        ["--config=charlm", "--config.data.name=../play.txt"],
        ["has 9 characters", "sequence_length=128 needs 257"],
    ),
    "text for a network of images": (
        "train",
        [
            "--config=charlm",
            "--config.data.name=synthetic",
            "--config.data.synthetic_classes=9",
            "--config.model.name=lenet",
        ],
        ["model.name='lenet': takes images, and preprocessing gives text"],
    ),
    "unknown preprocessing": (
        "train",
        ["--config.data.preprocessing=vgg99"],
        ["preprocessing='vgg99'", "mnist, cifar10"],
    ),
    "unknown feed": ("train", ["--config.data.feed=tube"], ["feed='tube'", "auto, resident, streaming"]),
    "views of what lies in memory": (
        "train",
        ["--config.data.preprocessing=vgg", "--config.data.feed=resident"],
        ["feed='resident'", "preprocessing='vgg'", "streamed"],
    ),
    "image size of whole images": ("train", ["--config.data.image_size=7"], ["size=7", "preprocessing='mnist'"]),
    "crop larger than the images": (
        "train",
        ["--config.data.preprocessing=cifar10", "--config.data.image_size=9"],
        ["size=9", "8 by 8"],
    ),
    "batch larger than the split": ("train", ["--config.run.batch_size=1440"], ["batch_size=1440", "1437 training"]),
    "made images of no shape": (
        "train",
        ["--config.data.name=synthetic", "--config.data.synthetic_shape=(5,5)"],
        ["synthetic_shape=(5, 5)"],
    ),
    "made images of another shape": (
        "train",
        ["--config.data.name=synthetic", "--config.data.preprocessing=vgg", "--config.data.synthetic_shape=(5,5,3)"],
        ["synthetic_shape=(5, 5, 3)", "(224, 224, 3)"],
    ),
    "unknown optimizer": (
        "train",
        ["--config.optimizer.name=lion"],
        ["optimizer.name='lion'", "sgd, momentum, nesterov, adam"],
    ),
    "data_dir not set": ("train", ["--config=mnist"], ["dataset='mnist'", "(data.dir)"]),
    "data_dir missing": (
        "train",
        ["--config=mnist", "--config.data.dir=nowhere"],
        ["data_dir='nowhere': no such folder"],
    ),
    "data_dir not wanted": ("train", ["--config.data.dir=nowhere"], ["data_dir='nowhere'"]),
    "no float": ("train", ["--config.optimizer.learning_rate=fast"], ["learning_rate", "fast"]),
    "no integer": ("train", ["--config.run.num_steps=1.5"], ["num_steps", "1.5"]),
    "infinite rate": ("train", ["--config.optimizer.learning_rate=inf"], ["learning_rate=inf"]),
    "negative clip": ("train", ["--config.mean.clip_sigmas=-1"], ["clip_sigmas=-1.0"]),
    "no rounding": ("train", ["--config.mean.rounding=up"], ["rounding='up'"]),
    "levels": ("train", ["--config.mean.method=quantized", "--config.mean.levels=0"], ["mean.levels=0"]),
    "density above all": (
        "train",
        ["--config.mean.method=top_k", "--config.mean.density=2"],
        ["error: config: mean.density=2.0: must be a number above 0 and at most 1"],
    ),
    "no rank": (
        "train",
        ["--config.mean.method=low_rank", "--config.mean.rank=0"],
        ["error: config: mean.rank=0: must be an integer of 1 or more"],
    ),
    "warm-up of no density": (
        "train",
        ["--config.mean.density_warmup=(0.5,)"],
        ["error: config: mean.density_warmup=(0.5,): must be () of a method without density"],
    ),
    "momentum twice": (
        "train",
        ["--config.mean.method=dgc", "--config.optimizer.name=momentum"],
        ["error: config: optimizer.name='momentum': must be another, as sgd, where mean.method='dgc'"],
    ),
    "stray argument": ("train", ["batch_size=64"], ["'batch_size=64'", "flags start with --"]),
    "truncated idx": ("train", ["--config=mnist", "--config.data.dir=../mnist"], ["train-images-idx3-ubyte", "784"]),
    "no run": ("evaluate", [], ["workdir=", "holds no run"]),
    "unknown split": ("evaluate", ["--split=validation"], ["split", "validation"]),
    "bad poll": ("evaluate", ["--poll_seconds=0"], ["poll_seconds"]),
    "stray argument of evaluate": ("evaluate", ["now"], ["'now'"]),
    "predictions of many": ("evaluate", ["--predictions=x.csv", "--follow"], ["--predictions=x.csv", "--follow"]),
    "predictions in no list": ("evaluate", ["--predictions=x.txt"], ["'x.txt': must end in .csv"]),
    "export of no run": ("export", ["--out=exported"], ["workdir='run'", "holds no run"]),
    "export to nowhere": ("export", [], ["--out is missing"]),
    "export over something": ("export", ["--out=../mnist"], ["out='../mnist': is already there"]),
    "export in a file": ("export", ["--out=../mnist/train-images-idx3-ubyte/x"], ["out=", "cannot be made"]),
    "export of a step": ("export", ["--out=exported", "--step=last"], ["step", "last"]),
    "predict without a network": ("predict", [], ["ARTEFACT is missing"]),
    "predict without images": ("predict", ["exported"], ["images or folders", "--dataset"]),
    "predict both": ("predict", ["exported", "a.png", "--dataset=digits"], ["images or folders", "--dataset"]),
    "predict by no network": ("predict", ["../mnist", "a.png"], ["ARTEFACT='../mnist'", "no manifest.json"]),
    "predict in no list": ("predict", ["exported", "a.png", "--out=x.txt"], ["'x.txt': must end in .csv"]),
    "predict in no folder": ("predict", ["exported", "a.png", "--out=no/x.csv"], ["'no/x.csv': there is no folder no"]),
    "predict no labels": ("predict", ["exported", "a.png", "--top=0"], ["top", "0"]),
    "unknown flag of predict": ("predict", ["exported", "a.png", "--config=digits"], ["config"]),
    "plan's rate": ("plan", ["--rate=fast"], ["--rate=fast: must be a number", "kbit, mbit, gbit, tbit"]),
    "plan's rate of nothing": ("plan", ["--rate=0"], ["--rate=0: must be a number of 125 or more"]),
    "plan's latency": ("plan", ["--latency=-1ms"], ["--latency=-1ms: must be a number of 0 or more", "ms, us"]),
    "plan without hosts": ("plan", ["--hosts=0"], ["--hosts=0", "positive integer"]),
    "plan of half a parameter": ("plan", ["--parameters=1.5"], ["--parameters=1.5: must be a whole number"]),
    "plan of too many parameters": ("plan", ["--parameters=5G"], ["--parameters=5G: must be a whole number from 1 to"]),
    "plan without a step": ("plan", ["--parameters=1M"], ["--step_seconds is not set"]),
    "plan of both": ("plan", ["--parameters=1M", "--config=digits"], ["--parameters has no recipe"]),
    "plan without a network": ("plan", ["--network=nowhere"], ["--network=nowhere: cannot be read"]),
    "plan of an unknown field": ("plan", ["--config.mean.levls=3"], ["config.mean.levls", "mean.levels"]),
    "plan of no levels": (
        "plan",
        ["--config.mean.method=quantized", "--config.mean.levels=0"],
        ["mean.levels=0"],
    ),
    "unknown flag of plan": ("plan", ["--speed=3"], ["speed"]),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short text and a damaged dataset."""
    root = tmp_path_factory.mktemp("bad_input")
    (root / "play.txt").write_text("Who's the")
    (root / "mnist").mkdir()
    header = struct.pack(">IIII", 0x803, 2, 28, 28)
    (root / "mnist" / "train-images-idx3-ubyte").write_bytes(header + bytes(784))
    (root / "mnist" / "train-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, 2) + bytes(2))
    return root


def test_train_does_not_take_an_empty_workdir_for_none(run_door: Callable, tmp_path: Path):
    done = run_door("train", "--workdir=", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "error: --workdir=: must name a folder\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("case", CASES)
def test_door_refuses_bad_input_in_one_line(root: Path, run_door: Callable, case: str):
    door, arguments, words = CASES[case]
    folder = root / f"case{list(CASES).index(case)}"
    folder.mkdir()
    done = run_door(door, *arguments, *([] if door in ("plan", "predict") else ["--workdir=run"]), cwd=folder)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    for word in words:
        assert word in line
    assert not list(folder.iterdir())


def test_door_itself_refuses_bad_input_in_one_line(run_command: Callable, tmp_path: Path):
    """One case by the command as typed, as proof that the others stand for it."""
    done = run_command("train", "--config.optimizer.learning_rat=0.1", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: Unknown command line flag 'config.optimizer.learning_rat'. Did you mean: ")
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("door", ["train", "evaluate", "export"])
def test_door_explains_itself(run_door: Callable, tmp_path: Path, door: str):
    done = run_door(door, "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert f"python -m jaxtern.{door}" in done.stdout
    assert "--workdir" in done.stdout
    assert done.stderr == ""
    assert not list(tmp_path.iterdir())


def test_help_has_the_values_of_the_recipe_that_is_asked_for(run_door: Callable, tmp_path: Path):
    done = run_door("train", "--help", "--config", "imagenet_resnet50_lars_32k", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    words = " ".join(done.stdout.split())
    assert "here with the values of imagenet_resnet50_lars_32k: " in words
    assert ' optimizer.name=\'lars\': "sgd", "momentum", ' in words
    assert " run.batch_size=32768: examples of a step, over all workers." in words


@pytest.mark.parametrize(
    ("recipe", "answer"),
    [
        ("nothing", "error: --config=nothing: no such recipe is installed; "),
        ("./own.py", "error: config: run.batch_size=-1: "),
    ],
)
def test_help_refuses_a_recipe_that_does_not_fit_in_one_line(
    run_door: Callable, tmp_path: Path, recipe: str, answer: str
):
    (tmp_path / "own.py").write_text(OWN_RECIPE.format("run.batch_size = -1"))
    done = run_door("train", "--help", f"--config={recipe}", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(answer)
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_an_optional_field_is_taken_back_by_none(run_door: Callable, tmp_path: Path):
    (tmp_path / "own.py").write_text(OWN_RECIPE.format("mean.block_size = 64"))
    flags = ["--config=./own.py", "--config.mean.block_size=None", "--config.run.num_steps=1", "--workdir=run"]
    done = run_door("train", *flags, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["mean"]["block_size"] is None
