"""How well the planning model foretells what benchmarks.exchange and benchmarks.training have measured.

    python -m benchmarks.exchange --json exchange.json
    python -m benchmarks.training --json training.json
    python -m benchmarks.exchange.plan_error exchange.json [--training training.json]
        [--fit_hosts 2] [--fit_rate 1gbit] [--fit_size 2**23] [--cores 2]

The speed of the codec is fitted at one configuration (by default the fewest hosts, the fastest rate, the largest size)
from the stages of its rows: scales and encode as they are; decode as a line through the exchanges with one row of words
and `gather`, which has as many as hosts; additions of shards as what the stage `wire` of `scatter` and `two_way` takes
beyond the links; those of an all-reduce as what `float` takes beyond them. All else is foretold from the rate that the
link was shaped to, less the headers of full packets (1448 of 1514 bytes carry data), and --latency, and compared.

N hosts of the laboratory share the cores of one machine, each with cores / N threads, but one at least. All are at the
same stage at the same time: so the codec takes max(1, N threads / cores) times what it takes alone, which counts
neither shared caches and memory nor the kernel's own work for the links. What is fitted is divided by its own
configuration's factor.

The stages are of all elements at once; the measured program sends pieces one beside the other. What of the shorter of
codec and wire is hidden behind the longer is fitted too, one number for all: with a core for the codec while another
moves bytes it would be 1, as `jaxtern.plan` has it.

Training steps are foretold from the step of as many hosts without a mean, and the same codec; delayed means are left
out, as these hosts have no core for what would run beside the step.

Rows of the configuration that was fitted are marked with *, and do not count in the median and the worst.
"""

import argparse
import functools
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.commands import at_least, create_parser
from benchmarks.exchange.shapes import count_elements, parse_size, shapes_of
from benchmarks.netlab import parse_rate
from benchmarks.training.step import create_network
from jaxtern import Network
from jaxtern.compression.network.links import maximum
from jaxtern.compression.radix.buckets import BUCKET_SIZE
from jaxtern.compression.radix.exchanges import EXCHANGES
from jaxtern.compression.radix.quantizer import Quantizer
from jaxtern.compression.transform import layout_of
from jaxtern.planning.model import Method, Placement, QuantizerSpeed, predict_step, usual_methods, wire_seconds

PAYLOAD = 1448 / 1514  # of a full Ethernet packet with TCP's time stamps

HEADING = """| hosts | rate | elements | exchange | predicted ms | measured ms | error, % |
| ---: | ---: | ---: | --- | ---: | ---: | ---: |"""


def main() -> None:
    arguments = parse()
    rows = read_rows(arguments.file)
    fitted = [row for row in rows if is_of(row, choose(rows, arguments))]
    try:
        speed = fit(fitted, arguments)
    except ValueError as error:
        print(f"plan_error: {error}", file=sys.stderr)
        sys.exit(2)
    hidden = fit_hidden(fitted, speed, arguments)
    print(f"{name_of(fitted[0])}; ns an element: {as_nanoseconds(speed)}; hidden {hidden:.2f}\n\n{HEADING}")
    compare(rows, fitted, [1e3 * predict(row, speed, arguments, hidden) for row in rows])
    if arguments.training:
        steps = read_steps(arguments.training)
        print(f"\nTraining steps:\n\n{HEADING}")
        exchanges = [1e3 * predict(row, speed, arguments, hidden) for row in steps]
        compare(steps, [], [row["alone"] + more for row, more in zip(steps, exchanges, strict=True)])


def compare(rows: list[dict], fitted: list[dict], milliseconds: list[float]) -> None:
    """Prints what was foretold beside what was measured, and how far they are apart."""
    errors = []
    for row, predicted in zip(rows, milliseconds, strict=True):
        measured, mark = row["milliseconds"], " *" if row in fitted else ""
        error = predicted / measured - 1
        errors += [] if mark else [error]
        what = row.get("model") or f"{row['elements']:,}"
        print(f"| {row['hosts']} | {row['rate']} | {what} | {row['exchange']}{mark} ", end="")
        print(f"| {predicted:.1f} | {measured:.1f} | {100 * error:+.0f} |")
    if errors:
        print(f"\n{summary(errors)}")


def parse() -> argparse.Namespace:
    parser = create_parser(__doc__)
    parser.add_argument("file", type=Path, help="what python -m benchmarks.exchange --json has written")
    parser.add_argument("--training", type=Path, help="what python -m benchmarks.training --json has written")
    parser.add_argument("--fit_hosts", type=int, help="of the configuration that is fitted [the fewest]")
    parser.add_argument("--fit_rate", help="likewise [the fastest]")
    parser.add_argument("--fit_size", type=parse_size, help="likewise, as benchmarks.exchange takes it [the largest]")
    parser.add_argument("--latency", type=float, default=1e-4, help="seconds of a message [%(default)s]")
    parser.add_argument("--cores", type=at_least(1), default=2, help="of the machine of the laboratory [%(default)s]")
    text = "elements that travel together, of the measured program; 0: all [%(default)s]"
    parser.add_argument("--bucket_size", type=int, default=BUCKET_SIZE, help=text)
    arguments = parser.parse_args()
    try:
        read_rows(arguments.file)
        assert not arguments.training or read_steps(arguments.training), "holds no steps with a mean"
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        parser.error(f"{arguments.file}{' or ' if arguments.training else ''}{arguments.training or ''}: {error}")
    if not read_rows(arguments.file):
        parser.error(f"{arguments.file}: has no rows of jaxtern")
    if arguments.latency < 0:
        parser.error(f"--latency={arguments.latency}: must be 0 or more")
    return arguments


def read_rows(path: Path) -> list[dict]:
    """Those of jaxtern that were measured, of the float mean and of ternary words."""
    rows = json.loads(path.read_text())["rows"]
    rows = [row for row in rows if row["library"] == "jaxtern" and "milliseconds" in row and "error" not in row]
    return [row for row in rows if row["exchange"] in ("float", *EXCHANGES)]


def read_steps(path: Path) -> list[dict]:
    """Training steps with a mean that is not delayed, each with the milliseconds of one without (`alone`)."""
    rows = [row for row in json.loads(path.read_text())["rows"] if "milliseconds" in row and "error" not in row]
    alone = {place_of(row): row["milliseconds"] for row in rows if row["variant"] == "none"}
    kept = [row for row in rows if row["variant"] not in ("none", "delayed")]
    return [row | {"alone": alone[place_of(row)]} for row in kept if place_of(row) in alone]


def place_of(row: dict) -> tuple:
    return row["hosts"], row["rate"], row["model"]


def choose(rows: list[dict], arguments: argparse.Namespace) -> dict[str, Any]:
    """The configuration to be fitted."""
    hosts = arguments.fit_hosts or min(row["hosts"] for row in rows)
    rows = [row for row in rows if row["hosts"] == hosts] or rows
    rate = arguments.fit_rate or max((row["rate"] for row in rows), key=parse_rate)
    rows = [row for row in rows if row["rate"] == rate] or rows
    size = arguments.fit_size or max(rows, key=lambda row: row["elements"])["size"]
    return {"hosts": hosts, "rate": rate, "elements": count_elements(shapes_of(size))}


def is_of(row: dict, configuration: dict[str, Any]) -> bool:
    return all(row[name] == value for name, value in configuration.items())


def fit(rows: list[dict], arguments: argparse.Namespace) -> QuantizerSpeed:
    """The speed of one host alone by the stages of one configuration's rows.

    Raises:
      ValueError: if an exchange is missing there.
    """
    of = {row["exchange"]: row for row in rows}
    if missing := {"float", "gather", "scatter", "two_way"} - set(of):
        raise ValueError(f"no rows of {', '.join(sorted(missing))} in the configuration to be fitted")
    hosts, elements = rows[0]["hosts"], rows[0]["elements"]

    def stage(name: str, *exchanges: str) -> float:
        return statistics.median(of[each]["stages"][name] for each in exchanges) / 1e3 / elements

    def beyond_links(exchange: str, milliseconds: float, scales: float = 0.0) -> float:
        return max(0.0, milliseconds / 1e3 - wire(of[exchange], arguments) + scales) / elements

    codecs = [name for name in of if name != "float"]
    own_scales = links(rows[0], arguments).seconds(maximum(len(sizes_of(rows[0])), hosts))
    one_row, many_rows = stage("decode", "scatter", "two_way"), stage("decode", "gather")
    row = max(0.0, (many_rows - one_row) / (hosts - 1))
    speed = QuantizerSpeed(
        flatten=0.0,  # the measured program works on the tensors where they lie
        scales=max(0.0, stage("scales", *codecs) - own_scales / elements),
        encode=stage("encode", *codecs),
        decode=max(0.0, one_row - row),
        decode_row=row,
        sum_row=beyond_links("scatter", of["scatter"]["stages"]["wire"], own_scales),
        mean_row=beyond_links("two_way", of["two_way"]["stages"]["wire"], own_scales),
        add=beyond_links("float", of["float"]["milliseconds"]) * hosts / (hosts - 1),
    )
    return scaled(speed, 1 / sharing(hosts, arguments))


def fit_hidden(rows: list[dict], speed: QuantizerSpeed, arguments: argparse.Namespace) -> float:
    """The median over the compressed exchanges of one configuration."""
    found = []
    for row in rows:
        least, most = (1e3 * predict(row, speed, arguments, hidden) for hidden in (1.0, 0.0))
        if row["exchange"] != "float" and most > least:
            found.append(min(1.0, max(0.0, (most - row["milliseconds"]) / (most - least))))
    return statistics.median(found) if found else 1.0


def sizes_of(row: dict) -> tuple[int, ...]:
    """Elements of each tensor."""
    if "model" in row:
        return sizes_of_model(row["model"])
    return tuple(count_elements((shape,)) for shape in shapes_of(row["size"]))


@functools.cache
def sizes_of_model(name: str) -> tuple[int, ...]:
    params = jax.eval_shape(lambda: create_network(name, seed=0)[1])
    return tuple(leaf.size for leaf in jax.tree.leaves(params))


def links(row: dict, arguments: argparse.Namespace) -> Network:
    return Network(arguments.latency, parse_rate(row["rate"]) / 8 * PAYLOAD)


def wire(row: dict, arguments: argparse.Namespace) -> float:
    return wire_seconds(method(row, QuantizerSpeed(), None), Placement(row["hosts"]), links(row, arguments))


def method(row: dict, speed: QuantizerSpeed, bucket_size: int | None) -> Method:
    layout = layout_of([jax.ShapeDtypeStruct((size,), jnp.float32) for size in sizes_of(row)])
    return usual_methods(Quantizer(), layout, 0, speed, bucket_size)[row["exchange"]]


def sharing(hosts: int, arguments: argparse.Namespace) -> float:
    """Times as long that one of so many hosts on the machine takes, with the threads that benchmarks.exchange gives."""
    return max(1.0, hosts * max(1, arguments.cores // hosts) / arguments.cores)


def scaled(speed: QuantizerSpeed, factor: float) -> QuantizerSpeed:
    return QuantizerSpeed(**{name: value * factor for name, value in vars(speed).items()})


def predict(row: dict, speed: QuantizerSpeed, arguments: argparse.Namespace, hidden: float) -> float:
    """Seconds."""
    own = scaled(speed, sharing(row["hosts"], arguments))
    placement = Placement(row["hosts"])
    found = method(row, own, arguments.bucket_size or None)
    return predict_step(found, placement, links(row, arguments), 0.0, hidden=hidden).total


def name_of(row: dict) -> str:
    return f"fitted at {row['hosts']} hosts, {row['rate']}, {row['elements']:,} elements"


def as_nanoseconds(speed: QuantizerSpeed) -> str:
    return ", ".join(f"{name} {1e9 * value:.3f}" for name, value in vars(speed).items())


def summary(errors: list[float]) -> str:
    sizes = sorted(abs(error) for error in errors)
    within = sum(size <= 0.2 for size in sizes)
    return (
        f"{len(sizes)} foretold: median error {100 * statistics.median(sizes):.0f} %, worst {100 * sizes[-1]:.0f} %,"
        f" within 20 %: {within}"
    )


if __name__ == "__main__":
    main()
