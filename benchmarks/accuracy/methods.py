"""Test accuracy, bits on the wire and seconds a step by method: CifarNet on CIFAR-10, 4 workers, two optimisers.

    python -m benchmarks.accuracy.methods data/cifar10 --out=runs/methods
    python -m benchmarks.accuracy.methods data/cifar10 --out=runs/speed --override run.num_steps=120 run.log_every=20

Trains `configs/cifar10.py` on the prepared folder once for each, in 10 epochs, under OUT, and goes on where it was
stopped (see study.py). All have the same batches, first weights and rates. OUT/methods.json has the rows, of which
OUT/table.md and OUT/methods.png are made after every run. Milliseconds mean something where nothing else ran.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

from benchmarks.accuracy import study
from benchmarks.commands import create_parser, format_table, save
from jaxtern.training.run.metrics import read_metrics

WORKERS = 4
BATCH_SIZE = 128
STEPS = 3910  # 10 epochs
EPOCH = 390  # steps
WARMUP = (0.25, 0.0625, 0.015625, 0.01), (0.25, 0.0625, 0.015625, 0.004, 0.001)  # densities of DGC's first epochs
VARIANTS = {
    "float": {"method": "float"},
    "terngrad": {"method": "terngrad"},
    "ternary": {"method": "ternary"},
    "quantized_5": {"method": "quantized", "levels": 2},
    "quantized_7": {"method": "quantized", "levels": 3},
    "dgc_1": {"method": "dgc", "density": 0.01, "density_warmup": WARMUP[0], "sampled": True},
    "dgc_0.1": {"method": "dgc", "density": 0.001, "density_warmup": WARMUP[1], "sampled": True},
    "low_rank_1": {"method": "low_rank", "rank": 1},
    "low_rank_4": {"method": "low_rank", "rank": 4},
    "sign": {"method": "sign"},
}
NAMES = {
    "float": "float",
    "terngrad": "terngrad, c = 2.5",
    "ternary": "ternary",
    "quantized_5": "5 levels",
    "quantized_7": "7 levels",
    "dgc_1": "top_k as DGC, 1 %",
    "dgc_0.1": "top_k as DGC, .1 %",
    "low_rank_1": "low_rank, rank 1",
    "low_rank_4": "low_rank, rank 4",
    "sign": "sign, with feedback",
}
OPTIMIZERS = {
    "momentum": {"name": "momentum", "learning_rate": 0.02},
    "adam": {"name": "adam", "learning_rate": 0.001},
}


def main() -> None:
    arguments = _parse()
    out = Path(arguments.out)
    for optimizer in arguments.optimizers:
        for variant in arguments.variants:
            own = {
                f"{section}.{name}": str(value).replace(" ", "")
                for section, fields in fields_of(variant, optimizer).items()
                for name, value in fields.items()
            }
            own |= dict(each.split("=", 1) for each in arguments.override)  # a tuple given twice would be joined
            fields = [f"data.name={arguments.folder}", *(f"{name}={value}" for name, value in own.items())]
            study.train("cifar10", fields, out / f"{optimizer}_{variant}")
            rows = read_rows(out)
            save({"rows": rows}, out / "methods.json")
            (out / "table.md").write_text(make_table(rows))
            if rows:
                plot(rows, out / "methods.png")
    print(make_table(read_rows(out)))


def _parse() -> argparse.Namespace:
    parser = create_parser(__doc__)
    parser.add_argument("folder", help="CIFAR-10, prepared; with a slash in it")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    parser.add_argument("--out", default="runs/methods")
    parser.add_argument("--override", nargs="*", default=[], help="section.field=value, for every run")
    arguments = parser.parse_args()
    for each in arguments.override:
        if "=" not in each:
            parser.error(f"--override={each!r}: must be section.field=value")
    return arguments


def fields_of(variant: str, optimizer: str) -> dict[str, dict[str, Any]]:
    """Of a run, by section.

    With DGC the momentum is each worker's own, so the optimiser has none; under Adam there is none but Adam's.
    """
    mean, update = dict(VARIANTS[variant]), dict(OPTIMIZERS[optimizer])
    if mean["method"] == "dgc":
        mean["momentum"] = 0.9 if optimizer == "momentum" else 0.0
        update["name"] = "sgd" if optimizer == "momentum" else optimizer
    run = {"num_workers": WORKERS, "batch_size": BATCH_SIZE, "num_steps": STEPS, "evaluate_every": EPOCH}
    return {"mean": mean, "optimizer": update, "run": run | {"checkpoint_every": EPOCH}}


def read_rows(out: Path) -> list[dict[str, Any]]:
    """A row for each run that is finished: bits that a worker sends an element and step, on average over the run,
    milliseconds of a step, the median of its log, and the test accuracy after every evaluation, in percent.
    """
    rows = []
    for optimizer in OPTIMIZERS:
        for variant in VARIANTS:
            workdir = out / f"{optimizer}_{variant}"
            evaluations = study.read_evaluations(workdir)
            if evaluations:
                logged = [record for record in read_metrics(workdir) if "examples_per_second" in record]
                row: dict[str, Any] = {"optimizer": optimizer, "variant": variant}
                row["bits"] = statistics.mean(record["sent_bits_per_element"] for record in logged)
                speed = statistics.median(record["examples_per_second"] for record in logged)
                row["milliseconds"] = 1000 * BATCH_SIZE / speed
                row["steps"] = [record["step"] for record in evaluations]
                row["accuracies"] = [100 * record["test/precision_at_1"] for record in evaluations]
                rows.append(row)
    return rows


def make_table(rows: list[dict[str, Any]]) -> str:
    """At the last step: a row for each method, for each optimiser accuracy and milliseconds."""
    table = [["gradients", "bits", *(f"{name}, {what}" for name in OPTIMIZERS for what in ("%", "ms a step"))]]
    found = {(row["optimizer"], row["variant"]): row for row in rows}
    for variant, name in NAMES.items():
        own = [found.get((optimizer, variant)) for optimizer in OPTIMIZERS]
        bits = next((f"{row['bits']:.2f}" for row in own if row), "")
        cells = [(f"{row['accuracies'][-1]:.2f}", f"{row['milliseconds']:.0f}") if row else ("", "") for row in own]
        table.append([name, bits, *(cell for pair in cells for cell in pair)])
    return format_table(table)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draws test accuracy over epochs: a panel for each optimiser, a line for each method."""
    from matplotlib.figure import Figure

    shown = [name for name in OPTIMIZERS if any(row["optimizer"] == name for row in rows)]
    figure = Figure(figsize=(1 + 4.5 * len(shown), 4.5), layout="constrained")
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axes, optimizer in zip(panels, shown, strict=True):
        for number, (variant, name) in enumerate(NAMES.items()):
            for row in rows:
                if (row["optimizer"], row["variant"]) == (optimizer, variant):
                    color = "black" if variant == "float" else f"C{number}"
                    epochs = [step / EPOCH for step in row["steps"]]
                    label = f"{name} ({row['bits']:.2g} bits)"
                    axes.plot(epochs, row["accuracies"], color=color, linewidth=1.3, label=label)
        axes.set(title=optimizer, xlabel="epoch")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("test accuracy, %")
    panels[0].legend(fontsize="small")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
