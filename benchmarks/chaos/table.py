"""The tables of disturbed runs: what came of each kind of fault, and what was printed.

    python -m benchmarks.chaos.table benchmarks/results/chaos.jsonl

prints those of runs that were kept.
"""

import json
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.chaos.faults import MEANING
from benchmarks.commands import create_parser, format_table

_HEADER = [
    *("fault", "runs", "in start-up, steps, end", "went on", "was done", "started again", "by the launcher"),
    *("refused", "same bits", "wrong", "median s", "max s", "lost s"),
]
_PREFERRED = "WARNING: checkpoint", "stopped by", "error: process", "error:", "launch: process"


def make_table(results: Sequence[dict[str, Any]]) -> str:
    """Markdown, two tables.

    Seconds are from the fault until all processes had ended by themselves. Lost are those by which a run that was
    started again took longer than the undisturbed one, the median; without the column if no run notes it.
    """
    by_kind = {kind: [result for result in results if result["kind"] == kind] for kind in MEANING}
    found = {kind: own for kind, own in by_kind.items() if own}
    counts = [_HEADER, *(_row(MEANING[kind], own) for kind, own in found.items()), _row("all", results)]
    if not counts[-1][-1]:
        counts = [row[:-1] for row in counts]
    printed = [["fault", "printed, for example"], *([MEANING[kind], _example(own)] for kind, own in found.items())]
    return format_table(counts) + "\n" + format_table([row for row in printed if row[1]])


def _row(name: str, results: Sequence[dict[str, Any]]) -> list[str]:
    seconds = [result["seconds"] for result in results if result["seconds"] is not None]
    refused = [result for result in results if result["outcome"] == "refused"]
    counts = (
        len(results),
        ", ".join(str(sum(_phase(result) == phase for result in results)) for phase in range(3)),
        sum(not result["restarts"] and _phase(result) < 2 for result in results),
        sum(not result["restarts"] and _phase(result) == 2 for result in results),
        sum(result["restarts"] > 0 for result in results) - len(refused),
        sum(result["by_launcher"] > 0 for result in results),
        len(refused),
        sum(not result["wrong"] for result in results) - len(refused),
        sum(bool(result["wrong"]) for result in results),
    )
    lost = [result["lost"] for result in results if result["restarts"] and "lost" in result]
    times = _median(seconds), f"{max(seconds):.1f}" if seconds else "", _median(lost)
    return [name, *map(str, counts), *times]


def _median(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.1f}" if seconds else ""


def _phase(result: dict[str, Any]) -> int:
    """0: before the first step's line, 1: before the last one's, 2: then."""
    return 0 if result["phase"] == "start-up" else 1 + (result["phase"] == f"step {result['steps']}")


def _example(results: Sequence[dict[str, Any]]) -> str:
    """A line that one of the processes printed."""
    told = [re.sub(r"^\d+ \[\w+\] ", "", line) for result in results for line in result["told"]]
    for start in _PREFERRED:
        for line in told:
            if line.startswith(start):
                return "`" + re.sub(r"\(host [^)]*\)", "(host b)", line).replace("|", "\\|") + "`"
    return ""


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("results", type=Path, help="runs that benchmarks.chaos wrote, a line of JSON each")
    lines = parser.parse_args().results.read_text().splitlines()
    print(make_table([json.loads(line) for line in lines]), end="")


if __name__ == "__main__":
    main()
