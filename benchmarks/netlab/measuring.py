"""What commands share that measure in laboratories: types of their arguments, rows as they come, the status."""

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.commands import save, say
from benchmarks.netlab.lab import LabError
from benchmarks.netlab.system import parse_rate, why_not

START_SECONDS = 300.0  # for a worker to start, compile, and answer


def number_of_hosts(text: str) -> int:
    """The type of --hosts."""
    if not text.isdecimal() or not 2 <= int(text) <= 64:
        raise argparse.ArgumentTypeError(f"{text!r}: must be an integer from 2 to 64")
    return int(text)


def rate_of_links(text: str) -> str:
    """The type of --rates, which stay words."""
    try:
        parse_rate(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def parse(parser: argparse.ArgumentParser, complete: Callable[[argparse.Namespace], None]) -> argparse.Namespace:
    """The arguments, where a laboratory can be built; `complete` may change them, or refuse by a ValueError."""
    arguments = parser.parse_args()
    try:
        complete(arguments)
    except ValueError as error:
        parser.error(str(error))
    if reason := why_not():
        parser.error(f"the laboratory {reason}")
    return arguments


def collect(record: dict, rows: Iterable[dict], as_line: Callable[[dict], str], file: Path | None) -> int:
    """Prints and saves rows as they come; the status: 1 if one tells of an error.

    Ends the process where there is no laboratory any more (2), or Ctrl-C was pressed (130).
    """
    record["rows"] = []
    try:
        for row in rows:
            record["rows"].append(row)
            say(as_line(row))
            save(record, file)
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    return int(any("error" in row for row in record["rows"]))


def has_memory(needed: int, what: str, heading: str) -> bool:
    """Whether so many bytes are free; if not, says so between two parts of the table."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    if needed > free:
        say(f"\n{what}: needs {needed / 1e9:.0f} GB of memory, {free / 1e9:.0f} are free\n\n{heading}")
    return needed <= free
