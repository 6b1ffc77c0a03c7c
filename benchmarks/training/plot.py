"""The figures of benchmarks.training: share of the speed without a network, or accuracy over time."""

from pathlib import Path
from typing import Any

from benchmarks.netlab import parse_rate

COLORS = {"none": "#999999", "float": "#000000", "ternary": "#0072B2", "two_way": "#56B4E9", "delayed": "#D55E00"}
COLORS |= {"local_10": "#009E73", "local_30": "#CC79A7", "torch fp32": "#E69F00", "torch fp16": "#F0E442"}
COLORS |= {"torch PowerSGD 4": "#8C564B"}
NAMES = {"lenet": "LeNet", "cifarnet": "CifarNet", "alexnet": "AlexNet"}


def plot(record: dict, path: Path) -> None:
    """Draws all rows."""
    from matplotlib.figure import Figure

    rows = record["rows"]
    if not rows:
        return
    figure = Figure(layout="constrained")
    if record["time_to"] is None:
        draw_steps(figure, [row for row in rows if "over_none" in row])
    else:
        draw_accuracies(figure, rows, record["time_to"])
    figure.savefig(path, dpi=150)


def draw_steps(figure: Any, rows: list[dict]) -> None:
    """A panel for every number of hosts and model; a bar is as high as the speed without a network allows."""
    hosts, models = sorted({row["hosts"] for row in rows}), list(dict.fromkeys(row["model"] for row in rows))
    variants = [name for name in COLORS if name != "none" and any(row["variant"] == name for row in rows)]
    rates = sorted({row["rate"] for row in rows}, key=parse_rate)
    figure.set_size_inches(1.2 + len(models) * (0.8 + 0.55 * len(rates) * len(variants)), 0.8 + 2.6 * len(hosts))
    panels = figure.subplots(len(hosts), len(models), squeeze=False, sharex=True, sharey=True)
    for i, count in enumerate(hosts):
        for j, model in enumerate(models):
            own = [row for row in rows if (row["hosts"], row["model"]) == (count, model)]
            draw_bars(panels[i][j], own, rates, variants)
            panels[i][j].set_title(f"{NAMES[model]}, {count} hosts", fontsize=10)
        panels[i][0].set_ylabel("% of the speed\nwithout a network")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(variants), fontsize=9, frameon=False)


def draw_bars(panel: Any, rows: list[dict], rates: list[str], variants: list[str]) -> None:
    width = 0.8 / max(len(variants), 1)
    for number, variant in enumerate(variants):
        own = {row["rate"]: row for row in rows if row["variant"] == variant}
        places = [place + (number + 0.5) * width - 0.4 for place, rate in enumerate(rates) if rate in own]
        heights = [100 / own[rate]["over_none"] for rate in rates if rate in own]
        bars = panel.bar(places, heights, 0.92 * width, color=COLORS[variant], label=variant)
        labels = [format_milliseconds(own[rate]["milliseconds"]) for rate in rates if rate in own]
        panel.bar_label(bars, labels, fontsize=7, padding=1)
    panel.axhline(100, color=COLORS["none"], linewidth=0.8, linestyle="--")
    panel.set_xticks(range(len(rates)), rates)
    panel.margins(y=0.12)
    panel.spines[["top", "right"]].set_visible(False)


def format_milliseconds(value: float) -> str:
    return f"{value / 1e3:.2g} s" if value >= 1e3 else f"{value:.0f} ms"


def draw_accuracies(figure: Any, rows: list[dict], target: float) -> None:
    """A panel for every number of hosts and rate; lines end where the accuracy is reached."""
    from matplotlib.ticker import LogLocator, NullFormatter

    cases = list(dict.fromkeys((row["hosts"], row["rate"]) for row in rows))
    figure.set_size_inches(0.5 + 4.5 * len(cases), 3.4)
    panels = figure.subplots(1, len(cases), squeeze=False, sharey=True)[0]
    for panel, case in zip(panels, cases, strict=True):
        for row in (row for row in rows if (row["hosts"], row["rate"]) == case):
            seconds, accuracies = [each[1] for each in row["evaluations"]], [each[2] for each in row["evaluations"]]
            label = f"{row['variant']}: {row['seconds']:.0f} s, {row['steps']} steps"
            panel.plot(seconds, [100 * each for each in accuracies], color=COLORS[row["variant"]], label=label)
            panel.plot(seconds[-1:], [100 * each for each in accuracies[-1:]], "o", color=COLORS[row["variant"]])
        panel.axhline(100 * target, color=COLORS["none"], linewidth=0.8, linestyle="--")
        panel.set_title(f"LeNet on MNIST, {case[0]} hosts, {case[1]}", fontsize=10)
        panel.set_xlabel("seconds of training")
        panel.set_xscale("log")
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.xaxis.set_major_formatter("{x:g}")
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.legend(fontsize=8, frameon=False, loc="lower right")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("% of the test split right")
