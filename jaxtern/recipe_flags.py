"""The flag --config of the doors that take a recipe."""

import inspect
import os
import re
import runpy
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import flags
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict, config_flags

from jaxtern import command_line, configs
from jaxtern.command_line import UsageError
from jaxtern.training.recipe.field_types import Section
from jaxtern.training.recipe.recipe import Recipe, require_field

DEFAULT_RECIPE = "digits"
_FOLDER = Path(configs.__file__).parent


def run(main: Callable[..., int]) -> None:
    """As `command_line.run`, for a door with --config."""
    command_line.run(main, resolve=_resolve, more_help=_describe_config)


class _OrNone(flags.ArgumentParser):
    """Takes None too, which ml_collections lets a recipe set, but not the command line."""

    def __init__(self, parser: flags.ArgumentParser):
        self._parser = parser

    def parse(self, argument: Any) -> Any:
        return None if argument == "None" else self._parser.parse(argument)

    def flag_type(self) -> str:
        return self._parser.flag_type()


def define_config() -> flags.FlagHolder:
    """The flag --config and its --config.SECTION.FIELD overrides."""
    for kind, parser in ((int, flags.IntegerParser()), (float, flags.FloatParser()), (str, flags.ArgumentParser())):
        config_flags.register_flag_parser_for_type(kind, _OrNone(parser))
    return config_flags.DEFINE_config_file("config", None, "path of a recipe, or the bare name of an installed one")


def to_recipe(config: ConfigDict) -> Recipe:
    """The recipe that the flag's value is, overrides applied.

    Raises:
      UsageError: for a field that does not exist or a value out of its range.
    """
    try:
        return Recipe.from_dict(config.to_dict())
    except ValueError as error:
        raise UsageError(f"config: {error}") from None


def recipe_path() -> Path:
    """The file of the recipe of --config."""
    return Path(config_flags.get_config_filename(flags.FLAGS["config"]))


def _describe_config() -> str:
    """Every field by section, with the value that the recipe of --config gives it."""
    path = _given_path(_resolve(sys.argv[1:]))
    recipe = to_recipe(_load_config(path))
    installed = textwrap.fill(f"--config=RECIPE, a file or one of {', '.join(_installed_recipes())}", 120)
    described = [_describe_section(name, getattr(recipe, name)) for name in recipe.to_dict()]
    head = f"--config.SECTION.FIELD=VALUE, here with the values of {Path(path).stem}:"
    return "\n".join(["\n", installed, head, *described])


def _describe_section(name: str, section: Section) -> str:
    """What a section is for, and its fields as the command line has them."""
    subject, *entries = re.split(r"\n  (?=\w)", re.sub(r"\n {4}", " ", inspect.getdoc(section) or ""))
    described = f"\n  {name}: {subject.partition('.')[0]}"
    for field, _, meaning in (entry.partition(": ") for entry in entries):
        line = f"    {name}.{field}={getattr(section, field)!r}: {meaning}"
        described += "\n" + textwrap.fill(line, 120, subsequent_indent=" " * 8, break_on_hyphens=False)
    return described


def _resolve(arguments: list[str]) -> list[str]:
    """With --config=PATH in the first place, or that of the default recipe.

    ml_collections answers an unknown field with a traceback, so fields are looked at before it parses any.
    """
    resolved = [_resolve_config(argument) for argument in _join_config(arguments)]
    if not any(argument.startswith("--config=") for argument in resolved):
        resolved.insert(0, f"--config={_recipe_path(DEFAULT_RECIPE)}")
    path = _given_path(resolved)
    fields = [".".join(map(str, place)) for place in flatten_dict(_load_config(path).to_dict())]
    for name in (argument.lstrip("-").partition("=")[0] for argument in resolved):
        if name.startswith("config.") and name.removeprefix("config.") not in fields:
            raise UsageError(f"--{name}: is not set by --config={path}, so that it cannot be set otherwise")
    return resolved


def _given_path(resolved: list[str]) -> str:
    """Of the recipe, the last one where several are given."""
    return [argument.removeprefix("--config=") for argument in resolved if argument.startswith("--config=")][-1]


def _join_config(arguments: list[str]) -> list[str]:
    """With --config=RECIPE for --config RECIPE."""
    rest = iter(arguments)
    return [f"--config={next(rest, '')}" if each in ("--config", "-config") else each for each in rest]


def _load_config(path: str) -> ConfigDict:
    """What a recipe sets; it is run here because ml_collections answers its errors with a traceback, too.

    Raises:
      UsageError: for a file that is no recipe.
    """
    try:
        config = runpy.run_path(path)["get_config"]()
        if isinstance(config, ConfigDict):
            config.lock()  # as ml_collections does, which looks for required values that are missing
    except Exception as error:  # noqa: BLE001 - a recipe is code, which may raise anything
        raise UsageError(f"--config={path}: is no recipe: {type(error).__name__}: {error}") from None
    if not isinstance(config, ConfigDict) or not all(isinstance(name, str) for name in config):
        raise UsageError(f"--config={path}: is no recipe: get_config() must return a ConfigDict of sections")
    return config


def _resolve_config(argument: str) -> str:
    """--config=NAME to --config=PATH; refuses a recipe or a field that does not exist."""
    name, equals, value = argument.partition("=")
    name = name.lstrip("-")
    if name == "config" and equals:
        return f"--config={_recipe_path(value)}"
    if name.startswith("config."):
        try:
            require_field(name.removeprefix("config."))
        except ValueError as error:
            raise UsageError(f"--{name}: {error}") from None
    return argument


def _recipe_path(name: str) -> Path:
    """The file of a recipe given by path or by bare name; refuses what is none."""
    if Path(name).suffix == ".py" or "/" in name:
        if not os.path.isfile(name):  # noqa: PTH113 - Path.is_file raises for a name that is too long
            raise UsageError(f"--config={name}: no such file")
        return Path(name)
    path = _FOLDER / f"{name}.py"
    if not path.is_file():
        raise UsageError(f"--config={name}: no such recipe is installed; available: {', '.join(_installed_recipes())}")
    return path


def _installed_recipes() -> list[str]:
    """All but `default`, from which the others start."""
    return sorted(path.stem for path in _FOLDER.glob("*.py") if path.stem not in ("__init__", "default"))
