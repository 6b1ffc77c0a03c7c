"""The flags of the doors that take a recipe: --config, and --config.SECTION.FIELD for each of its fields."""

import ast
import contextlib
import inspect
import re
import runpy
import shutil
import textwrap
import typing
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from jaxtern import configs
from jaxtern.command_line import UsageError
from jaxtern.training.recipe.field_types import Section
from jaxtern.training.recipe.recipe import Recipe

_WIDTH = max(60, min(120, shutil.get_terminal_size((120, 0)).columns))  # of the help
_FOLDER = Path(configs.__file__).parent
_DEFAULTS = Recipe()
CONFIG = flags.DEFINE_string("config", "digits", "path of a recipe, or the name of an installed one")
for _name, _value in _DEFAULTS.by_name().items():
    _define = flags.DEFINE_bool if isinstance(_value, bool) else flags.DEFINE_string
    _define(f"config.{_name}", None, "a field of the recipe")


def read_recipe() -> Recipe:
    """Reads the recipe of --config, overridden by the flags of its fields; raises UsageError for an invalid one."""
    path = recipe_path()
    try:
        config = runpy.run_path(str(path))["get_config"]()
        if not isinstance(config, ConfigDict):
            raise TypeError("get_config() must return a ConfigDict of sections")
        values = config.lock().to_dict()  # the lock refuses unfilled placeholders
        for section, fields in _read_fields().items():
            values[section] = values.get(section, {}) | fields
    except Exception as error:  # noqa: BLE001 - a recipe is code, which may raise anything
        raise UsageError(f"--config={path}: is no recipe: {type(error).__name__}: {error}") from None
    try:
        return Recipe.from_dict(values)
    except ValueError as error:
        raise UsageError(f"config: {error}") from None


def recipe_path() -> Path:
    """The file of the recipe of --config; raises UsageError if there is none."""
    name = CONFIG.value
    is_path = name.endswith(".py") or "/" in name
    path = Path(name) if is_path else _FOLDER / f"{name}.py"
    with contextlib.suppress(OSError):  # the name is too long
        if path.is_file():
            return path
    why = "no such file" if is_path else f"no such recipe is installed; available: {', '.join(_installed_recipes())}"
    raise UsageError(f"--config={name}: {why}")


def _read_fields() -> dict[str, dict[str, Any]]:
    """The values of the fields that have flags, by section."""
    sections: dict[str, dict[str, Any]] = {}
    for name in _DEFAULTS.by_name():
        given = flags.FLAGS[f"config.{name}"]
        if given.value is not None:
            section, field = name.split(".")
            kind = typing.get_type_hints(type(getattr(_DEFAULTS, section)))[field]
            sections.setdefault(section, {})[field] = _parse(kind, given.value)
    return sections


def _parse(kind: Any, text: str | bool) -> Any:
    """Parses a flag's value by its annotation; what cannot be parsed stays text, which the recipe then refuses."""
    options, is_tuple = typing.get_args(kind) or (kind,), typing.get_origin(kind) is tuple
    if text == "None" and type(None) in options:
        return None
    if isinstance(text, bool) or (not is_tuple and (str in options or isinstance(options[0], str))):
        return text
    try:
        value = float(text) if float in options and not is_tuple else ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = text
    return value if isinstance(value, tuple | list) or not is_tuple else (value,)


def describe_recipe() -> str:
    """Describes every field by section, with its value in the recipe of the flags."""
    recipe = read_recipe()
    installed = textwrap.fill(f"--config=RECIPE, a file or one of {', '.join(_installed_recipes())}", _WIDTH)
    described = [_describe_section(name, getattr(recipe, name)) for name in recipe.to_dict()]
    head = f"--config.SECTION.FIELD=VALUE, here with the values of {recipe_path().stem}:"
    return "\n".join(["\n", installed, head, *described])


def _describe_section(name: str, section: Section) -> str:
    """Describes a section and its fields as on the command line."""
    subject, *entries = re.split(r"\n  (?=\w)", re.sub(r"\n {4}", " ", inspect.getdoc(section) or ""))
    described = f"\n  {name}: {subject.partition('.')[0]}"
    for field, _, meaning in (entry.partition(": ") for entry in entries):
        line = f"    {name}.{field}={getattr(section, field)!r}: {meaning}"
        described += "\n" + textwrap.fill(line, _WIDTH, subsequent_indent=" " * 8, break_on_hyphens=False)
    return described


def _installed_recipes() -> list[str]:
    """Names of the installed recipes, without `default`, the base of the others."""
    return sorted(path.stem for path in _FOLDER.glob("*.py") if path.stem not in ("__init__", "default"))
