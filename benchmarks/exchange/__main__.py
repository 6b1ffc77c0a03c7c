"""Time of one mean of gradients over N hosts of a slow network: every method, and torch's on the same links.

    python -m benchmarks.exchange [--hosts 2 4] [--rates 100mbit 1gbit 10gbit] [--elements 2**20 2**23 alexnet]
        [--exchanges float gather sum scatter two_way float16 "low_rank 1" ...] [--torch PYTHON] [--json exchange.json]

Hosts are those of benchmarks.netlab: network namespaces on this machine, every link shaped both ways; needs root and
iproute2. Each runs one process a library, over gloo; N hosts together have no more cores than the machine.

Timed is what a training step pays: from local gradients in memory to their mean in memory, after a barrier, until the
slowest host is done; median (and least, most) of the repeats. Gradients are random normal, different on every host:
2**20 elements are one matrix of 1024 x 1024, 2**23 are 8 of them, "alexnet" is the 16 tensors of its one-GPU form.

torch is DistributedDataParallel with a backward pass that does next to nothing, and what that takes by itself, measured
in the same run, is subtracted: plain all-reduce, fp16_compress_hook, and PowerSGD of rank 1, 2 and 4 in its compressed
phase. `pip install torch` in any environment, and give its Python as --torch; the CPU build is enough.

jaxtern's are its float mean in 32 and 16 bits, ternary words by every exchange, and low rank, top-k and signs with
their error feedback, whose state is donated as a training step would.

Columns: MB that the busiest host sends, from the counters of its interface, and the same as bits an element; what
jaxtern predicts, and how far what was sent is from it, in per cent, the headers of Ethernet, IP and TCP taken off every
packet that the interface counted; the wire's limit, which is the bytes of the busiest host, sent or received, over the
rate; ms over that limit; speed over jaxtern's own `float`, and over torch's plain all-reduce, of the same laboratory,
rate and size. Interfaces of fast links count the headers of a segmented packet once, while the link charges all, so a
transfer at full rate takes up to 1.045 times the limit; and a link that was idle lets 0.75 ms of its rate pass at once,
so the shortest may take less. Stages are programs of their own, in the same run: all in one program may be faster, as
XLA fuses them.

Over gloo an all-to-all takes 1.3 to 1.7 times its limit, and so does an all-gather of two: perhaps because gloo asks
for data and sends it over one connection, where a request may wait behind what is being sent.

All hosts must get the same bits, and the mean must be near the float mean, or of the biased methods point its way: else
the row says so and the status is 1.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator

import jax

from benchmarks.commands import at_least, create_parser, output_file, say
from benchmarks.exchange.methods import METHODS, create_reducer, tensors_of
from benchmarks.exchange.shapes import count_elements, parse_size, shapes_of
from benchmarks.netlab import Lab, measuring, parse_rate
from benchmarks.netlab.measuring import START_SECONDS, has_memory
from benchmarks.netlab.team import Team, WorkerError, combine
from benchmarks.timing import machine
from jaxtern.compression.transform import layout_of

TORCH = ("all-reduce", "fp16", "PowerSGD 1", "PowerSGD 2", "PowerSGD 4")
MIN_REPEATS = 5
# Of memory, of one host: a process with its library; for every element gradients, a copy, their mean, words, programs'
# own; torch keeps its gradients while JAX is at work, and the other way round.
PROCESS_BYTES, BYTES_AN_ELEMENT, IDLE_BYTES_AN_ELEMENT = 400 * 10**6, 40, 4

HEADING = """| hosts | rate | elements | library | exchange | ms | min to max | MB sent | bits an element | predicted \
| off by, % | limit ms | ms/limit | over float | over torch | stages, ms |
| ---: | ---: | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |"""


def main() -> None:
    arguments = parse()
    torch = f"torch {arguments.torch_version}" if arguments.torch else "without torch (see --torch)"
    record = {"machine": machine(), "jax": jax.__version__, "torch": arguments.torch_version}
    record |= {"repeats": arguments.repeats}
    say(f"{record['machine']}, {torch}\n\n{HEADING}")
    sys.exit(measuring.collect(record, measure_all(arguments), as_line, arguments.json))


def parse() -> argparse.Namespace:
    parser, rates = create_parser(__doc__), ["100mbit", "1gbit", "10gbit"]
    parser.add_argument("--hosts", type=measuring.number_of_hosts, nargs="+", default=[2, 4])
    parser.add_argument("--rates", type=measuring.rate_of_links, nargs="+", default=rates, help="of links, both ways")
    parser.add_argument(
        "--elements", type=parse_size, nargs="+", default=[str(2**20), str(2**23), "alexnet"], help="of the gradient"
    )
    parser.add_argument("--exchanges", nargs="+", choices=METHODS, default=list(METHODS), help="rows of jaxtern")
    parser.add_argument("--torch", help="a Python with torch; left out: no rows of torch")
    parser.add_argument("--repeats", type=at_least(MIN_REPEATS), default=7)
    parser.add_argument("--json", type=output_file, help="file for the figures, written after every row")
    return measuring.parse(parser, complete)


def complete(arguments: argparse.Namespace) -> None:
    """Orders what is to be measured, and asks for torch's version."""
    arguments.elements = list(dict.fromkeys(arguments.elements))
    given = set(arguments.exchanges)  # what others are compared with is first
    arguments.exchanges = [each for each in METHODS if each in given]
    arguments.torch_version = torch_version(arguments.torch) if arguments.torch else None


def torch_version(python: str) -> str:
    try:
        command = [python, "-c", "import torch, numpy; print(torch.__version__)"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        raise ValueError(f"--torch={python}: must be a Python with torch and NumPy") from None


def measure_all(arguments: argparse.Namespace) -> Iterator[dict]:
    """Rows of every number of hosts and size."""
    for hosts in arguments.hosts:
        for size in arguments.elements:
            yield from measure_size(hosts, size, arguments)


def measure_size(hosts: int, size: str, arguments: argparse.Namespace) -> Iterator[dict]:
    """Rows of one number of hosts and one size, rate after rate, in one laboratory."""
    elements = count_elements(shapes_of(size))
    libraries = 1 + bool(arguments.torch)
    of_host = libraries * PROCESS_BYTES + (BYTES_AN_ELEMENT + (libraries - 1) * IDLE_BYTES_AN_ELEMENT) * elements
    if not has_memory(hosts * of_host, f"{hosts} hosts, {elements:,} elements", HEADING):
        return
    with Lab(hosts) as lab:
        commands = {"jaxtern": [sys.executable, "-m", "benchmarks.exchange.jax_worker", size]}
        if arguments.torch:
            commands["torch"] = [arguments.torch, "-m", "benchmarks.exchange.torch_worker", size]
        cores = max(1, len(os.sched_getaffinity(0)) // hosts)
        env = {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": str(cores)}
        teams = {library: Team(lab, command, env) for library, command in commands.items()}
        for rate in arguments.rates:
            yield from measure_rate(lab, teams, rate, size, arguments)


def measure_rate(
    lab: Lab, teams: dict[str, Team], rate: str, size: str, arguments: argparse.Namespace
) -> Iterator[dict]:
    """Rows of one rate; what the others are compared with comes first."""
    variants = [("jaxtern", exchange) for exchange in arguments.exchanges]
    if "torch" in teams:
        first = variants.index(("jaxtern", "float")) + 1 if ("jaxtern", "float") in variants else 0
        variants[first:first] = [("torch", TORCH[0])]
        variants += [("torch", name) for name in TORCH[1:]]
    bases: dict[str, float] = {}
    failed: set[str] = set()
    for library, variant in variants:
        if library in failed:
            continue
        row = {"hosts": lab.hosts, "rate": rate, "size": size, "library": library, "exchange": variant}
        row["elements"] = count_elements(shapes_of(size))
        try:
            row |= measure_variant(lab, teams[library], row, arguments.repeats)
        except WorkerError as error:
            row["error"] = str(error).replace("|", "/")
            failed.add(library)  # its hosts wait for one that is gone
            yield row
            continue
        if variant in ("float", TORCH[0]):
            bases[library] = row["milliseconds"]
        for library_of_base, name in (("jaxtern", "speed_over_float"), ("torch", "speed_over_torch")):
            if library_of_base in bases:
                row[name] = bases[library_of_base] / row["milliseconds"]
        yield row


def measure_variant(lab: Lab, team: Team, row: dict, repeats: int) -> dict:
    """Figures of one exchange at one rate; made ready while links are fast."""
    variant, elements, bits = row["exchange"], row["elements"], parse_rate(row["rate"])
    lab.shape(None)
    arguments = {"variant": variant} | ({"bytes_a_second": bits / 8} if row["library"] == "jaxtern" else {})
    prepared = team.ask("prepare", START_SECONDS + elements * lab.hosts * 1e-6, **arguments)
    lab.shape(row["rate"])
    slow = 64 * elements / bits + elements * lab.hosts * 1e-7 + 1  # seconds of a float all-reduce, amply
    figures = combine(team.ask("time", START_SECONDS + 12 * (repeats + 1) * slow, variant=variant, repeats=repeats))
    team.ask("drop", START_SECONDS, variant=variant)
    figures["bits_an_element"] = 8 * figures["sent_bytes"] / elements
    figures["limit"] = 1e3 * 8 * figures["busiest_bytes"] / bits
    figures["over_limit"] = figures["milliseconds"] / figures["limit"]
    if row["library"] == "jaxtern":
        layout = layout_of(tensors_of(shapes_of(row["size"])))
        predicted = create_reducer(variant).traffic(layout, lab.hosts).bytes
        figures |= {"predicted_bytes": predicted, "predicted_bits_an_element": 8 * predicted / elements}
        figures["payload_over_predicted"] = figures["payload_bytes"] / figures["predicted_bytes"]
    return figures | problems(prepared, must_agree=row["library"] == "jaxtern")


def problems(prepared: list[dict], must_agree: bool) -> dict:
    """What is wrong with the mean, if it was checked now; hook by hook, torch may differ between hosts."""
    if "digest" not in prepared[0]:
        return {}
    same = len({answer["digest"] for answer in prepared}) == 1
    found = {"same_bits": same, **{name: prepared[0][name] for name in ("slope", "spread") if name in prepared[0]}}
    if must_agree and not same:
        found["error"] = "hosts have different bits"
    elif not all(answer["is_plausible"] for answer in prepared):
        found["error"] = f"far from the float mean: slope {found['slope']:.3f}, spread {found['spread']:.3g}"
    return found


def as_line(row: dict) -> str:
    names = f"| {row['hosts']} | {row['rate']} | {row['elements']:,} | {row['library']} | {row['exchange']} "
    if "error" in row:
        return names + f"| {row['error']} |" + " |" * 10
    predicted = f"{row['predicted_bits_an_element']:.3f}" if "predicted_bits_an_element" in row else ""
    off = f"{100 * (row['payload_over_predicted'] - 1):+.2f}" if "payload_over_predicted" in row else ""
    speeds = [f"{row[name]:.2f}" if name in row else "" for name in ("speed_over_float", "speed_over_torch")]
    stages = row.get("stages", {})
    total = " + ".join(f"{name} {value:.1f}" for name, value in stages.items() if value)
    figures = [
        f"{row['milliseconds']:.1f}",
        f"{row['min']:.1f} to {row['max']:.1f}",
        f"{row['sent_bytes'] / 1e6:.3f}",
        f"{row['bits_an_element']:.3f}",
        predicted,
        off,
        f"{row['limit']:.1f}",
        f"{row['over_limit']:.2f}",
        *speeds,
        f"{total} = {sum(stages.values()):.1f}" if stages else "",
    ]
    return f"{names}| {' | '.join(figures)} |"


if __name__ == "__main__":
    main()
