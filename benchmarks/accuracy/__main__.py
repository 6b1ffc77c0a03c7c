"""Test accuracy by method, over workers and seeds, of networks that the trainer trains.

    python -m benchmarks.accuracy cifar10=data/cifar10 --methods float ternary --workers 2 8 --seeds 0 1 2 --csv=F
    python -m benchmarks.accuracy --csv=F [--plots=FOLDER --step_seconds cifar10=0.01]

Trains every recipe by every method for each number of workers and seed, under OUT, `--jobs` at a time. DATA is a
prepared folder, a text, or for `mnist` the folder of its files. All runs of a recipe have the same first weights and
batches for a seed, and the recipe's own rates. A run that is finished is not trained again, and one that was stopped
goes on, so the same command ends what it began. F gets a row for each evaluation of each finished run, beside the rows
that it has. Without recipes, the tables of F are printed. `--plots` draws accuracy, or a text's loss, over bits, and
over time on links of 100 Mbit/s and 1 Gbit/s, if a step takes so many seconds before it sends.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.accuracy import report, study
from benchmarks.accuracy.methods import METHODS, OPTIMIZERS
from benchmarks.commands import at_least, create_parser, output_file


def main() -> None:
    arguments = _parse()
    runs, out = list(_runs(arguments)), Path(arguments.out)
    failed = {}
    if runs and not arguments.missing:
        try:
            failed = study.train_all(runs, out, arguments.jobs, 60 * arguments.minutes)
        finally:
            rows = [
                row for run in runs if study.is_finished(run.place(out)) for row in study.rows_of(run, run.place(out))
            ]
            study.merge_rows(arguments.csv, rows)
    missing = [run.place(out) for run in runs if not study.is_finished(run.place(out))]
    if missing:
        print("not finished:", *missing, sep="\n  ")
    if arguments.csv.exists():
        rows = study.read_rows(arguments.csv)
        print(report.make_tables(rows))
        if arguments.plots:
            report.plot_all(rows, dict(arguments.step_seconds), arguments.plots)
    sys.exit("\n".join(f"{run.place(out)}: status {failed[run]}; see {run.place(out)}.log" for run in failed) or 0)


def _parse() -> argparse.Namespace:
    parser = create_parser(__doc__)
    parser.add_argument("recipes", nargs="*", metavar="RECIPE[=DATA]", help="to train; none: only report")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["float", "ternary"])
    parser.add_argument("--workers", type=at_least(1), nargs="+", default=[2])
    parser.add_argument("--seeds", type=at_least(0), nargs="+", default=[0, 1, 2])
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=["recipe"])
    parser.add_argument("--override", type=_pair, nargs="*", default=[], metavar="section.field=value", help="in all")
    parser.add_argument(
        "--override_of", type=_pair, nargs="*", default=[], metavar="RECIPE:section.field=value", help="in one recipe"
    )
    parser.add_argument("--jobs", type=at_least(1), default=1, help="runs at a time")
    parser.add_argument("--minutes", type=float, default=1e6, help="after which runs are stopped, to go on later")
    parser.add_argument("--out", default="runs/accuracy", help="folder of the runs")
    parser.add_argument("--csv", type=output_file, default=Path("accuracy.csv"), help="file of the figures")
    parser.add_argument("--missing", action="store_true", help="train nothing, list what is not finished")
    parser.add_argument("--plots", type=Path, help="folder for pictures")
    parser.add_argument("--step_seconds", type=_seconds, nargs="*", default=[], metavar="RECIPE=SECONDS")
    arguments = parser.parse_args()
    for each in arguments.recipes:
        data = each.partition("=")[2]
        if data and not Path(data).exists():
            parser.error(f"{each}: there is no {data}")
    return arguments


def _pair(text: str) -> str:
    if not all(text.partition("=")[::2]):
        raise argparse.ArgumentTypeError(f"{text!r}: must be section.field=value")
    return text


def _seconds(text: str) -> tuple[str, float]:
    recipe, _, seconds = text.partition("=")
    try:
        return recipe, float(seconds)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: must be RECIPE=SECONDS") from None


def _runs(arguments: argparse.Namespace) -> Iterator[study.Run]:
    """Seed by seed, so that a study that is cut off has whole rows."""
    for each in arguments.recipes:
        recipe, _, data = each.partition("=")
        where = f"data.dir={data}" if recipe.startswith("mnist") else f"data.name={Path(data).absolute()}"
        own = [pair.partition(":")[2] for pair in arguments.override_of if pair.startswith(f"{recipe}:")]
        overrides, place = (*arguments.override, *own), (where,) if data else ()
        for seed, optimizer, workers, method in itertools.product(
            arguments.seeds, arguments.optimizers, arguments.workers, arguments.methods
        ):
            yield study.Run(recipe, place, optimizer, overrides, method, workers, seed)


if __name__ == "__main__":
    main()
