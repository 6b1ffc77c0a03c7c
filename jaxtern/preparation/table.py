"""What a preparation came to, in a table."""

from collections import Counter
from collections.abc import Iterable

import tqdm

from jaxtern.data.records import TEST_SPLITS
from jaxtern.preparation.shards import ShardResult

_HEAD = ("split", "shards", "images", "classes", "images a class", "size", "repaired", "left out")


def remark_on_splits(names: Iterable[str]) -> tuple[str, ...]:
    """Says so where a dataset has no split to evaluate on, without which training does not take it as it is."""
    if set(names) & set(TEST_SPLITS):
        return ()
    remedy = "to evaluate on the images it trains on, set --config.data.test_split=train"
    return (f"no split to evaluate on: training wants {' or '.join(TEST_SPLITS)}; {remedy}",)


def format_table(splits: dict[str, list[ShardResult]]) -> str:
    """Formats a line for each split, of what became of its shards, under headings."""
    rows = [_HEAD, *(_summarize(name, results) for name, results in splits.items())]
    first, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
    return "\n".join("  ".join([name.ljust(first), *map(str.rjust, cells, widths)]) for name, *cells in rows)


def _summarize(name: str, results: list[ShardResult]) -> tuple[str, ...]:
    """One line's cells."""
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
