"""What the doors share: flags in, one line out for a mistake, an exit status."""

import dataclasses
import importlib.util
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from absl import flags
from ml_collections import config_flags

from jaxtern.training.recipe import Recipe

USAGE_ERROR = 2


class UsageError(Exception):
    """What was asked for cannot be done; the message is one line for the user."""


def run(main: Callable[[], int]) -> None:
    """Parses the flags, runs `main`, exits with its status; a UsageError is printed as one line, with status 2."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    logging.getLogger("jaxtern").setLevel(logging.INFO)
    try:
        _parse(sys.argv)
        status = main()
    except UsageError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        status = USAGE_ERROR
    sys.exit(status)


def define_config(default: str) -> flags.FlagHolder:
    """The flag --config and its --config.field overrides."""
    return config_flags.DEFINE_config_file(
        "config", str(_recipe_path(default)), "path of a recipe, or the bare name of an installed one"
    )


def recipe_from_config(config: flags.FlagHolder) -> Recipe:
    """The recipe of the flag, overrides applied.

    Raises:
      UsageError: for a field that does not exist or a value out of its range.
    """
    try:
        return Recipe.from_dict(config.value.to_dict())
    except ValueError as error:
        raise UsageError(f"config: {error}") from None


def _parse(argv: list[str]) -> None:
    resolved = [argv[0], *map(_resolve_config, argv[1:])]
    try:
        rest = flags.FLAGS(resolved)
    except flags.Error as error:
        if any(argument in ("--help", "-h", "-help") for argument in argv):
            print(flags.FLAGS.main_module_help())
            sys.exit(0)
        raise UsageError(str(error)) from None
    if len(rest) > 1:
        raise UsageError(f"argument {rest[1]!r}: flags start with --, as --config.batch_size=64")


def _resolve_config(argument: str) -> str:
    """--config=NAME to --config=PATH; refuses a recipe or a field that does not exist."""
    name, equals, value = argument.partition("=")
    name = name.lstrip("-")
    if name == "config" and equals:
        return f"--config={_recipe_path(value)}"
    fields = [field.name for field in dataclasses.fields(Recipe)]
    field = name.removeprefix("config.")
    if name.startswith("config.") and field not in fields:
        raise UsageError(f"--{name}: {field!r} is no field of a recipe; they are {', '.join(sorted(fields))}")
    return argument


def _recipe_path(name: str) -> Path:
    """The file of a recipe given by path or by bare name.

    Raises:
      UsageError: if there is none.
    """
    if Path(name).suffix == ".py" or "/" in name:
        if not Path(name).is_file():
            raise UsageError(f"--config={name}: no such file")
        return Path(name)
    installed = importlib.util.find_spec("jaxtern.configs")
    folder = Path(next(iter(installed.submodule_search_locations)))
    path = folder / f"{name}.py"
    names = sorted(p.stem for p in folder.glob("*.py") if p.stem != "__init__")
    if not path.is_file():
        raise UsageError(f"--config={name}: no installed recipe of that name; they are {', '.join(names)}")
    return path
