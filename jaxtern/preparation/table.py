"""What a preparation came to, in a table."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import tqdm

from jaxtern.data.records import TEST_SPLITS
from jaxtern.preparation.shards import ShardResult


class SplitSummary(NamedTuple):
    """One line of the table.

    Attributes:
      name: of the split.
      shards: files.
      images: in it.
      classes: that have images.
      least, most: images of a class.
      file_bytes: of all shards.
      repaired: images encoded anew because they were not what their names say.
      left_out: damaged images.
    """

    name: str
    shards: int
    images: int
    classes: int
    least: int
    most: int
    file_bytes: int
    repaired: int
    left_out: int


def summarize_split(name: str, results: list[ShardResult]) -> SplitSummary:
    """One split's line from its shards."""
    counts = sum((Counter(result.classes) for result in results), Counter())
    return SplitSummary(
        name,
        len(results),
        sum(result.images for result in results),
        len(counts),
        min(counts.values(), default=0),
        max(counts.values(), default=0),
        sum(result.file_bytes for result in results),
        sum(len(result.repaired) for result in results),
        sum(len(result.left_out) for result in results),
    )


def remark_on_splits(names: Iterable[str]) -> tuple[str, ...]:
    """Says so where a dataset has no split to evaluate on, without which training does not take it as it is."""
    if set(names) & set(TEST_SPLITS):
        return ()
    remark = (
        f"no split to evaluate on: training wants {' or '.join(TEST_SPLITS)}; to evaluate on the images it trains on,"
    )
    return (f"{remark} set --config.data.test_split=train",)


def format_table(summaries: list[SplitSummary]) -> str:
    """Formats the lines of all splits under their headings."""
    head = ("split", "shards", "images", "classes", "images a class", "size", "repaired", "left out")
    rows = [
        (
            s.name, f"{s.shards:,}", f"{s.images:,}", f"{s.classes:,}",
            f"{s.least:,}" if s.least == s.most else f"{s.least:,} to {s.most:,}",
            tqdm.tqdm.format_sizeof(s.file_bytes, "B"), f"{s.repaired:,}", f"{s.left_out:,}",
        )
        for s in summaries
    ]  # fmt: skip
    first, *widths = (max(map(len, column)) for column in zip(head, *rows, strict=True))
    return "\n".join("  ".join([name.ljust(first), *map(str.rjust, cells, widths)]) for name, *cells in (head, *rows))
