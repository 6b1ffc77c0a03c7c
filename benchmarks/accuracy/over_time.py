"""Accuracy over time on slow links, from what was measured: docs/pictures/accuracy_over_time.svg.

    python -m benchmarks.accuracy.over_time docs/pictures/accuracy_over_time.svg

Accuracies and bytes are those of CifarNet with momentum and 4 workers (results/accuracy.csv); a step takes what it
takes four hosts without exchange (results/training.json), and the wire what the bytes take at 100 Mbit/s. What the
method itself computes is left out.
"""

from pathlib import Path

from benchmarks.accuracy import report, study
from benchmarks.accuracy.methods import METHODS
from benchmarks.commands import create_parser, output_file
from jaxtern.data.json_files import read_json

RESULTS = Path(__file__).parents[1] / "results"
RATE, HOSTS = "100mbit", 4
COLORS = {
    "ternary": "#2f8fd8",
    "float": "#8c8c8c",
    "low_rank_4": "#df8a1f",
    "terngrad": "#8f7ad1",
    "dgc_0.1": "#35a46b",
    "low_rank_1": "#c9a227",
    "sign": "#d2605a",
}


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("plot", type=output_file, help="file of the figure, .png or .svg")
    path = parser.parse_args().plot
    figure = report.create_figure(7.6, 3.9)
    panel = figure.subplots()
    runs = [row for row in study.read_rows(RESULTS / "accuracy.csv") if row["optimizer"] == "momentum"]
    ((_, results),) = report.studies(row for row in runs if int(row["workers"]) == HOSTS)
    for method, color in COLORS.items():
        (result,) = (result for result in results if result.method == method)
        minutes = report.minutes_of(result, work_seconds(), RATE)
        label = f"{METHODS[method].label}: {result.mean:.1f} % after {minutes:.0f} minutes"
        places = [minutes * step / result.num_steps for step, _ in result.curve]
        width = 3 if method == "ternary" else 1.7
        panel.plot(places, [score for _, score in result.curve], color=color, linewidth=width, label=label)
    panel.set_xlim(0, 52)
    panel.set_ylim(30, 80)
    panel.legend(frameon=False, loc="lower right")
    panel.set_xlabel("minutes: CifarNet, 10 epochs of CIFAR-10, four hosts on links of 100 Mbit/s")
    panel.set_ylabel("test accuracy, %")
    report.clear(panel)
    figure.savefig(path, transparent=True, metadata={"Date": None})


def work_seconds() -> float:
    """Of a step without exchange."""
    case = "cifarnet", HOSTS, RATE, "none"
    (row,) = (
        row
        for row in read_json(RESULTS / "training.json")["rows"]
        if (row["model"], row["hosts"], row["rate"], row["variant"]) == case
    )
    return row["milliseconds"] / 1e3


if __name__ == "__main__":
    main()
