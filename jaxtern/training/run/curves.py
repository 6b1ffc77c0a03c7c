"""Plots a run's curves."""

from pathlib import Path

from jaxtern.training.run.metrics import read_metrics


def plot_curves(workdir: Path, title: str, loss: str) -> Path:
    """Plots `<workdir>/metrics.jsonl` as `curves.png`: loss (the recipe's) by its parts, accuracy, rate and norms."""
    from matplotlib.figure import Figure  # here, because the import takes a second
    from matplotlib.ticker import LogLocator

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
            factor = 100 if subject.endswith("%") else 1
            steps, values = [step for step, _ in points], [factor * value for _, value in points]
            axes.plot(steps, values, label=label, marker="." * (name.startswith("test/") or len(points) == 1))
        axes.set(title=subject, xlabel="step")
        if subject in ("loss", "norms"):
            axes.set_yscale("log", subs=())  # no ticks between these
            axes.yaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), major_formatter="{x:g}")
        axes.grid(alpha=0.3)
        if len(lines) > 1:
            axes.legend(fontsize="small")
    figure.suptitle(title)
    path = workdir / "curves.png"
    figure.savefig(path, dpi=120)
    return path
