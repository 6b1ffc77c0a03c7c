"""Recipes: the installed ones are sound, every field is explained, and a wrong value is named with its rule."""

import dataclasses
import importlib
import inspect
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from jaxtern import configs
from jaxtern.training.recipe.optimizer import SCHEDULES
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.step.schedules import create_schedule

INSTALLED = sorted(path.stem for path in Path(configs.__file__).parent.glob("*.py") if path.stem != "__init__")
FIELDS = list(Recipe().by_name())
SECTIONS = [field.name for field in dataclasses.fields(Recipe)]


def load(name: str) -> Recipe:
    return Recipe.from_dict(importlib.import_module(f"jaxtern.configs.{name}").get_config().to_dict())


def test_recipes_installed_are_known():
    assert {"default", "digits", *SOURCES} <= set(INSTALLED)


@pytest.mark.parametrize("name", INSTALLED)
def test_recipe_goes_through_json(name: str):
    recipe = load(name)
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
    changed = recipe.replace(mean={"exclude": ("conv1/.*", "fc2/bias"), "block_size": 512}, run={"num_devices": 2})
    assert changed != recipe
    assert Recipe.from_dict(json.loads(json.dumps(changed.to_dict()))) == changed


@pytest.mark.parametrize("name", INSTALLED)
def test_recipe_has_a_float_variant_by_one_override(name: str):
    own = {"dgc": "dgc", "resnet": "quantized", "terngrad": "terngrad"}.get(name.rpartition("_")[2], "ternary")
    assert load(name).mean.method == own
    assert load(name).replace(mean={"method": "float"}).mean.method == "float"


@pytest.mark.parametrize("name", INSTALLED)
def test_recipe_keeps_the_type_of_every_field(name: str):
    config = importlib.import_module(f"jaxtern.configs.{name}").get_config()
    assert {f"{section}.{field}" for section in config for field in config[section]} == set(FIELDS)
    for field in FIELDS:
        with pytest.raises(TypeError):
            config.update_from_flattened_dict({field: object()})


def test_recipe_default_is_that_of_the_class():
    assert load("default") == Recipe()


MOMENTUM = {"optimizer": "momentum", "momentum": 0.9, "weight_decay_mode": "loss"}
STAIRS = {"schedule": "exponential", "decay_epochs": 20.0, "decay_factor": 0.1}
LARGE = {"float_last_layer": True}
AVERAGED = {"average_decay": 0.9999}  # evaluated
DGC = {
    "method": "dgc", "density": 0.001, "density_warmup": [0.25, 0.0625, 0.015625, 0.004, 0.001],
    "mean.momentum": 0.9, "clip_norm": None, "nesterov": False, "float_last_layer": False, "optimizer": "sgd",
}  # fmt: skip
SOURCES: dict[str, dict[str, Any]] = {
    # TernGrad's; cifar10 is shorter, and the rest of it by our own trials
    "mnist": {
        "data": "mnist", "model": "lenet", "learning_rate": 0.01, "schedule": "polynomial", "power": 0.5,
        "batch_size": 64, "num_steps": 10_000, "weight_decay": 5e-4, "min_size": 1, "float_last_layer": False,
        **MOMENTUM, **AVERAGED,
    },
    "cifar10": {
        "model": "cifarnet", "preprocessing": "cifar10", "optimizer": "adam", "learning_rate": 1e-3,
        "schedule": "cosine", "end_rate": 0.0, "batch_size": 128, "num_steps": 11_700, "num_workers": 2,
        "clip_sigmas": None, "block_size": None, "average_decay": 0.0, "weight_decay": 0.004,
        "weight_decay_mode": "loss", "decay": [], "min_size": 1, "float_last_layer": False,
    },
    "cifar10_terngrad": {
        "model": "cifarnet", "preprocessing": "cifar10", "optimizer": "adam", "learning_rate": 2e-4,
        "schedule": "fixed", "batch_size": 128, "num_steps": 300_000, "num_workers": 2, "method": "terngrad",
        "clip_sigmas": None, "block_size": None, "weight_decay": 0.004, "weight_decay_mode": "loss", "decay": [],
        "min_size": 1, "float_last_layer": False, **AVERAGED,
    },
    "imagenet_alexnet": {
        "model": "alexnet", "preprocessing": "alexnet", "num_workers": 8, "batch_size": 1024, "num_steps": 92_500,
        "learning_rate": 0.04, "weight_decay": 5e-4, "dropout_rate": 0.2, "min_size": 9217,
        **MOMENTUM, **STAIRS, **LARGE, **AVERAGED,
    },
    "imagenet_googlenet": {
        "model": "googlenet_terngrad", "preprocessing": "inception", "num_workers": 2, "batch_size": 128,
        "num_steps": 600_000, "learning_rate": 0.04, "schedule": "polynomial", "power": 0.5,
        "weight_decay": 4e-5, "dropout_rate": 0.2, "min_size": 1, **MOMENTUM, **LARGE, **AVERAGED,
    },
    "imagenet_vgg": {
        "model": "vgg_16", "preprocessing": "vgg", "batch_size": 256, "num_steps": 370_000, "learning_rate": 0.01,
        "weight_decay": 5e-4, "min_size": 9217, **MOMENTUM, **STAIRS, **LARGE, **AVERAGED,
    },
    # He et al. 2015
    "cifar10_resnet": {
        "model": "resnet_20", "preprocessing": "cifar10", "batch_size": 128, "num_steps": 64_000, "learning_rate": 0.1,
        "schedule": "piecewise", "decay_factor": 0.1, "weight_decay": 1e-4, **MOMENTUM,
    },
    # MoXing's
    "imagenet_resnet50": {
        "model": "resnet_50", "preprocessing": "inception", "batch_size": 1024, "num_steps": 112_603,
        "schedule": "5:0.001->0.4,30:0.4,60:0.04,80:0.004,90:0.0004", "weight_decay": 1e-4, **MOMENTUM, **LARGE,
    },
    "imagenet_resnet50_lars_32k": {
        "model": "resnet_50", "preprocessing": "inception", "precision": "float16", "optimizer": "lars",
        "momentum": 0.9, "trust_coefficient": 0.001, "weight_decay": 1e-4, "batch_size": 32_768, "accumulation": 8,
        "warmup_steps": 200, "warmup_rate": 2.0, "warmup_peak": 29.0, "learning_rate": 29.0, "schedule": "polynomial",
        "power": 2.0, "end_rate": 1e-4, "num_steps": 3600, **LARGE,
    },
    # Lin et al. 2018, as MoXing has it
    "imagenet_resnet50_dgc": {
        "model": "resnet_50", "num_workers": 4, "batch_size": 256, "num_steps": 450_410, "weight_decay": 1e-4,
        "schedule": "5:0.00025->0.1,30:0.1,60:0.01,80:0.001,90:0.0001", **DGC,
    },
    "cifar10_dgc": {"model": "resnet_20", "num_workers": 4, "batch_size": 128, "learning_rate": 0.1, **DGC},
    # Szegedy et al. 2015, and TernGrad's fine-tuning
    "imagenet_inception_v3": {
        "model": "inception_v3", "preprocessing": "inception", "image_size": 299, "label_smoothing": 0.1,
        "optimizer": "rmsprop", "learning_rate": 0.045, "schedule": "exponential", "decay_epochs": 2.0,
        "decay_factor": 0.94, "average_decay": 0.9999, "exclude": ["auxiliary/fc/.*"], **LARGE,
    },
    "flowers": {
        "model": "inception_v3", "preprocessing": "inception", "image_size": 299, "batch_size": 32,
        "train_only": ["fc/.*", "auxiliary/.*"], "init_exclude": ["fc/.*", "auxiliary/.*"],
        "init_from": "inception_v3.safetensors",
    },
    "flowers_resnet50": {
        "model": "resnet_50", "preprocessing": "vgg_f", "image_size": 224, "batch_size": 32, "train_only": ["fc/.*"],
        "init_exclude": ["fc/.*"], "init_from": "resnet50.safetensors",
    },
    # our own
    "photos": {
        "model": "cifarnet", "preprocessing": "vgg_f", "image_size": 32, "optimizer": "adam", "learning_rate": 1e-3,
        "num_workers": 2, "batch_size": 64, "num_steps": 500, "init_from": None,
    },
    # VGG-F's, 64 examples a worker
    "image_folder": {
        "model": "vgg_f", "preprocessing": "vgg_f", "optimizer": "adam", "learning_rate": 1e-5, "schedule": "fixed",
        "num_workers": 2, "batch_size": 128, "num_steps": 5 * 5760 // 128, "init_from": None,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_recipe_is_that_of_its_source(name: str, full_names: Callable):
    recipe, expected = load(name).by_name(), full_names(**SOURCES[name])
    assert {field: recipe[field] for field in expected} == expected


@pytest.mark.parametrize("name", INSTALLED)
def test_recipe_is_tried_in_ten_steps_by_one_override(name: str):
    recipe = load(name).replace(run={"num_steps": 10})
    rates = [float(create_schedule(recipe.optimizer, recipe.run, 50_000)(step)) for step in range(10)]
    assert max(rates) > 0


def test_recipe_of_the_cifar_resnet_has_its_stairs_at_steps_32000_and_48000():
    recipe = load("cifar10_resnet")
    schedule = create_schedule(recipe.optimizer, recipe.run, 50_000)
    rates = [float(schedule(step)) for step in (31_999, 32_000, 47_999, 48_000)]
    assert rates == pytest.approx([0.1, 0.01, 0.01, 0.001])


@pytest.mark.parametrize("name", sorted({*INSTALLED} - {"default"}))
def test_recipe_tells_its_result_its_command_and_its_hardware(name: str):
    text = importlib.import_module(f"jaxtern.configs.{name}").__doc__
    assert re.search(r"^(Measured: |RESULT)", text, re.MULTILINE)
    assert re.search(r"^Hardware: ", text, re.MULTILINE)
    assert "    python -m jaxtern.train" in text
    assert "--config.mean.method=float" in text


def test_recipe_explains_every_field_and_every_choice():
    for name in SECTIONS:
        section = type(getattr(Recipe(), name))
        documented = re.findall(r"^  (\w+): ", inspect.getdoc(section), re.MULTILINE)
        assert [f"{name}.{field}" for field in documented] == [
            field for field in FIELDS if field.startswith(f"{name}.")
        ]
        choices = [get_args(kind) for kind in get_type_hints(section).values() if get_origin(kind) is Literal]
        for choice in (*itertools.chain(*choices), *(SCHEDULES if name == "optimizer" else ())):
            assert f'"{choice}"' in section.__doc__


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_workers": 0}, "run.num_workers=0: must be 1 or more"),
        ({"num_workers": -4}, "run.num_workers=-4: must be 1 or more"),
        ({"num_devices": 0}, "run.num_devices=0: must be 1 or more"),
        ({"batch_size": 0}, "run.batch_size=0: must be 1 or more"),
        ({"batch_size": 62}, "run.batch_size=62: must be a multiple of run.num_workers=4"),
        ({"num_steps": 0}, "run.num_steps=0: must be 1 or more"),
        ({"learning_rate": float("nan")}, "optimizer.learning_rate=nan: must be"),
        ({"learning_rate": float("inf")}, "optimizer.learning_rate=inf: must be"),
        ({"learning_rate": -0.1}, "optimizer.learning_rate=-0.1: must be"),
        ({"weight_decay": -1e-4}, "optimizer.weight_decay=-0.0001: must be"),
        ({"decay_epochs": 0.0}, "optimizer.decay_epochs=0.0: must be"),
        ({"momentum": 1.5}, "optimizer.momentum=1.5: must be 0 or more, and below 1"),
        ({"warmup_peak": -1.0}, "optimizer.warmup_peak=-1.0: must be 0 or more"),
        ({"method": "quantized", "levels": 0}, "mean.levels=0: must be an integer from 1 to 32767"),
        ({"rounding": "x"}, "mean.rounding='x': must be one of stochastic, dither, nearest"),
        ({"clip_sigmas": -3.0}, "mean.clip_sigmas=-3.0: must be"),
        ({"block_size": 0}, "mean.block_size=0: must be"),
        ({"method": "top_k", "density": 2.0}, "mean.density=2.0: must be a number above 0 and at most 1"),
        ({"method": "low_rank", "rank": 0}, "mean.rank=0: must be an integer of 1 or more"),
        (
            {"density_warmup": (0.5,)},
            "mean.density_warmup=(0.5,): must be () of a method without density",
        ),
        (
            {"method": "top_k", "density_warmup": (0.5, 0.0)},
            "mean.density_warmup=(0.5, 0.0): 0.0 must be above 0 and at most 1",
        ),
        (
            {"method": "dgc", "optimizer": "momentum"},
            "optimizer.name='momentum': must be another, as sgd, where mean.method='dgc', which has the momentum",
        ),
        (
            {"method": "dgc", "optimizer": "muon"},
            "optimizer.name='muon': must be another, as sgd, where mean.method='dgc', which has the momentum",
        ),
        (
            {"method": "dgc", "local.steps": 5},
            "local.outer_momentum=0.9: must be 0 where mean.method='dgc', which has the momentum",
        ),
        ({"method": "dgc", "clip_norm": -1.0}, "mean.clip_norm=-1.0: must be"),
        ({"log_every": 0}, "run.log_every=0: must be 1 or more"),
        ({"checkpoint_every": 0}, "run.checkpoint_every=0: must be 1 or more"),
        ({"keep_checkpoints": 0}, "run.keep_checkpoints=0: must be 1 or more"),
        ({"evaluate_every": -1}, "run.evaluate_every=-1: must be 0 or more"),
        ({"seed": -1}, "run.seed=-1: must be 0 or more"),
        ({"seed": 2**32}, "run.seed=4294967296: must be below 2^32"),
        (
            {"method": "zip"},
            "mean.method='zip': must be one of float, ternary, terngrad, quantized, top_k, dgc, low_rank, sign",
        ),
        (
            {"optimizer": "lion"},
            "optimizer.name='lion': must be one of sgd, momentum, nesterov, adam, adamw, rmsprop, lars, lamb, muon",
        ),
        (
            {"schedule": "linear"},
            "optimizer.schedule='linear': must be one of fixed, exponential, piecewise, polynomial, cosine, or",
        ),
        ({"weight_decay_mode": "l1"}, "optimizer.weight_decay_mode='l1': must be one of loss, decoupled"),
        ({"virtual_workers": "scanned"}, "run.virtual_workers='scanned': must be one of unrolled, vmapped"),
        ({"exclude": ("(",)}, "mean.exclude=('(',): '(' is no regular expression"),
        ({"schedule": "piecewise"}, "optimizer.boundaries=(): must hold an epoch or more where schedule='piecewise'"),
        ({"boundaries": (2.0, 1.0)}, "optimizer.boundaries=(2.0, 1.0): must be epochs that rise from above 0"),
        (
            {"devices_per_worker": 3},
            "run.batch_size=64: each worker's part must be a multiple of mean.devices_per_worker=3",
        ),
        ({"synthetic_shape": (8, "8", 1)}, "data.synthetic_shape=(8, '8', 1): '8' must be a whole number"),
        ({"image_size": 2**15}, "data.image_size=32768: must be from 1 to 16,384, or None"),
        ({"delayed": True, "statistics": True}, "mean.statistics=True: must be False where mean.delayed=True"),
        (
            {"method": "sign", "error_feedback": True},
            "mean.error_feedback=True: must be False where mean.method='sign'",
        ),
    ],
)
def test_recipe_with_a_wrong_value_is_refused(recipe_of: Callable, fields: dict[str, Any], words: str):
    with pytest.raises(ValueError, match="=") as caught:
        recipe_of(**fields)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)


def test_a_section_may_name_no_fields():
    assert Recipe.from_dict({"mean": {}, "run": {}}) == Recipe()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"run": {"num_worker": 4}}, "'run.num_worker' is no field of a recipe; nearest: run.num_workers"),
        (
            {"model": {"num_workers": 4}},
            "'model.num_workers' is no field of a recipe; nearest: run.num_workers (--help",
        ),
        (
            {"optimizer": {"learning_rat": 0.1}},
            "'optimizer.learning_rat' is no field of a recipe; nearest: optimizer.l",
        ),
        ({"num_workers": 4}, "'num_workers' is no field of a recipe; nearest: run.num_workers (--help"),
        ({"name": "lenet"}, "'name' is no field of a recipe; nearest: data.name, model.name, optimizer.name (--help"),
        ({"network_latency": 1.0}, "'network_latency' is no field of a recipe"),
        ({"ternary_from": 5}, "'ternary_from' is no field of a recipe"),
        ({"run": 4}, "'run' is no field of a recipe"),
        ({"colour": {}}, "'colour' is no field of a recipe (--help names all)"),
        ({"run": {"num_workers": {"x": 1}}}, "run.num_workers={'x': 1}: must be a whole number"),
    ],
)
def test_recipe_names_the_fields_that_are_nearest_to_one_that_is_none(values: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=r"field|must") as caught:
        Recipe.from_dict(values)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)
