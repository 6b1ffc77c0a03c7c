"""Accuracy over time on slow links, from what was measured: docs/pictures/accuracy_over_time.svg.

    python -m benchmarks.accuracy.over_time docs/pictures/accuracy_over_time.svg

Accuracies and bits are those of CifarNet with momentum (results/methods.json); a step takes what it takes four hosts
without exchange (results/training.json), and the wire what the bits take at 100 Mbit/s. What the method itself computes
is left out. Colours can be read on light and dark pages.
"""

import sys
from pathlib import Path
from typing import Any

from benchmarks.netlab import parse_rate
from jaxtern.data.json_files import read_json

RESULTS = Path(__file__).parents[1] / "results"
RATE, HOSTS, ELEMENTS = "100mbit", 4, 1_068_298  # of CifarNet's gradients
TEXT = "#808080"
LINES = {  # variant: label, colour
    "ternary": ("ternary", "#2f8fd8"),
    "float": ("float", "#8c8c8c"),
    "low_rank_4": ("low rank 4", "#df8a1f"),
    "terngrad": ("TernGrad", "#8f7ad1"),
    "dgc_0.1": ("DGC, 0.1 %", "#35a46b"),
    "low_rank_1": ("low rank 1", "#c9a227"),
    "sign": ("signs", "#d2605a"),
}


def main() -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams |= {"svg.hashsalt": "jaxtern", "font.size": 10, "text.color": TEXT, "axes.labelcolor": TEXT}
    mpl.rcParams |= {"xtick.color": TEXT, "ytick.color": TEXT, "axes.edgecolor": TEXT}
    figure = Figure(figsize=(7.6, 3.9), layout="constrained")
    panel = figure.subplots()
    for variant, (label, color) in LINES.items():
        row = next(row for row in read_rows("methods") if (row["optimizer"], row["variant"]) == ("momentum", variant))
        minutes = [step * step_seconds(row["bits"]) / 60 for step in row["steps"]]
        label = f"{label}: {row['accuracies'][-1]:.1f} % after {minutes[-1]:.0f} minutes"
        panel.plot(minutes, row["accuracies"], color=color, linewidth=3 if variant == "ternary" else 1.7, label=label)
    panel.set_xlim(0, 52)
    panel.set_ylim(30, 80)
    panel.legend(frameon=False, loc="lower right")
    panel.set_xlabel("minutes: CifarNet, 10 epochs of CIFAR-10, four hosts on links of 100 Mbit/s")
    panel.set_ylabel("test accuracy, %")
    panel.grid(color=TEXT, alpha=0.2)
    panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(sys.argv[1], transparent=True, metadata={"Date": None})
    print(f"float {step_seconds(48):.3f} s a step, 3.64 bits {step_seconds(3.635):.3f} s")


def read_rows(name: str) -> list[dict[str, Any]]:
    return read_json(RESULTS / f"{name}.json")["rows"]


def step_seconds(bits: float) -> float:
    """Of work, and of the wire for so many bits an element."""
    case = "cifarnet", HOSTS, RATE, "none"
    (work,) = (
        row["milliseconds"] / 1e3
        for row in read_rows("training")
        if (row["model"], row["hosts"], row["rate"], row["variant"]) == case
    )
    return work + ELEMENTS * bits / parse_rate(RATE)


if __name__ == "__main__":
    main()
