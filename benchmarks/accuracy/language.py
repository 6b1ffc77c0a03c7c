"""Test loss of a language model, by method.

    python -m benchmarks.accuracy.language FILE --seeds 0 1 2 --out=runs/language
    python -m benchmarks.accuracy.language FILE --variants float ternary --override run.num_steps=50

Trains `configs/charlm.py` on the text FILE once for each, under OUT, and goes on where it was stopped (see
study.py). All have the same steps, batches and first weights. OUT/language.json holds the curves, of which
OUT/table.md and OUT/language.png are made after every run.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

from benchmarks.accuracy import study
from benchmarks.commands import create_parser, format_table, save
from jaxtern.training.run.metrics import read_metrics

STEPS = "run.num_steps=2400", "run.evaluate_every=200"  # in place of 2,500, so that every H divides them
VARIANTS: dict[str, dict[str, Any]] = {  # fields of the recipe
    "float": {"mean.method": "float"},
    "terngrad": {"mean.method": "terngrad"},
    "ternary": {"mean.method": "ternary"},
    "quantized_5": {"mean.method": "quantized", "mean.levels": 2},
    "quantized_7": {"mean.method": "quantized", "mean.levels": 3},
    "low_rank_4": {"mean.method": "low_rank", "mean.rank": 4},
    "local_float_30": {"mean.method": "float", "local.steps": 30},
    "local_10": {"mean.method": "ternary", "local.steps": 10},
    "local_30": {"mean.method": "ternary", "local.steps": 30},
    "local_100": {"mean.method": "ternary", "local.steps": 100},
    "streaming_30": {"mean.method": "ternary", "local.steps": 30, "local.fragments": 3, "local.delay": 1},
}
NAMES = {
    "float": "float",
    "terngrad": "terngrad, c = 2.5",
    "ternary": "ternary",
    "quantized_5": "5 levels",
    "quantized_7": "7 levels",
    "low_rank_4": "low_rank, rank 4",
    "local_float_30": "local steps, 30, float",
    "local_10": "local steps, 10, ternary",
    "local_30": "local steps, 30, ternary",
    "local_100": "local steps, 100, ternary",
    "streaming_30": "the same, 30, in 3 fragments",
}
STYLES = {name: "black" if name == "float" else f"C{number}" for number, name in enumerate(VARIANTS)}


def main() -> None:
    arguments = _parse()
    out = Path(arguments.out)
    for seed in arguments.seeds:
        for variant in arguments.variants:
            own = [f"{name}={value}" for name, value in VARIANTS[variant].items()]
            fields = [f"data.name={_as_path(arguments.text)}", *STEPS, *own, f"run.seed={seed}", *arguments.override]
            study.train("charlm", fields, out / f"{variant}_{seed}")
            rows = read_rows(out, arguments.variants, arguments.seeds)
            save({"rows": rows}, out / "language.json")
            (out / "table.md").write_text(make_table(rows))
            plot(rows, out / "language.png")
    print(make_table(read_rows(out, arguments.variants, arguments.seeds)))


def _parse() -> argparse.Namespace:
    parser = create_parser(__doc__)
    parser.add_argument("text", help="file to train on and, its last tenth, to evaluate on")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", default="runs/language")
    parser.add_argument("--override", nargs="*", default=[], help="section.field=value, for every run")
    return parser.parse_args()


def _as_path(text: str) -> str:
    """With a slash in it, by which a recipe knows it from a name."""
    return text if "/" in text else f"./{text}"


def read_rows(out: Path, variants: list[str], seeds: list[int]) -> list[dict[str, Any]]:
    """A row for each run that is finished: bits that a worker sends an element and step, and the curves on the test
    split: steps, loss in nats a character, share of characters that are foretold.
    """
    rows = []
    for variant in variants:
        for seed in seeds:
            workdir = out / f"{variant}_{seed}"
            evaluations = study.read_evaluations(workdir)
            if evaluations:
                row = {"variant": variant, "seed": seed, "bits": _read_bits(workdir)}
                names = {"steps": "step", "losses": "test/loss", "accuracies": "test/precision_at_1"}
                curves = {name: [record[key] for record in evaluations] for name, key in names.items()}
                rows.append(row | curves)
    return rows


def _read_bits(workdir: Path) -> float:
    """On average over the records of the run."""
    bits = [record["sent_bits_per_element"] for record in read_metrics(workdir) if "sent_bits_per_element" in record]
    return statistics.mean(bits)


def make_table(rows: list[dict[str, Any]]) -> str:
    """Test loss at the last step: a row for each variant, a column for each seed."""
    seeds = sorted({row["seed"] for row in rows})
    columns = [*(f"seed {seed}" for seed in seeds), "mean", "deviation", "mean - float", "precision@1, %"]
    table = [["gradients", "bits", *columns]]
    final = {(row["variant"], row["seed"]): row["losses"][-1] for row in rows}
    for variant in dict.fromkeys(row["variant"] for row in rows):
        own = [row for row in rows if row["variant"] == variant]
        both = [row["seed"] for row in own if ("float", row["seed"]) in final]
        differences = [final[variant, seed] - final["float", seed] for seed in both]
        difference = f"{statistics.mean(differences):+.3f}" if differences and variant != "float" else ""
        accuracy = 100 * statistics.mean(row["accuracies"][-1] for row in own)
        losses = study.summarize([final.get((variant, seed)) for seed in seeds], digits=3)
        table.append([NAMES[variant], f"{own[0]['bits']:.2f}", *losses, difference, f"{accuracy:.1f}"])
    return format_table(table)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draws test loss over steps, a line for each run and a colour for each variant."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    named: set[str] = set()
    for row in rows:
        variant = row["variant"]
        label = None if variant in named else f"{NAMES[variant]} ({row['bits']:.2g} bits)"
        axes.plot(row["steps"], row["losses"], color=STYLES[variant], label=label, linewidth=1.2)
        named.add(variant)
    axes.set(xlabel="step", ylabel="test loss, nats a character", yscale="log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.2g}")
    axes.yaxis.set_minor_formatter(lambda value, _: f"{value:.2g}")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
