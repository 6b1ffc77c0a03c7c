"""`--config.run.dry_run=True`: every installed recipe says what it would do, takes three steps and leaves nothing."""

import importlib
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest

from jaxtern import configs
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.run import dry_run
from jaxtern.training.run.dry_run import describe, find_rates, prepare_dry_run, rehearse
from jaxtern.training.run.loop import NonFiniteError
from jaxtern.training.step import mesh

INSTALLED = sorted(path.stem for path in Path(configs.__file__).parent.glob("*.py") if path.stem != "__init__")
LEAST_SIZE = 75  # of images that every network takes
LARGE = [name for name in INSTALLED if name.startswith(("image", "flowers"))]  # take a minute
COMPILED = "imagenet_alexnet"  # others take minutes; tests/models has their gradients
PARAMETERS = {
    **dict.fromkeys(("default", "digits"), 131_080), "mnist": 1_256_080, "cifar10": 1_068_298,
    "cifar10_terngrad": 1_068_298, **dict.fromkeys(("cifar10_resnet", "cifar10_dgc"), 269_722),
    "imagenet_alexnet": 60_965_224, "imagenet_googlenet": 6_617_624, "imagenet_vgg": 138_357_544,
    **dict.fromkeys(("imagenet_resnet50", "imagenet_resnet50_dgc", "imagenet_resnet50_lars_32k"), 25_557_032),
    "imagenet_inception_v3": 27_161_264, "flowers": 24_357_354, "flowers_resnet50": 23_518_277,
    "image_folder": 136_359_747, "photos": 1_756_426, "charlm": 824_385,
}  # fmt: skip


def load(name: str, **sections: dict[str, Any]) -> Recipe:
    config = importlib.import_module(f"jaxtern.configs.{name}").get_config()
    return Recipe.from_dict(config.to_dict()).replace(run={"dry_run": True}).replace(**sections)


@pytest.mark.few("default")
@pytest.mark.parametrize("name", sorted(set(INSTALLED) - set(LARGE)))
def test_dry_run_passes_for_every_recipe_of_a_small_network(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    recipe = load(name)
    run = prepare_dry_run(recipe)
    assert run.wire.num_workers == recipe.run.num_workers
    assert recipe.data.image_size is None or run.inputs.input_shape[:2] == (recipe.data.image_size,) * 2
    said = list(rehearse(run))
    steps = [line for line in said if line.startswith("step ")]
    assert [line.partition(":")[0] for line in steps] == ["step 1", "step 2", "step 3"]
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+),", "\n".join(steps))]
    assert len(losses) == 3
    assert all(map(math.isfinite, losses))
    assert not list(tmp_path.iterdir())


@pytest.mark.few("cifar10", "imagenet_resnet50")
@pytest.mark.parametrize("name", INSTALLED)
def test_dry_run_describes_every_recipe_at_full_size(name: str):
    recipe = load(name)
    said = describe(prepare_dry_run(recipe))
    assert said.startswith(f"{recipe.model.name}: {PARAMETERS[name]:,} parameters, ")
    assert f"\n{recipe.run.num_workers} workers, gradients by {recipe.mean.method}\n" in said
    bits, of_float = map(float, re.search(r"\nsent ([\d.]+) bits .* all-reduce ([\d.]+): ", said).groups())
    assert of_float == pytest.approx(
        64 * (recipe.run.num_workers - 1) / recipe.run.num_workers
    )  # of a ring, there and back
    assert (0 if recipe.mean.method == "dgc" else 1.5) < bits < of_float / 4
    assert f"\n{recipe.run.num_steps:,} steps of {recipe.run.batch_size:,} examples, " in said
    assert 0 < float(re.search(r", ([\d.e-]+) highest, ", said)[1]) <= max(recipe.optimizer.learning_rate, 0.4)


class Lowered(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(LARGE) - {COMPILED}))
def test_dry_run_lowers_the_step_of_every_large_network(name: str, monkeypatch: pytest.MonkeyPatch):
    """Of the recipes of ResNet-50 one lowers it; ResNet-20 stands for it in the others, as that is quicker."""
    monkeypatch.setattr(jax.stages.Lowered, "compile", mock.Mock(side_effect=Lowered))
    recipe = load(name)
    if recipe.model.name == "resnet_50" and name != "imagenet_resnet50":
        recipe = recipe.replace(model={"name": "resnet_20"})
    run = prepare_dry_run(recipe)
    assert recipe.data.image_size is None or run.inputs.input_shape[:2] == (recipe.data.image_size,) * 2
    with pytest.raises(Lowered):
        list(rehearse(run))


@pytest.mark.slow
def test_dry_run_passes_for_the_recipe_of_a_large_network(tmp_path: Path, run_command: Callable):
    done = run_command("train", f"--config={COMPILED}", "--config.run.dry_run=True", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\ndry run passed\n")
    assert not list(tmp_path.iterdir())


def test_dry_run_by_the_command_leaves_nothing(run_command: Callable, tmp_path: Path):
    done = run_command("train", "--config.run.dry_run=True", "--config.model.init_from=nowhere", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("lenet: 131,080 parameters, 131,080 trained and 0 frozen\n")
    for words in (
        "digits: 1,437 examples, 10 classes, which are there; the network is given 8x8x1\n",
        "4 workers, by gather: ",
        "1,000 steps of 64 examples, 16 a worker: 44.5 epochs\nlearning rate 0.001 first, 0.001 highest, ",
        "2 of 4 workers on 1 device, 4 examples a step; model.init_from='nowhere' is not read, weights are fresh\n",
        "memory: weights 524kB, optimiser 1.05MB, ",
        "gradients 524kB a worker\nthe compiled step takes besides: ",
    ):
        assert words in done.stdout
    assert done.stdout.endswith(" s\ndry run passed\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_dry_run_by_the_command_fails_where_numbers_are_not_finite(run_door: Callable, tmp_path: Path):
    fields = ("--config.optimizer.learning_rate=1e30", "--config.optimizer.name=sgd", "--config.run.dry_run=True")
    done = run_door("train", *fields, f"--workdir={tmp_path / 'run'}")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: step ")
    assert "passed" not in done.stdout
    assert not list(tmp_path.iterdir())


def test_dry_run_names_the_step_and_the_tensors_that_are_not_finite():
    run = prepare_dry_run(load("digits", optimizer={"learning_rate": 1e30, "name": "sgd"}))
    with pytest.raises(NonFiniteError, match=r"step 2: loss .*fc2/kernel"):
        list(rehearse(run))


@pytest.mark.slow
def test_dry_run_fails_where_gradients_overflow_in_every_step(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dry_run, "_LOSS_SCALE", 2.0**100)
    run = prepare_dry_run(load("digits", model={"precision": "float16", "loss_scale": 2.0**100}))
    with pytest.raises(NonFiniteError, match="gradients overflow in every step, from a loss scale of 1"):
        list(rehearse(run))


def test_dry_run_tells_trained_from_frozen():
    run = prepare_dry_run(load("flowers", data={"image_size": LEAST_SIZE}))
    assert "21,998,058 parameters, 212,490 trained and 21,785,568 frozen\n" in describe(run)
    assert all(tensor.path.startswith(("fc/", "auxiliary/")) for tensor in run.wire.tensors)


def test_dry_run_counts_epochs_of_data_that_are_not_there():
    said = describe(prepare_dry_run(load("mnist")))
    assert "mnist: 60,000 examples, 10 classes, mnist as published; the network is given 28x28x1\n" in said
    assert "10,000 steps of 64 examples, 16 a worker: 10.7 epochs\n" in said
    said = describe(prepare_dry_run(load("imagenet_resnet50_lars_32k", data={"image_size": 32})))
    assert "3,600 steps of 32,768 examples, 512 a worker, in 8 parts: 92.1 epochs\n" in said


def test_dry_run_counts_no_epochs_of_what_nobody_knows():
    said = describe(prepare_dry_run(load("charlm")))
    assert "./input.txt: is not there, and taken to have 65 classes; the network is given 128\n" in said
    assert "2,500 steps of 64 examples, 16 a worker\n" in said


def test_dry_run_reads_data_that_are_there(tmp_path: Path):
    text = tmp_path / "play.txt"
    text.write_text("abcdefg" * 100)
    run = prepare_dry_run(load("charlm", data={"name": str(text), "sequence_length": 16}))
    assert "39 examples, 7 classes, which are there; the network is given 16\n" in describe(run)


def test_dry_run_says_where_weight_changes_are_exchanged():
    said = describe(prepare_dry_run(load("digits", local={"steps": 20})))
    assert "\n4 workers, weight changes every 20 steps by ternary\n" in said


def test_dry_run_does_not_heed_fragments_without_local_steps():
    said = describe(prepare_dry_run(load("digits", local={"fragments": 3})))
    assert said == describe(prepare_dry_run(load("digits")))


def test_dry_run_takes_fewer_devices_than_batch_norm_over_all_workers_needs(monkeypatch: pytest.MonkeyPatch):
    """Where every worker has a device, they may be unrolled; here several share one."""
    recipe = load("digits", model={"batch_norm": "sync"}, run={"num_devices": 4})
    small = dry_run.shrink(recipe, prepare_dry_run(recipe).facts)
    monkeypatch.setattr(mesh, "devices_by_process", lambda: np.array(jax.devices()[:1])[None])
    assert mesh.create_mesh(small).shape == {"data": 1, "fast": 1}


def test_dry_run_knows_the_highest_rate():
    recipe = load("imagenet_resnet50_lars_32k")
    first, highest, last = find_rates(recipe, 1_281_167)
    assert first == 2.0
    assert highest == pytest.approx(2 + 27 * 199 / 200, rel=1e-5)
    assert last == pytest.approx(1e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "sections", "words"),
    [
        ("digits", {"model": {"name": "lenett"}}, "model.name='lenett': must be one of"),
        ("digits", {"mean": {"exclude": ("conv9/.*",)}}, "exclude='conv9/.*': must match"),
        ("flowers", {"model": {"init_exclude": ("head/.*",)}}, "init_exclude='head/.*': must match"),
        ("cifar10", {"data": {"image_size": 33}}, "image_size=33: images of 32 by 32 pixels"),
        ("mnist", {"data": {"dir": "nowhere"}}, "data_dir='nowhere': no such folder"),
        ("digits", {"data": {"preprocessing": "vgg99"}}, "preprocessing='vgg99': must be one of"),
        ("digits", {"mean": {"latency": -1.0}}, "mean.latency=-1.0"),
        (
            "imagenet_googlenet",
            {"data": {"feed": "resident"}},
            "feed='resident': preprocessing='inception' crops images",
        ),
        ("imagenet_googlenet", {"run": {"steps_per_call": 10}}, "steps_per_call=10: must be 1 where images are"),
        ("digits", {"data": {"feed": "streaming"}, "run": {"steps_per_call": 5}}, "steps_per_call=5: must be 1"),
        ("charlm", {"data": {"feed": "streaming"}}, "feed='streaming': preprocessing='text' takes text, which is"),
    ],
)
def test_dry_run_refuses_what_does_not_fit(name: str, sections: dict[str, Any], words: str):
    with pytest.raises((ValueError, OSError)) as caught:
        prepare_dry_run(load(name, **sections))
    assert words in str(caught.value)
