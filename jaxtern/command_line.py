"""What the doors share: flags in, one line out for a mistake, an exit status."""

import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import absl.logging
from absl import flags
from ml_collections import config_flags

from jaxtern import configs
from jaxtern.training.recipe import Recipe, require_field

USAGE_ERROR = 2
DEFAULT_RECIPE = "digits"


class UsageError(Exception):
    """What was asked for cannot be done; the message is one line for the user."""


def run(main: Callable[..., int], positionals: Sequence[str] = ()) -> None:
    """Parses the flags, runs `main`, exits with its status; a UsageError is printed as one line, with status 2.

    Args:
      main: takes as many strings as there are positionals.
      positionals: names of the arguments that are no flags, all needed, as ("SOURCE", "OUT").
    """
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING, force=True)
    logging.getLogger("jaxtern").setLevel(logging.INFO)
    # orbax tells of every option, and in a traceback of a second array that it could not read
    absl.logging.set_verbosity(absl.logging.ERROR)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    try:
        status = main(*_parse(sys.argv, positionals))
    except UsageError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        status = USAGE_ERROR
    sys.exit(status)


def define_config() -> flags.FlagHolder:
    """The flag --config and its --config.field overrides."""
    return config_flags.DEFINE_config_file("config", None, "path of a recipe, or the bare name of an installed one")


def recipe_from_config(config: flags.FlagHolder) -> Recipe:
    """The recipe of the flag, overrides applied.

    Raises:
      UsageError: for a field that does not exist or a value out of its range.
    """
    try:
        return Recipe.from_dict(config.value.to_dict())
    except ValueError as error:
        raise UsageError(f"config: {error}") from None


def recipe_name() -> str:
    """The bare name of the recipe of --config."""
    return Path(config_flags.get_config_filename(flags.FLAGS["config"])).stem


def _parse(argv: list[str], positionals: Sequence[str]) -> list[str]:
    """Parses the flags; what is left, one string a positional."""
    if any(argument in ("--help", "-help", "-h") for argument in argv):
        print(sys.modules["__main__"].__doc__, flags.FLAGS.main_module_help(), sep="\n")
        if "config" in flags.FLAGS:
            print(f"--config=RECIPE (installed: {', '.join(_installed_recipes())}) and --config.FIELD=VALUE:")
            print(Recipe.__doc__)
        sys.exit(0)
    # ml_collections answers an unknown field with a traceback, so fields are looked at first.
    resolved = [argv[0], *map(_resolve_config, argv[1:])]
    if "config" in flags.FLAGS and not any(argument.startswith("--config=") for argument in resolved):
        resolved.insert(1, f"--config={_recipe_path(DEFAULT_RECIPE)}")
    flags.FLAGS.set_gnu_getopt(bool(positionals))  # flags may follow what is none
    try:
        _, *rest = flags.FLAGS(resolved)
    except flags.Error as error:
        raise UsageError(str(error)) from None
    if len(rest) < len(positionals):
        raise UsageError(f"{positionals[len(rest)]} is missing: give {' '.join(positionals)} (--help tells more)")
    if len(rest) > len(positionals):
        wanted = f"after {' '.join(positionals)} come flags alone, which" if positionals else "flags"
        example = "--workers=4" if positionals else "--config.batch_size=64"
        raise UsageError(f"argument {rest[len(positionals)]!r}: {wanted} start with --, as {example}")
    return rest


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
    """The file of a recipe given by path or by bare name.

    Raises:
      UsageError: if there is none.
    """
    if Path(name).suffix == ".py" or "/" in name:
        if not Path(name).is_file():
            raise UsageError(f"--config={name}: no such file")
        return Path(name)
    path = _recipe_folder() / f"{name}.py"
    if not path.is_file():
        raise UsageError(f"--config={name}: no such recipe is installed; there is {', '.join(_installed_recipes())}")
    return path


def _installed_recipes() -> list[str]:
    return sorted(path.stem for path in _recipe_folder().glob("*.py") if path.stem != "__init__")


def _recipe_folder() -> Path:
    return Path(configs.__file__).parent
