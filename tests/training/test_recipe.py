"""Recipes: the installed ones are sound, every field is explained, and a wrong value is named with its rule."""

import dataclasses
import importlib
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from jaxtern import configs
from jaxtern.training.recipe import Recipe
from jaxtern.training.rules import CHOICES, SCHEDULES

INSTALLED = sorted(path.stem for path in Path(configs.__file__).parent.glob("*.py") if path.stem != "__init__")
FIELDS = [field.name for field in dataclasses.fields(Recipe)]


def load(name: str) -> Recipe:
    return Recipe.from_dict(importlib.import_module(f"jaxtern.configs.{name}").get_config().to_dict())


def test_recipes_installed_are_known():
    assert {"default", "digits", "mnist"} <= set(INSTALLED)


@pytest.mark.parametrize("name", INSTALLED)
def test_recipe_goes_through_json(name: str):
    recipe = load(name)
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
    changed = dataclasses.replace(recipe, exclude=("conv1/.*", "fc2/bias"), num_devices=2, block_size=512)
    assert Recipe.from_dict(json.loads(json.dumps(changed.to_dict()))) == changed


@pytest.mark.parametrize("name", INSTALLED)
def test_recipe_has_a_float_variant_by_one_override(name: str):
    assert load(name).codec == "ternary"
    assert dataclasses.replace(load(name), codec="float").codec == "float"


@pytest.mark.parametrize("name", INSTALLED)
def test_recipe_keeps_the_type_of_every_field(name: str):
    config = importlib.import_module(f"jaxtern.configs.{name}").get_config()
    assert set(config) == set(FIELDS)
    for field in FIELDS:
        with pytest.raises(TypeError):
            config[field] = object()


def test_recipe_default_is_that_of_the_class():
    assert load("default") == Recipe()


def test_recipe_mnist_is_terngrads():
    """TernGrad's LeNet: momentum .01, polynomial, batch 64, 10,000 steps, no clipping, decay 5e-4 in the loss."""
    recipe, expected = load("mnist").to_dict(), {
        "dataset": "mnist", "model": "lenet", "optimizer": "momentum", "momentum": 0.9, "learning_rate": 0.01,
        "schedule": "polynomial", "power": 0.5, "batch_size": 64, "num_steps": 10_000, "clip_sigmas": 0.0,
        "weight_decay": 5e-4, "weight_decay_mode": "loss", "min_size": 1, "float_last_layer": False,
    }  # fmt: skip
    assert {name: recipe[name] for name in expected} == expected


def test_recipe_explains_every_field_and_every_choice():
    documented = re.findall(r"^      (\w+): ", Recipe.__doc__, re.MULTILINE)
    assert documented == FIELDS
    for choice in (*SCHEDULES, *itertools.chain(*CHOICES.values())):
        assert f'"{choice}"' in Recipe.__doc__


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_workers": 0}, "num_workers=0: must be 1 or more"),
        ({"num_workers": -4}, "num_workers=-4: must be 1 or more"),
        ({"num_devices": 0}, "num_devices=0: must be 1 or more"),
        ({"batch_size": 0}, "batch_size=0: must be 1 or more"),
        ({"batch_size": 62}, "batch_size=62: must divide among num_workers=4"),
        ({"num_steps": 0}, "num_steps=0: must be 1 or more"),
        ({"learning_rate": float("nan")}, "learning_rate=nan: must be"),
        ({"learning_rate": float("inf")}, "learning_rate=inf: must be"),
        ({"learning_rate": -0.1}, "learning_rate=-0.1: must be"),
        ({"weight_decay": -1e-4}, "weight_decay=-0.0001: must be"),
        ({"decay_epochs": 0.0}, "decay_epochs=0.0: must be"),
        ({"log_every": 0}, "log_every=0: must be 1 or more"),
        ({"checkpoint_every": 0}, "checkpoint_every=0: must be 1 or more"),
        ({"keep_checkpoints": 0}, "keep_checkpoints=0: must be 1 or more"),
        ({"evaluate_every": -1}, "evaluate_every=-1: must be 0 or more"),
        ({"seed": -1}, "seed=-1: must be 0 or more"),
        ({"seed": 2**32}, "seed=4294967296: must be below 2^32"),
        ({"codec": "zip"}, "codec='zip': must be one of ternary, float"),
        (
            {"optimizer": "lion"},
            "optimizer='lion': must be one of sgd, momentum, nesterov, adam, adamw, rmsprop, lars, lamb",
        ),
        (
            {"schedule": "linear"},
            "schedule='linear': must be one of fixed, exponential, piecewise, polynomial, cosine, or",
        ),
        ({"weight_decay_mode": "l1"}, "weight_decay_mode='l1': must be one of loss, decoupled"),
        ({"virtual_workers": "scanned"}, "virtual_workers='scanned': must be one of unrolled, vmapped"),
        ({"exclude": ("(",)}, "exclude='(': is no regular expression"),
        ({"learning_rat": 0.1}, "'learning_rat' is no field of a recipe; there is learning_rate"),
    ],
)
def test_recipe_with_a_wrong_value_is_refused(fields: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=r"=|field") as caught:
        Recipe.from_dict(fields)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)
