"""Parses commands of doors: reads JSON, a list of [door, argument, ...], and writes what is wrong with each.

Each is `python -m jaxtern.DOOR` in a process forked from this one, up to what the door would do: flags and their own
rules, positional arguments, and the recipe with its rules, unless it is a file of the user's own.
"""

import contextlib
import importlib
import io
import json
import os
import runpy
import sys
import warnings
from collections.abc import Callable, Sequence

from absl import flags

from jaxtern import command_line

IMPORTED = "artifact.predictor", "preparation.pipeline", "planning.forecast", "training.run.run"


def main() -> None:
    for name in IMPORTED:  # once, for all children; no door, which would define its flags here
        importlib.import_module(f"jaxtern.{name}")
    command_line.run = run_without_main
    print(json.dumps([parse(*command) for command in json.load(sys.stdin)]))


def run_without_main(
    main: Callable, positionals: Sequence[str] = (), more_help: Callable[[], str] = lambda: "", run=command_line.run
) -> None:
    del main
    run(require_recipe, positionals, more_help)


def require_recipe(*_: str) -> int:
    if "config" in flags.FLAGS and not flags.FLAGS["config"].value.endswith(".py"):
        importlib.import_module("jaxtern.recipe_flags").read_recipe()
    return 0


def parse(door: str, *arguments: str) -> str:
    """What the door says against these arguments; "" if nothing."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of JAX, whose threads no child needs
        child = os.fork()
    if child:
        os.close(writer)
        with os.fdopen(reader) as said:
            answer = said.read()
        os.waitpid(child, 0)
        return answer
    sys.argv = [f"jaxtern/{door}.py", *arguments]
    errors, status = io.StringIO(), 1
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            runpy.run_module(f"jaxtern.{door}", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code
    except BaseException as error:  # noqa: BLE001 - told to the parent
        errors.write(repr(error))
    if status:
        os.write(writer, (errors.getvalue() or f"status {status}").encode())
    os._exit(0)


if __name__ == "__main__":
    main()
