"""Time of one mean of gradients over N hosts of a slow network: every exchange, and torch's on the same links.

    python -m benchmarks.exchange [--hosts 2 4] [--rates 100mbit 1gbit 10gbit] [--elements 2**20 2**23 alexnet]
        [--exchanges float gather sum scatter two_way] [--torch PYTHON] [--json exchange.json] [--plot exchange.png]

Hosts are those of benchmarks/netlab.py: network namespaces on this machine, every link shaped both ways; needs root and
iproute2. Each runs one process a library, over gloo; N hosts together have no more cores than the machine.

Timed is what a training step pays: from local gradients in memory to their mean in memory, after a barrier, until the
slowest host is done; median (and least, most) of the repeats. Gradients are random normal, different on every host:
2**20 elements are one matrix of 1024 x 1024, 2**23 are 8 of them, "alexnet" is the 16 tensors of its one-GPU form.

torch is DistributedDataParallel with a backward pass that does next to nothing, and what that takes by itself, measured
in the same run, is subtracted: plain all-reduce, fp16_compress_hook, and PowerSGD of rank 1, 2 and 4 in its compressed
phase. `pip install torch` in any environment, and give its Python as --torch; the CPU build is enough.

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

All hosts must get the same bits, and the mean must be near the float mean: else the row says so and the status is 1.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax

from benchmarks.exchange_hosts import Team, WorkerError, combine
from benchmarks.exchange_plot import plot
from benchmarks.exchange_worker import count_elements, shapes_of
from benchmarks.kernels import parse_elements
from benchmarks.netlab import Lab, LabError, parse_rate, why_not
from benchmarks.timing import machine
from jaxtern import Ternary
from jaxtern.compression import cost

TORCH = ("all-reduce", "fp16", "PowerSGD 1", "PowerSGD 2", "PowerSGD 4")
START_SECONDS = 300.0  # for a worker to start, compile, and answer
MIN_REPEATS = 5
# Of memory, of one host: a process with its library; for every element gradients, a copy, their mean, words, programs'
# own; torch keeps its gradients while JAX is at work, and the other way round.
PROCESS_BYTES, BYTES_AN_ELEMENT, IDLE_BYTES_AN_ELEMENT = 400 * 10**6, 30, 4

HEADING = """| hosts | rate | elements | library | exchange | ms | min to max | MB sent | bits an element | predicted \
| off by, % | limit ms | ms/limit | over float | over torch | stages, ms |
| ---: | ---: | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |"""


def main() -> None:
    arguments = parse()
    record = {"machine": machine(), "jax": jax.__version__, "torch": arguments.torch_version, "rows": []}
    record |= {"repeats": arguments.repeats}
    save(record, arguments.json)
    say(f"{record['machine']}, {'torch ' + arguments.torch_version if arguments.torch else NO_TORCH}\n\n{HEADING}")
    try:
        for hosts in arguments.hosts:
            for size in arguments.elements:
                for row in measure_size(hosts, size, arguments):
                    record["rows"].append(row)
                    say(as_line(row))
                    save(record, arguments.json)
    except LabError as error:
        print(f"exchange: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    if arguments.plot:
        plot(record, arguments.plot)
    sys.exit(1 if any("error" in row for row in record["rows"]) else 0)


NO_TORCH = "without torch (see --torch)"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rates", nargs="+", default=["100mbit", "1gbit", "10gbit"], help="of every link, both ways")
    parser.add_argument("--elements", nargs="+", default=["2**20", "2**23", "alexnet"], help="of the gradient")
    parser.add_argument("--exchanges", nargs="+", choices=cost.EXCHANGES, default=list(cost.EXCHANGES))
    parser.add_argument("--torch", help="a Python with torch; left out: no rows of torch")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, help="file for the figures, written after every row")
    parser.add_argument("--plot", type=Path, help="file for a figure of time against rate, .png or .svg")
    arguments = parser.parse_args()
    try:
        check(arguments)
    except (ValueError, argparse.ArgumentTypeError) as error:
        parser.error(str(error))
    if reason := why_not():
        parser.error(f"the laboratory {reason}")
    return arguments


def check(arguments: argparse.Namespace) -> None:
    """Refuses what cannot be measured, and completes the rest."""
    for hosts in arguments.hosts:
        if not 2 <= hosts <= 64:
            raise ValueError(f"--hosts={hosts}: must be from 2 to 64")
    for rate in arguments.rates:
        parse_rate(rate)
    if arguments.repeats < MIN_REPEATS:
        raise ValueError(f"--repeats={arguments.repeats}: must be {MIN_REPEATS} or more")
    sizes = [each if each == "alexnet" else str(parse_elements(each)) for each in arguments.elements]
    arguments.elements = list(dict.fromkeys(sizes))
    others = [each for each in cost.EXCHANGES if each in arguments.exchanges and each != "float"]
    arguments.exchanges = ["float"] * (
        "float" in arguments.exchanges
    ) + others  # what others are compared with is first
    arguments.torch_version = torch_version(arguments.torch) if arguments.torch else None
    for path in (arguments.json, arguments.plot):
        if path and (path.is_dir() or not os.access(path.parent, os.W_OK)):
            raise ValueError(f"{path}: cannot be written")


def torch_version(python: str) -> str:
    try:
        command = [python, "-c", "import torch, numpy; print(torch.__version__)"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        raise ValueError(f"--torch={python}: must be a Python with torch and NumPy") from None


def measure_size(hosts: int, size: str, arguments: argparse.Namespace) -> Iterator[dict]:
    """Rows of one number of hosts and one size, rate after rate, in one laboratory."""
    elements = count_elements(shapes_of(size))
    libraries, free = 1 + bool(arguments.torch), available_bytes()
    of_host = libraries * PROCESS_BYTES + (BYTES_AN_ELEMENT + (libraries - 1) * IDLE_BYTES_AN_ELEMENT) * elements
    needed = hosts * of_host
    if needed > free:
        needs = f"needs {needed / 1e9:.0f} GB of memory, {free / 1e9:.0f} are free"
        say(f"\n{hosts} hosts, {elements:,} elements: {needs}\n\n{HEADING}")
        return
    with Lab(hosts) as lab:
        commands = {"jaxtern": [sys.executable, "-m", "benchmarks.exchange_jax", size]}
        if arguments.torch:
            commands["torch"] = [arguments.torch, "-m", "benchmarks.exchange_torch", size]
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
        sizes = tuple(count_elements((shape,)) for shape in shapes_of(row["size"]))
        predicted = cost.step_bits(Ternary(), variant, sizes, (), lab.hosts)
        figures |= {"predicted_bytes": predicted / 8, "predicted_bits_an_element": predicted / elements}
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


def available_bytes() -> int:
    """Memory that the kernel would give."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


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


def say(text: str) -> None:
    print(text, flush=True)


def save(record: dict, path: Path | None) -> None:
    if path:
        path.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
