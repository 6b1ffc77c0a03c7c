"""What the commands here share: --help, numbers as arguments, lines as they come, tables, files of figures."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

MAX_ELEMENTS = 2**30


def create_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser whose --help is the docstring of the command that runs."""
    spec = sys.modules["__main__"].__spec__
    program = f"python -m {spec.name.removesuffix('.__main__')}" if spec else None
    layout = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(program, description=description, formatter_class=layout)


def parse_elements(text: str) -> int:
    """An integer, or a power as Python writes it."""
    base, _, exponent = text.partition("**")
    is_power = base.isdecimal() and len(base) < 11 and exponent.isdecimal() and len(exponent) < 3
    elements = int(base) ** int(exponent) if is_power else int(text) if text.isdecimal() else 0
    if not 1 <= elements <= MAX_ELEMENTS:
        raise argparse.ArgumentTypeError(f"{text!r}: must be an integer, or a power such as 2**20, from 1 to 2**30")
    return elements


def at_least(least: int) -> Callable[[str], int]:
    """The type of an argument that is an integer of so much or more."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r}: must be an integer, {least} or more")
        return int(text)

    return parse


def output_file(text: str) -> Path:
    """The type of an argument that is a file to be written, which fails before anything is measured."""
    path = Path(text)
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text}: cannot be written")
    return path


def say(text: str) -> None:
    """Prints at once, also into a pipe."""
    print(text, flush=True)


def save(record: dict, path: Path | None) -> None:
    """Writes figures to the file of --json, if there is one."""
    if path:
        path.write_text(json.dumps(record, indent=2) + "\n")


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Markdown, of which the first row is the header."""
    header, *others = rows
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, ["---"] * len(header), *others))
