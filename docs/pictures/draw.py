"""The drawings of docs/how_it_works.md: `python docs/pictures/draw.py` writes them beside itself.

Grey text and coloured boxes, without a background: they can be read on light and dark pages.
"""

from pathlib import Path

import jax
import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from jaxtern.kernels import derive_key, rotate

FOLDER = Path(__file__).parent
GREY, BLUE, ORANGE, GREEN, PURPLE = "#808080", "#2a78b8", "#b9651b", "#2b8557", "#7a62b8"
WORKERS = BLUE, ORANGE, GREEN, PURPLE


class Drawing:
    """An SVG that grows by boxes, labels and arrows."""

    def __init__(self, width: int, height: int):
        self.size, self.parts = (width, height), []

    def box(self, x: float, y: float, width: float, height: float, text: str, color: str) -> None:
        self.parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" fill="{color}"/>')
        lines = text.split("\n")
        for number, line in enumerate(lines):
            place = y + height / 2 + 5 + 17 * (number - (len(lines) - 1) / 2)
            self.label(x + width / 2, place, line, "#ffffff", "middle")

    def label(self, x: float, y: float, text: str, color: str = GREY, anchor: str = "start") -> None:
        self.parts.append(f'<text x="{x}" y="{y}" fill="{color}" text-anchor="{anchor}">{text}</text>')

    def arrow(self, x1: float, y1: float, x2: float, y2: float, color: str = GREY) -> None:
        line = f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{color}" stroke-width="1.6"'
        self.parts.append(f'{line} marker-end="url(#{color[1:]})"/>')

    def save(self, name: str) -> None:
        width, height = self.size
        markers = "".join(
            f'<marker id="{color[1:]}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
            f' orient="auto"><path d="M0 0L8 4L0 8z" fill="{color}"/></marker>'
            for color in (GREY, *WORKERS)
        )
        size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}'
        style = ' font-family="DejaVu Sans, Verdana, sans-serif" font-size="14">'
        text = "\n".join([head + style, f"<defs>{markers}</defs>", *self.parts, "</svg>\n"])
        (FOLDER / name).write_text(text)


def draw_way() -> None:
    """What happens to a gradient."""
    drawing, width = Drawing(790, 210), 122
    there = "gradient", "rotate", "scale", "round with\na dither", "pack into\nwords"
    back = "mean of all", "rotate back", "times scale", "take the\ndither off", "add the\ndigits"
    for row, (texts, y, color) in enumerate([(there, 20, BLUE), (back, 140, GREEN)]):
        for place, text in enumerate(texts):
            x = 4 + place * 150
            drawing.box(x, y, width, 48, text, color if place else GREY)
            if place < 4:
                ends = (x + width + 3, x + 147) if row == 0 else (x + 147, x + width + 3)
                drawing.arrow(ends[0], y + 24, ends[1], y + 24)
    drawing.arrow(665, 71, 665, 136, ORANGE)
    drawing.label(655, 124, "exchange of words: the only large message", ORANGE, "end")
    drawing.label(365, 96, "maximum of all workers: a small message", ORANGE, "middle")
    drawing.arrow(365, 83, 365, 71, ORANGE)
    drawing.save("way_of_a_gradient.svg")


def draw_words() -> None:
    """Digits of two workers in radix 5, whose words add without a carry."""
    drawing = Drawing(700, 200)
    rows = [("worker 0", [1, -1, 0, 1, 0], BLUE), ("worker 1", [1, 0, -1, 1, -1], ORANGE)]
    total = [sum(pair) for pair in zip(rows[0][1], rows[1][1], strict=True)]
    for number, (name, trits, color) in enumerate([*rows, ("sum", total, GREEN)]):
        y, offset = 14 + number * 62, 2 if name == "sum" else 1
        drawing.label(4, y + 26, name, color)
        for place, trit in enumerate(trits):
            drawing.box(84 + place * 70, y, 62, 40, f"{trit:+d} → {trit + offset}".replace("+0", "0"), color)
        word = 0
        for trit in reversed(trits):
            word = 5 * word + trit + offset
        drawing.label(448, y + 26, f"one word, radix 5:  {word:,}", color)
    drawing.label(92, 196, "each digit of the sum is 0 to 4, so nothing carries into the next one")
    drawing.save("words.svg")


def draw_scatter() -> None:
    """Each worker adds one shard, and sends its sums to all."""
    drawing = Drawing(700, 250)
    for worker, color in enumerate(WORKERS):
        y = 34 + worker * 54
        drawing.label(2, y + 21, f"worker {worker}", color)
        for shard in range(4):
            drawing.box(76 + shard * 36, y, 33, 32, str(shard), color)
        drawing.box(330, y, 96, 32, f"sum of {worker}", color)
        for shard, own in enumerate(WORKERS):
            drawing.box(552 + shard * 36, y, 33, 32, str(shard), own)
        for other in range(4):
            drawing.arrow(224, 50 + other * 54, 325, y + 16 + 4 * (other - 1.5), WORKERS[other])
            drawing.arrow(430, y + 16, 546, 50 + other * 54 + 4 * (worker - 1.5), color)
    drawing.label(146, 18, "words, radix 3", GREY, "middle")
    drawing.label(276, 18, "all-to-all", GREY, "middle")
    drawing.label(488, 18, "all-gather", GREY, "middle")
    drawing.label(622, 18, "words, radix 2N + 1", GREY, "middle")
    drawing.save("scatter.svg")


def draw_rotation() -> None:
    """A gradient of long tails before and after its rotation."""
    mpl.rcParams |= {"svg.hashsalt": "jaxtern", "font.size": 10, "text.color": GREY, "axes.labelcolor": GREY}
    mpl.rcParams |= {"xtick.color": GREY, "ytick.color": GREY, "axes.edgecolor": GREY, "axes.titlecolor": GREY}
    random = np.random.default_rng(0)
    before = (random.standard_t(3, 2**18) / np.sqrt(3)).astype(np.float32)
    (after,) = rotate([jax.numpy.asarray(before)], derive_key(0, 0, 0), implementation="reference")
    figure = Figure(figsize=(7.6, 2.5), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for panel, values, color, title in zip(
        panels, (before, np.asarray(after)), (ORANGE, BLUE), ("as it is", "rotated"), strict=True
    ):
        largest = np.abs(values).max() / values.std()
        panel.hist(values / values.std(), bins=120, range=(-12, 12), color=color, log=True)
        panel.set_title(f"{title}: the largest element is {largest:.0f} deviations", fontsize=10)
        panel.set_xlabel("deviations")
        panel.spines[["top", "right"]].set_visible(False)
        for level in (-1.7, 0, 1.7):
            panel.axvline(level, color=GREY, linewidth=0.8, linestyle="--")
    panels[0].set_ylabel("elements")
    figure.savefig(FOLDER / "rotation.svg", transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    draw_way()
    draw_words()
    draw_scatter()
    draw_rotation()
