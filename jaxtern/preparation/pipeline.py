"""Prepares a dataset: opens a source, plans its shards, writes them and the metadata."""

import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tqdm

from jaxtern.preparation.detection import Reading, open_source
from jaxtern.preparation.folder import claim_folder, finish_folder, read_finished
from jaxtern.preparation.plan import Options, Plan, make_plan
from jaxtern.preparation.shards import ShardResult, Task, group_by_split, read_result
from jaxtern.preparation.source import Source
from jaxtern.preparation.workers import write_shards

logger = logging.getLogger(__name__)

_NAMED = 20  # damaged images that get a warning each; preparation.json lists all
_HEAD = ("split", "shards", "images", "classes", "images a class", "size", "repaired", "left out")


@dataclass(frozen=True)
class Report:
    """The result of a preparation."""

    splits: dict[str, list[ShardResult]]  # the results of the shards of each split
    remarks: tuple[str, ...]  # of the source

    def __str__(self) -> str:
        """A table with a line for each split, then the remarks."""
        rows = [_HEAD, *(_summarize(name, results) for name, results in self.splits.items())]
        first, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
        lines = ["  ".join([name.ljust(first), *map(str.rjust, cells, widths)]) for name, *cells in rows]
        return "\n".join([*lines, *self.remarks])


def prepare(
    path: Path,
    out: Path,
    reading: Reading | None = None,
    options: Options | None = None,
    workers: int = 1,
    max_bad: int = 0,
    say: Callable[[str], None] = logger.info,
) -> Report:
    """Writes the dataset of `path` to the folder `out`, or finishes what an earlier call with the same plan began.

    Args:
      path: of a file or folder, see `open_source`.
      out: must be new, empty, or hold a preparation by the same plan, whose finished shards are kept.
      reading: how to read the source.
      options: what to write. The bytes depend only on these, `reading` and the source.
      workers: number of processes.
      max_bad: number of damaged images that may be left out.
      say: is given a line of text before the work begins.

    Raises:
      ValueError: if the source, an option or `out` is invalid, or too many images are damaged; finished shards stay.
      OSError: if something cannot be read or written.
    """
    if workers < 1:
        raise ValueError(f"workers={workers}: must be 1 or more")
    if max_bad < 0:
        raise ValueError(f"max_bad={max_bad}: must be 0 or more")
    if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
        raise ValueError(f"OUT={str(out)!r}: lies in SOURCE={str(path)!r}; choose another folder")
    source = open_source(path, reading or Reading())
    plan = make_plan(source, str(path), options or Options())
    claim = claim_folder(out, plan.identity)
    if claim is None:
        say(f"{out} is prepared already, from files of these names and sizes")
        results = read_finished(out, plan)
    else:
        with claim:
            results = _write_missing(out, source, plan, workers, say)
            _require_few_bad(results, max_bad)
            for split, shards in group_by_split(plan.shards, results).items():
                if not any(shard.images for shard in shards):
                    raise ValueError(f"SOURCE={str(path)!r}: no image of split {split} can be decoded")
            finish_folder(out, source, plan, results)
    return Report(group_by_split(plan.shards, results), source.remarks)


def _write_missing(
    out: Path, source: Source, plan: Plan, workers: int, say: Callable[[str], None]
) -> dict[str, ShardResult]:
    """Writes the shards that are not finished; returns the results of all."""
    found = {shard.file_name: read_result(out, shard.file_name) for shard in plan.shards}
    results = {name: result for name, result in found.items() if result is not None}
    images = sum(map(len, source.splits.values()))
    done = f"; {len(results)} were done already" if results else ""
    say(f"{images:,} images of {len(source.class_names):,} classes in {len(plan.shards):,} shards, to {out}{done}")
    missing = [shard for shard in plan.shards if shard.file_name not in results]
    tasks = [Task(out, shard, source.read, plan.rules, source.class_names) for shard in missing]
    with contextlib.closing(write_shards(tasks, workers)) as written:
        return results | {task.shard.file_name: result for task, result in written}


def _require_few_bad(results: dict[str, ShardResult], max_bad: int) -> None:
    """Warns of damaged images, and refuses more than `max_bad`."""
    bad = sorted(tuple(left) for result in results.values() for left in result.left_out)
    for name, reason in bad[:_NAMED]:
        logger.warning("%s: left out: %s", name, reason)
    if len(bad) > max_bad:
        first = ", ".join(name for name, _ in bad[:3])
        raise ValueError(
            f"{len(bad):,} images are damaged, and max_bad={max_bad}: {first}{', …' if len(bad) > 3 else ''}."
            f" To leave them out, run this again with --max_bad={len(bad)}, which keeps what is done; or repair the"
            " source and prepare it into another folder"
        )


def _summarize(name: str, results: list[ShardResult]) -> tuple[str, ...]:
    """The cells of a split's line in the table."""
    classes = sum((Counter(result.classes) for result in results), Counter())
    least, most = min(classes.values(), default=0), max(classes.values(), default=0)
    return (
        name,
        f"{len(results):,}",
        f"{sum(result.images for result in results):,}",
        f"{len(classes):,}",
        f"{least:,}" if least == most else f"{least:,} to {most:,}",
        tqdm.tqdm.format_sizeof(sum(result.file_bytes for result in results), "B"),
        f"{sum(len(result.repaired) for result in results):,}",
        f"{sum(len(result.left_out) for result in results):,}",
    )
