"""python -m jaxtern [--version]: lists the commands."""

import ast
import sys
from pathlib import Path

from jaxtern import __version__
from jaxtern.command_line import USAGE_ERROR

DOORS = ("train", "evaluate", "export", "predict", "prepare", "plan", "launch")


def main(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        print(f"jaxtern {__version__}")
    elif not arguments or arguments[0] in ("--help", "-h"):
        print(f"jaxtern {__version__}; each tells more with --help:\n", *map(summarize, DOORS), sep="\n")
    else:
        doors = ", ".join(DOORS)
        print(f"error: {arguments[0]!r}: is no command; run python -m jaxtern.COMMAND, as {doors}", file=sys.stderr)
        return USAGE_ERROR
    return 0


def summarize(door: str) -> str:
    """The first line of a command's help, parsed from its file, as importing it would take seconds."""
    documented = ast.get_docstring(ast.parse(Path(__file__).with_name(f"{door}.py").read_text()))
    usage, _, purpose = (documented or "").partition("\n")[0].rpartition(": ")
    return f"{usage}\n    {purpose}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
