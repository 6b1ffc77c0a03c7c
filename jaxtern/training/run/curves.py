"""A run's curves as a picture, and a plan's."""

import itertools
from pathlib import Path

from jaxtern.planning.forecast import Forecast
from jaxtern.training.run.metrics import read_metrics


def plot_curves(workdir: Path, title: str) -> Path:
    """Draws loss, accuracy and learning rate of `<workdir>/metrics.jsonl` into `<workdir>/curves.png`."""
    from matplotlib.figure import Figure  # here, because importing it takes a second

    records = read_metrics(workdir)

    def series(name: str, factor: float = 1.0) -> tuple[list[int], list[float]]:
        chosen = [record for record in records if name in record]
        return [record["step"] for record in chosen], [record[name] * factor for record in chosen]

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    loss, accuracy, rate = figure.subplots(1, 3)
    loss.plot(*series("loss"), label="train", color="tab:blue")
    loss.plot(*series("test/loss"), label="test", color="tab:orange", marker=".")
    loss.set(yscale="log", title="loss")
    accuracy.plot(*series("accuracy", 100), label="train", color="tab:blue")
    accuracy.plot(*series("test/precision_at_1", 100), label="test", color="tab:orange", marker=".")
    accuracy.set(title="accuracy, %")
    rate.plot(*series("learning_rate"), color="tab:green")
    rate.set(title="learning rate")
    for axes in (loss, accuracy, rate):
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
    loss.legend()
    accuracy.legend()
    figure.suptitle(title)
    path = workdir / "curves.png"
    figure.savefig(path, dpi=120)
    return path


def plot_speed_up(forecast: Forecast, title: str, path: Path) -> Path:
    """Draws throughput over one worker's against workers, a line for every method, into `path`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    counts = list(forecast.scaling)
    axes.plot(counts, counts, color="0.7", linestyle=":", label="linear")
    colours = dict(zip(forecast.methods, itertools.cycle(_COLOURS), strict=False))
    for way in forecast.ways:
        known = [count for count in counts if way in forecast.scaling[count]]
        speed_ups = [forecast.speed_up(count, way) for count in known]
        style = "s--" if way.hierarchical else "o-"
        axes.plot(known, speed_ups, style, label=str(way), color=colours[way.method], markersize=4)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:.2g}")
    axes.set(xlabel="workers", ylabel="throughput over one worker's", title=title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)
    return path


_COLOURS = ("black", "tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown")
