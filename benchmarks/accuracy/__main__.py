"""Final test accuracy of a recipe, float against ternary, over workers and seeds.

    python -m benchmarks.accuracy --config=mnist --data_dir=FOLDER --workers 2 4 8 --seeds 0 1 2 --out=runs/accuracy

Trains once for each, under OUT, and goes on where it was stopped (see study.py). The table is OUT/table.md;
OUT/curves.png has the test accuracy after every evaluation.
"""

import argparse
from pathlib import Path

from benchmarks.accuracy import study
from benchmarks.commands import create_parser, format_table


def main() -> None:
    arguments = _parse()
    out = Path(arguments.out)
    variants = [("float", workers) for workers in arguments.float_workers]
    variants += [("ternary", workers) for workers in arguments.workers]
    for seed in arguments.seeds:
        for codec, workers in variants:
            fields = [f"mean.method={codec}", f"run.num_workers={workers}", f"run.seed={seed}", *arguments.override]
            if arguments.data_dir:
                fields.append(f"data.dir={arguments.data_dir}")
            study.train(arguments.config, fields, _workdir(out, codec, workers, seed))
            (out / "table.md").write_text(make_table(out, variants, arguments.seeds))
            plot(out, variants, arguments.seeds, out / "curves.png")
    print(make_table(out, variants, arguments.seeds))


def _parse() -> argparse.Namespace:
    parser = create_parser(__doc__)
    parser.add_argument("--config", default="mnist", help="recipe")
    parser.add_argument("--data_dir", help="folder of the dataset")
    parser.add_argument("--workers", type=int, nargs="*", default=[2, 4, 8], help="of the ternary runs")
    parser.add_argument("--float_workers", type=int, nargs="*", default=[4], help="of the float runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", default="runs/accuracy")
    parser.add_argument("--override", nargs="*", default=[], help="section.field=value, for every run")
    return parser.parse_args()


def _workdir(out: Path, codec: str, workers: int, seed: int) -> Path:
    return out / f"{codec}_{workers}_{seed}"


def make_table(out: Path, variants: list[tuple[str, int]], seeds: list[int]) -> str:
    """Test precision@1 in percent at the last step: a row for each variant, a column for each seed."""
    rows = [["codec", "workers", *(f"seed {seed}" for seed in seeds), "mean", "deviation"]]
    for codec, workers in variants:
        results = [_final_accuracy(_workdir(out, codec, workers, seed)) for seed in seeds]
        rows.append([codec, str(workers), *study.summarize(results)])
    return format_table(rows)


def _final_accuracy(workdir: Path) -> float | None:
    """Of the last evaluation, if the run has reached its last step."""
    evaluations = study.read_evaluations(workdir)
    return 100 * evaluations[-1]["test/precision_at_1"] if evaluations else None


def plot(out: Path, variants: list[tuple[str, int]], seeds: list[int], path: Path) -> None:
    """Draws test precision@1 over steps: a colour for each variant, a line for each seed; float is dashed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for number, (codec, workers) in enumerate(variants):
        label = f"{codec}, {workers} workers"
        for seed in seeds:
            evaluations = study.read_evaluations(_workdir(out, codec, workers, seed))
            if not evaluations:
                continue
            steps = [record["step"] for record in evaluations]
            accuracies = [100 * record["test/precision_at_1"] for record in evaluations]
            style = "--" if codec == "float" else "-"
            axes.plot(steps, accuracies, style, label=label, color=f"C{number}", linewidth=1.3)
            label = None
    axes.set(xlabel="step", ylabel="test accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
