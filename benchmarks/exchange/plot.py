"""The figure of benchmarks.exchange: time against rate, a panel for every number of hosts and size.

    python -m benchmarks.exchange.plot exchange.json [MORE.json ...] --plot exchange.png [--size alexnet] [--hosts 2 4]

Draws what several runs have written, and prints one table of them, shorter than that of the runs.
"""

import json
import sys
from pathlib import Path

from benchmarks.commands import create_parser, output_file
from benchmarks.netlab import parse_rate

COLORS = {
    "jaxtern": ("#000000", "#0072B2", "#56B4E9", "#009E73", "#CC79A7"),
    "torch": ("#777777", "#E69F00", "#D55E00"),
}
MARKERS = {"jaxtern": "o", "torch": "^"}
FAR_FROM_LIMIT = 40  # times: what takes so much longer than its bytes is not told by them
HEADING = """| hosts | rate | elements | exchange | ms | bits an element | over the limit | over `float` | over torch |
| ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |"""


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("files", type=Path, nargs="+", help="what python -m benchmarks.exchange --json has written")
    parser.add_argument("--plot", type=output_file, required=True, help="file of the figure, .png or .svg")
    parser.add_argument("--size", help="only that of --elements of benchmarks.exchange")
    parser.add_argument("--hosts", type=int, nargs="+", help="only so many")
    arguments = parser.parse_args()
    try:
        rows = [row for file in arguments.files for row in json.loads(file.read_text())["rows"]]
        rows = [row for row in rows if arguments.size in (None, row["size"])]
        rows = [row for row in rows if not arguments.hosts or row["hosts"] in arguments.hosts]
        rows = [row for row in rows if "milliseconds" in row]
        if not rows:
            raise ValueError("no such rows")
        plot(rows, arguments.plot)
    except (OSError, ValueError, KeyError) as error:
        print(f"plot: {error}", file=sys.stderr)
        sys.exit(2)
    rows.sort(key=lambda row: (row["hosts"], parse_rate(row["rate"]), row["elements"]))
    print(HEADING, *map(as_line, rows), sep="\n")


def as_line(row: dict) -> str:
    """Of the table; of torch's exchanges with its name."""
    name = f"`{row['exchange']}`" if row["library"] == "jaxtern" else f"torch {row['exchange']}"
    speeds = [f"{row[each]:.1f}" if each in row else "" for each in ("speed_over_float", "speed_over_torch")]
    figures = [f"{row['milliseconds']:,.1f}", f"{row['bits_an_element']:.2f}", f"{row['over_limit']:.2f}", *speeds]
    rate = row["rate"].replace("mbit", " Mbit/s").replace("gbit", " Gbit/s")
    return f"| {row['hosts']} | {rate} | {row['elements'] / 1e6:.1f} M | {name} | {' | '.join(figures)} |"


def plot(rows: list[dict], path: Path) -> None:
    """Draws all rows that have figures; a thin line is the wire's limit of the exchange of that colour."""
    from matplotlib.figure import Figure

    hosts, sizes = sorted({row["hosts"] for row in rows}), sorted({row["elements"] for row in rows})
    figure = Figure(figsize=(4.2 * len(sizes) + 2.2, 3.6 * len(hosts)), layout="constrained")
    panels = figure.subplots(len(hosts), len(sizes), squeeze=False, sharex=True)
    styles = make_styles(rows)
    for i, count in enumerate(hosts):
        for j, elements in enumerate(sizes):
            own = [row for row in rows if (row["hosts"], row["elements"]) == (count, elements)]
            draw(panels[i][j], own, styles)
            panels[i][j].set_title(f"{count} hosts, {elements / 1e6:.1f} M elements", fontsize=10)
            if j == 0:
                panels[i][j].set_ylabel("ms")
            if i == len(hosts) - 1:
                panels[i][j].set_xlabel("Mbit/s")
    handles, labels = [], []
    for panel in panels.flat:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            if label not in labels:
                handles.append(handle)
                labels.append(label)
    handles.append(panels[0][0].plot([], [], color="#999999", linewidth=0.8, linestyle=":")[0])
    figure.legend(handles, [*labels, "limit of the wire"], loc="outside right upper", fontsize=8, frameon=False)
    figure.savefig(path, dpi=150)


def make_styles(rows: list[dict]) -> dict[tuple[str, str], tuple[str, str]]:
    """Colour and line of every library's exchange; from the palette's end on, dashed."""
    styles = {}
    for library, colors in COLORS.items():
        names = list(dict.fromkeys(row["exchange"] for row in rows if row["library"] == library))
        for i, name in enumerate(names):
            styles[library, name] = colors[i % len(colors)], "--" if i >= len(colors) else "-"
    return styles


def draw(panel, rows: list[dict], styles: dict[tuple[str, str], tuple[str, str]]) -> None:
    for (library, exchange), (color, line) in styles.items():
        own = [row for row in rows if (row["library"], row["exchange"]) == (library, exchange)]
        own.sort(key=lambda row: parse_rate(row["rate"]))
        if not own:
            continue
        rates = [parse_rate(row["rate"]) / 1e6 for row in own]
        label = f"{library} {exchange}"
        panel.plot(rates, [row["milliseconds"] for row in own], line, marker=MARKERS[library], color=color,
                   label=label, markersize=4, linewidth=1.4)  # fmt: skip
        if max(row["over_limit"] for row in own) < FAR_FROM_LIMIT:
            panel.plot(rates, [row["limit"] for row in own], ":", color=color, linewidth=0.8)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.grid(visible=True, which="major", alpha=0.3)


if __name__ == "__main__":
    main()
