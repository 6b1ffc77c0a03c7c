"""A run's curves as a picture."""

from pathlib import Path

from jaxtern.training.metrics import read_metrics


def plot_curves(workdir: Path, title: str) -> Path:
    """Draws loss, accuracy and learning rate of `<workdir>/metrics.jsonl` into `<workdir>/curves.png`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # here, because matplotlib is slow to import
    from matplotlib.figure import Figure

    records = read_metrics(workdir)

    def series(name: str, factor: float = 1.0) -> tuple[list[int], list[float]]:
        chosen = [record for record in records if name in record]
        return [record["step"] for record in chosen], [record[name] * factor for record in chosen]

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
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
