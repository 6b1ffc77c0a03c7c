"""Test accuracy by method, over workers and seeds, of networks that the trainer trains.

    python -m benchmarks.accuracy cifar10=data/cifar10 --methods float ternary --workers 2 8 --seeds 0 1 2 --csv=F
    python -m benchmarks.accuracy --csv=F [--plots=FOLDER --step_seconds cifar10=0.01]

Trains every recipe by every method for each number of workers and seed, under OUT, `--jobs` at a time. DATA is a
prepared folder, a text, or for `mnist` the folder of its files. All runs of a recipe have the same first weights and
batches for a seed, and the recipe's own rates. A run that is finished is not trained again, and one that was stopped
goes on, so the same command ends what it began. F gets a row for each evaluation of each finished run, beside the rows
that it has. A finished run of other fields in the same folder is refused. Without recipes, the tables of F are printed.
`--plots` draws accuracy, or a text's loss, over bits, and over time on links of 100 Mbit/s and 1 Gbit/s, if a step
takes so many seconds before it sends.
"""

import argparse
import contextlib
import itertools
import math
import signal
import sys
from pathlib import Path

from absl import flags

from benchmarks.accuracy import report, study
from benchmarks.accuracy.methods import METHODS, OPTIMIZERS
from benchmarks.commands import at_least, create_parser, output_file
from jaxtern.command_line import UsageError


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what trains must not be left behind
    parser = _create_parser()
    arguments = parser.parse_args()
    try:
        runs = _runs(arguments)
        missing = [run for run in runs if not study.is_finished(run, arguments.out)]
        rows = study.read_rows(arguments.csv) if arguments.csv.exists() or not runs else []
    except (ValueError, OSError) as error:
        parser.error(str(error))
    status: str | int = 0
    if runs and not arguments.missing:
        status = _train(missing, arguments)
        finished = [run for run in runs if study.is_finished(run, arguments.out)]
        study.merge_rows(arguments.csv, [row for run in finished for row in study.rows_of(run, arguments.out)])
        missing, rows = [run for run in runs if run not in finished], study.read_rows(arguments.csv)
    if missing:
        print("not finished:", *(run.place(arguments.out) for run in missing), sep="\n  ")
    print(report.make_tables(rows))
    if arguments.plots:
        report.plot_all(rows, dict(arguments.step_seconds), arguments.plots)
    sys.exit(status)


def _train(runs: list[study.Run], arguments: argparse.Namespace) -> str | int:
    """What to exit with."""
    try:
        failed = study.train_all(runs, arguments.out, arguments.jobs, 60 * arguments.minutes)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    places = {run.place(arguments.out): status for run, status in failed.items()}
    return "\n".join(f"{place}: status {status}; see {place}.log" for place, status in places.items()) or 0


def _create_parser() -> argparse.ArgumentParser:
    parser = create_parser(__doc__)
    parser.add_argument("recipes", nargs="*", metavar="RECIPE[=DATA]", help="to train; none: only report")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["float", "ternary"])
    parser.add_argument("--workers", type=at_least(1), nargs="+", default=[2])
    parser.add_argument("--seeds", type=at_least(0), nargs="+", default=[0, 1, 2])
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=["recipe"])
    parser.add_argument("--override", type=_pair, nargs="*", default=[], metavar="section.field=value", help="in all")
    parser.add_argument(
        "--override_of",
        type=_pair_of,
        nargs="*",
        default=[],
        metavar="RECIPE:section.field=value",
        help="in one recipe",
    )
    parser.add_argument("--jobs", type=at_least(1), default=1, help="runs at a time")
    parser.add_argument("--minutes", type=_number, default=1e6, help="after which runs are stopped, to go on later")
    parser.add_argument("--out", type=Path, default=Path("runs/accuracy"), help="folder of the runs")
    parser.add_argument("--csv", type=output_file, default=Path("accuracy.csv"), help="file of the figures")
    parser.add_argument("--missing", action="store_true", help="train nothing, list what is not finished")
    parser.add_argument("--plots", type=Path, help="folder for pictures")
    parser.add_argument("--step_seconds", type=_seconds, nargs="*", default=[], metavar="RECIPE=SECONDS")
    return parser


def _pair(text: str) -> str:
    if not all(text.partition("=")[::2]):
        raise argparse.ArgumentTypeError(f"{text!r}: must be section.field=value")
    return text


def _pair_of(text: str) -> tuple[str, str]:
    recipe, colon, pair = text.partition(":")
    if not colon or "=" in recipe:
        raise argparse.ArgumentTypeError(f"{text!r}: must be RECIPE:section.field=value")
    return recipe, _pair(pair)


def _number(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r}: must be a number, 0 or more")


def _seconds(text: str) -> tuple[str, float]:
    recipe, _, seconds = text.partition("=")
    if not recipe or not seconds:
        raise argparse.ArgumentTypeError(f"{text!r}: must be RECIPE=SECONDS")
    return recipe, _number(seconds)


def _runs(arguments: argparse.Namespace) -> list[study.Run]:
    """Seed by seed, so that a study that is cut off has whole rows; raises ValueError for what no trainer takes."""
    runs, recipes = [], [each.partition("=")[0] for each in arguments.recipes]
    for recipe, _ in arguments.override_of:
        if recipe not in recipes:
            raise ValueError(f"--override_of {recipe}:...: must be of a recipe that is given, of {' '.join(recipes)}")
    for each in arguments.recipes:
        recipe, _, data = each.partition("=")
        if data and not Path(data).exists():
            raise ValueError(f"{each}: there is no {data}")
        if "/" in recipe or recipes.count(recipe) > 1:
            raise ValueError(f"{each}: must be the name of an installed recipe, given once")
        where = f"data.dir={data}" if recipe.startswith("mnist") else f"data.name={Path(data).absolute()}"
        own = [pair for name, pair in arguments.override_of if name == recipe]
        overrides, place = (*arguments.override, *own), (where,) if data else ()
        lists = arguments.seeds, arguments.optimizers, arguments.workers, arguments.methods
        for seed, optimizer, workers, method in itertools.product(*map(dict.fromkeys, lists)):
            runs.append(study.Run(recipe, place, optimizer, overrides, method, workers, seed))
    for run in runs:
        try:
            study.read(run.words())
        except (UsageError, flags.Error) as error:
            raise ValueError(f"{run.recipe} by {run.method}, {run.workers} workers: {error}") from None
    return runs


if __name__ == "__main__":
    main()
