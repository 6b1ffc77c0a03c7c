"""Tables and plots of the rows that the study gathered."""

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.accuracy.methods import METHODS
from benchmarks.accuracy.study import Row, run_of
from benchmarks.commands import format_table
from benchmarks.netlab import parse_rate

TEXT = "#808080"
COLORS = [f"C{number}" for number in range(10) if number != 7]  # without gray
RATES = {"100mbit": "100 Mbit/s", "1gbit": "1 Gbit/s"}


class Result(NamedTuple):
    """What the runs of one method and number of workers came to."""

    method: str
    workers: int
    bits: float  # an element, step and worker
    coded_bits: float  # if coded perfectly; NaN where nobody counted
    sent_bytes: float  # a step and worker
    scores: dict[int, float]  # by seed: test accuracy in percent at the last step, or a text's loss in nats
    curve: list[tuple[int, float]]  # step and mean score of all seeds

    @property
    def mean(self) -> float:
        return statistics.mean(self.scores.values())

    @property
    def num_steps(self) -> int:
        return self.curve[-1][0]


def is_text(recipe: str) -> bool:
    """Whether networks are judged by their loss."""
    return recipe == "charlm"


def studies(rows: Iterable[Row]) -> Iterator[tuple[tuple[str, str, str], list[Result]]]:
    """Recipe, optimiser and overrides of each study, and its results, in the order of METHODS.

    Runs of other lengths, as of a recipe that has changed since, are another study.
    """
    rows = list(rows)
    last_step: dict[tuple, int] = {}
    for row in rows:
        last_step[run_of(row)] = max(int(row["step"]), last_step.get(run_of(row), 0))
    found: dict[tuple, dict[tuple, list[Row]]] = {}
    for row in rows:
        own = found.setdefault((row["recipe"], row["optimizer"], row["overrides"], last_step[run_of(row)]), {})
        own.setdefault((int(row["workers"]), list(METHODS).index(row["method"])), []).append(row)
    for (*name, _), own in found.items():
        yield (name[0], name[1], name[2]), [_result(own[key], is_text(name[0])) for key in sorted(own)]


def _result(rows: list[Row], of_text: bool) -> Result:
    column, first = "test_loss" if of_text else "test_accuracy", rows[0]
    steps = sorted({int(row["step"]) for row in rows})
    curve = [(step, statistics.mean(float(row[column]) for row in rows if int(row["step"]) == step)) for step in steps]
    scores = {int(row["seed"]): float(row[column]) for row in rows if int(row["step"]) == steps[-1]}
    bits, coded, sent = (float(first[name] or "nan") for name in ("sent_bits", "coded_bits", "sent_bytes"))
    return Result(first["method"], int(first["workers"]), bits, coded, sent, scores, curve)


def make_tables(rows: Iterable[Row]) -> str:
    """Markdown: a table for each study."""
    return "\n".join(_make_table(name, results) for name, results in studies(rows))


def _make_table(name: Sequence[str], results: list[Result]) -> str:
    digits = 4 if is_text(name[0]) else 2
    score = "loss, nats" if is_text(name[0]) else "accuracy, %"
    table = [["method", "workers", "bits", "coded", "seeds", score, "deviation", "less float", "error"]]
    for result in results:
        numbers = list(result.scores.values())
        deviation = f"{statistics.stdev(numbers):.{digits}f}" if len(numbers) > 1 else ""
        bits = f"{result.bits:.2f}", "" if math.isnan(result.coded_bits) else f"{result.coded_bits:.2f}"
        cells = [METHODS[result.method].label, str(result.workers), *bits, str(len(numbers))]
        table.append([*cells, f"{result.mean:.{digits}f}", deviation, *_beside_float(result, results, digits)])
    num_steps = max(result.num_steps for result in results)
    return f"{' '.join(filter(None, name))}, {num_steps:,} steps\n\n{format_table(table)}"


def _beside_float(result: Result, results: list[Result], digits: int) -> tuple[str, str]:
    """The mean difference to float of the seeds that both have, and its standard error."""
    floats = [each for each in results if (each.method, each.workers) == ("float", result.workers)]
    seeds = [seed for each in floats for seed in each.scores if seed in result.scores]
    if not seeds or result.method == "float":
        return "", ""
    differences = [result.scores[seed] - floats[0].scores[seed] for seed in seeds]
    error = f"{statistics.stdev(differences) / math.sqrt(len(seeds)):.{digits}f}" if len(seeds) > 1 else ""
    return f"{statistics.mean(differences):+.{digits}f}", error


def plot_all(rows: Iterable[Row], step_seconds: dict[str, float], folder: Path) -> None:
    """Draws each study: its scores over bits, and over minutes on slow links where a step's seconds are known.

    Of the studies of one recipe and optimiser the picture is of the one with most methods.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, results in sorted(studies(rows), key=lambda study: len(study[1])):
        seconds = step_seconds.get(name[0])
        counts = [result.workers for result in results]
        workers = sorted({count for count in counts if counts.count(count) > 1})
        if not workers:
            continue  # one method is no comparison
        columns = 1 if seconds is None else 1 + len(RATES)
        figure = create_figure(5.2 * columns, 3.6 * len(workers))
        panels = figure.subplots(len(workers), columns, squeeze=False)
        for count, (first, *others) in zip(workers, panels, strict=True):
            own = [result for result in results if result.workers == count]
            _use_logarithms(first)
            _draw(first, own, [result.bits for result in own], f"bits an element and step, {count} workers", name[0])
            for panel, (rate, label) in zip(others, RATES.items(), strict=False):
                minutes = [minutes_of(result, seconds or 0, rate) for result in own]
                panel.set_xlim(0, 1.15 * max(minutes))
                _draw(panel, own, minutes, f"minutes on links of {label}, {count} workers", name[0])
        figure.savefig(folder / f"{'_'.join(name[:2])}.svg", transparent=True, metadata={"Date": None})


def minutes_of(result: Result, step_seconds: float, rate: str) -> float:
    """Of a whole run: its steps, and what each sends on a link of that rate."""
    return result.num_steps * (step_seconds + 8 * result.sent_bytes / parse_rate(rate)) / 60


def _draw(panel: Any, results: list[Result], costs: list[float], label: str, recipe: str) -> None:
    """Scores over costs, one mark for each seed and one for the mean, and the line of those that none surpasses."""
    sign = -1 if is_text(recipe) else 1
    for number, (result, cost) in enumerate(zip(results, costs, strict=True)):
        color = COLORS[number % len(COLORS)]
        panel.plot([cost] * len(result.scores), result.scores.values(), ".", color=color, alpha=0.45)
        panel.plot([cost], [result.mean], "o", color=color)
    pairs = sorted((cost, sign * result.mean) for result, cost in zip(results, costs, strict=True))
    front = [pair for place, pair in enumerate(pairs) if all(pair[1] > other[1] for other in pairs[:place])]
    panel.plot([cost for cost, _ in front], [sign * score for _, score in front], color=TEXT, linewidth=1, zorder=0)
    panel.margins(0.1, 0.1)
    _label(panel, results, costs)
    panel.set_xlabel(label)
    panel.set_ylabel("test loss, nats" if is_text(recipe) else "test accuracy, %")
    clear(panel)


def _label(panel: Any, results: list[Result], costs: list[float]) -> None:
    """Names the marks, each where it covers the least of the other marks and names; lengths are shares of the panel."""
    places = [(cost, result.mean) for cost, result in zip(costs, results, strict=True)]
    panel.autoscale_view()  # transData waits for it
    marks = panel.transAxes.inverted().transform(panel.transData.transform(places))
    height, letter, gap = 0.055, 0.0165, 0.015
    taken = [(x - gap, y - gap, x + gap, y + gap) for x, y in marks]
    for number, (result, (x, y)) in enumerate(zip(results, marks, strict=True)):
        text, boxes = METHODS[result.method].label, []
        for shift, left in itertools.product((0, 0.6, -0.6, 1.2, -1.2, 1.8, -1.8, 2.4, -2.4), (False, True)):
            start, middle = x - gap - letter * len(text) if left else x + gap, y + shift * height
            box = start, middle - height / 2, start + letter * len(text), middle + height / 2
            outside = max(0, -box[0], -box[1], box[2] - 1, box[3] - 1)
            boxes.append((outside + sum(_overlap(box, other) for other in taken), len(boxes), box, left))
        _, _, box, left = min(boxes)
        taken.append(box)
        side, ends = ("right", box[2]) if left else ("left", box[0])
        style = {"ha": side, "va": "center", "transform": panel.transAxes}
        panel.text(ends, (box[1] + box[3]) / 2, text, color=COLORS[number % len(COLORS)], **style)


def _overlap(one: tuple, other: tuple) -> float:
    """The common area of two boxes: least x and y, greatest x and y."""
    width, height = (min(one[2 + axis], other[2 + axis]) - max(one[axis], other[axis]) for axis in (0, 1))
    return max(width, 0) * max(height, 0)


def _use_logarithms(panel: Any) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
    panel.xaxis.set_major_formatter("{x:g}")
    panel.xaxis.set_minor_locator(NullLocator())


def create_figure(width: float, height: float) -> Any:
    """In inches; can be read on light and dark pages."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams |= {"svg.hashsalt": "jaxtern", "font.size": 10, "text.color": TEXT, "axes.labelcolor": TEXT}
    mpl.rcParams |= {"xtick.color": TEXT, "ytick.color": TEXT, "axes.edgecolor": TEXT}
    return Figure(figsize=(width, height), layout="constrained")


def clear(panel: Any) -> None:
    """A thin grid, and no frame above and to the right."""
    panel.grid(color=TEXT, alpha=0.2)
    panel.spines[["top", "right"]].set_visible(False)
