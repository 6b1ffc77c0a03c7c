"""The defaults of every field; the other recipes start from here."""

import dataclasses
from typing import Any

import ml_collections

from jaxtern.training.recipe.field_types import optional_kinds
from jaxtern.training.recipe.recipe import Recipe


def get_config() -> Any:  # a ConfigDict, whose sections type checkers do not see
    """All fields of a recipe at their defaults, each keeping its type."""
    recipe = Recipe()
    values = dataclasses.asdict(recipe)
    for section, fields in values.items():
        for name, kind in optional_kinds(type(getattr(recipe, section))).items():
            fields[name] = ml_collections.FieldReference(fields[name], field_type=kind)
    return ml_collections.ConfigDict(values)
