"""Plots of a run's curves, and of a plan's speed-up."""

from pathlib import Path

from jaxtern.planning.forecast import Forecast
from jaxtern.training.run.metrics import read_metrics


def plot_curves(workdir: Path, title: str, loss: str) -> Path:
    """Plots `<workdir>/metrics.jsonl` as `curves.png`: loss (the recipe's) by its parts, accuracy, rate and norms."""
    from matplotlib.figure import Figure  # here, because the import takes a second

    records = read_metrics(workdir)
    parts = sorted({name for record in records for name in record if name.startswith("loss/")})
    main, *others = sorted(parts, key=lambda name: not name.endswith(loss)) or ["loss"]
    names = [main, "test/loss", *others, *["loss"] * bool(others)]
    kinds = {"test/loss": f"test, {loss}", "loss": "train, all of it"}
    losses = {name: kinds.get(name, f"train, {name.removeprefix('loss/')}").replace("_", " ") for name in names}
    panels = {
        "loss": losses,
        "accuracy, %": {"accuracy": "train", "test/precision_at_1": "test"},
        "learning rate": {"learning_rate": "rate"},
        "norms": {"gradient_norm": "mean gradient", "weight_norm": "weights"},
    }
    figure = Figure(figsize=(16, 3.6), layout="constrained")
    for axes, (subject, lines) in zip(figure.subplots(1, len(panels)).flat, panels.items(), strict=True):
        for name, label in lines.items():
            points = [(record["step"], record[name]) for record in records if name in record]
            steps, values = zip(*points, strict=True) if points else ((), ())
            factor = 100 if subject.endswith("%") else 1
            axes.plot(steps, [factor * value for value in values], label=label, marker="." * name.startswith("test/"))
        axes.set(title=subject, xlabel="step", yscale="log" if subject in ("loss", "norms") else "linear")
        axes.grid(alpha=0.3)
        if len(lines) > 1:
            axes.legend(fontsize="small")
    figure.suptitle(title)
    path = workdir / "curves.png"
    figure.savefig(path, dpi=120)
    return path


def plot_speed_up(forecast: Forecast, title: str, path: Path) -> Path:
    """Plots throughput, relative to one worker's, against the number of workers, with a line for each method."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    counts = list(forecast.scaling)
    axes.plot(counts, counts, color="0.7", linestyle=":", label="linear")
    colours = {method: f"C{place}" for place, method in enumerate(forecast.methods)}
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
