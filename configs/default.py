"""The default of every field, from which the other recipes start."""

import dataclasses
import typing
from typing import Any

import ml_collections

from jaxtern.training.recipe.recipe import Recipe


def get_config() -> Any:  # a ConfigDict, in which type checkers see no sections
    """All fields of a recipe with their defaults and types."""
    recipe = Recipe()
    values = dataclasses.asdict(recipe)
    for section, fields in values.items():
        for name, kind in typing.get_type_hints(type(getattr(recipe, section))).items():
            given, *others = typing.get_args(kind) or (kind,)
            if others == [type(None)]:
                fields[name] = ml_collections.FieldReference(fields[name], field_type=given)
    return ml_collections.ConfigDict(values)
