"""Time of a training step over N hosts of a slow network, or of training to an accuracy: float, ternary, none.

    python -m benchmarks.training [--models lenet cifarnet alexnet] [--hosts 2 4] [--rates 100mbit 1gbit]
        [--batch 32] [--repeats 9] [--json training.json] [--plot training.png]
    python -m benchmarks.training --time_to 0.97 --data_dir FOLDER [--hosts 2] [--rates 100mbit] [--every 20]
        [--torch PYTHON]

Hosts are those of benchmarks.netlab: network namespaces on this machine, every link shaped both ways; needs root
and iproute2. Each runs one process over gloo, jax.distributed joins them, and their devices make a mesh of one axis. N
hosts together have no more cores than the machine: on one of few cores the work takes longer than on N machines, and
what the network costs beside it looks smaller than it is.

A step is the gradient of a host's own batch, its mean by `jaxtern.compressed_mean`, momentum, new weights in the place
of the old: one compiled program. Timed is, after a barrier, until the slowest host has its new weights; median (and
least, most) of the repeats, of which two more come first. Variants:

    none       no mean at all: every host for itself, which is the least that any exchange can come to
    float      the plain mean of float32
    ternary    the fastest of the exact exchanges by the links as `jaxtern.calibrate` finds them
    two_way    the exchange of that name
    delayed    as ternary, where every step exchanges what the step before it sent, beside its own work
    local_10   `jaxtern.local_steps` of ten steps, whose weight changes are ternary; likewise local_30; with --time_to

LeNet has 28x28x1 images, CifarNet 24x24x3, AlexNet 224x224x3: random ones, which lie in memory, as the labels do.
Columns: examples a second of all hosts; time over that of `none`, and speed over that of `float`, of the same
laboratory, model and rate; MB that the busiest host sends a step, from the counters of its interface; what
`jaxtern.wire_report` predicts; and the one over the other, which headers and acknowledgements bring above 1.

After the last step all hosts must have the same weights, but for `none`, and finite losses: else the row says so and
the status is 1.

--time_to trains LeNet on MNIST (FOLDER holds its four idx files) until so much of the test split is right: the same
weights to begin with, the same batches in the same order whatever the variant, of 32 examples a host. The clock runs
while steps do, reading examples included, and stands still in evaluations, every --every steps. --torch adds the same
network, weights and batches in torch, by DistributedDataParallel: as it is, and with its hooks fp16 and PowerSGD.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jax

from benchmarks.commands import at_least, create_parser, output_file, say
from benchmarks.exchange.__main__ import torch_version
from benchmarks.netlab import Lab, LabError, measuring, parse_latency, parse_rate
from benchmarks.netlab.measuring import START_SECONDS, has_memory
from benchmarks.netlab.team import Team, WorkerError, combine
from benchmarks.timing import machine
from benchmarks.training import time_to
from benchmarks.training.plot import plot
from benchmarks.training.step import LOCAL_STEPS, MOMENTUM, RATE, SHAPES, VARIANTS

BATCHES = {"lenet": 32, "cifarnet": 32, "alexnet": 8}  # of a host
MIN_REPEATS = 9
# Of memory, of one host: a process with programs and activations; weights, momentum, gradients, mean and a spare copy.
PROCESS_BYTES, WEIGHTS_BYTES = 800 * 10**6, {"lenet": 10**8, "cifarnet": 10**8, "alexnet": 20 * 61 * 10**6}
STEP_SECONDS = 120.0  # that a step may take without the network, before its host is given up

HEADING = """| hosts | rate | model | batch a host | mean | exchange | ms a step | min to max | examples/s | over none \
| speed over float | MB sent | predicted | ratio |
| ---: | ---: | --- | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"""


def main() -> None:
    arguments = parse()
    record = {"machine": machine(), "jax": jax.__version__, "seed": arguments.seed, "repeats": arguments.repeats}
    record |= {"time_to": arguments.time_to, "latency": arguments.latency}
    to_accuracy = arguments.time_to is not None
    heading, as_text = (time_to.HEADING, time_to.as_line) if to_accuracy else (HEADING, as_line)
    say(f"{record['machine']}\n\n{heading}")
    status = measuring.collect(record, measure_all(arguments), as_text, arguments.json)
    if arguments.plot:
        plot(record, arguments.plot)
    sys.exit(status)


def parse() -> argparse.Namespace:
    parser = create_parser(__doc__)
    parser.add_argument("--models", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--hosts", type=measuring.number_of_hosts, nargs="+", help="default: 2 4; with --time_to 2")
    parser.add_argument("--rates", type=measuring.rate_of_links, nargs="+", help="default: 100mbit 1gbit, or 100mbit")
    parser.add_argument("--latency", help="of links, from host to host, such as 20ms; left out: as short as can be")
    parser.add_argument(
        "--variants",
        nargs="+",
        choices=VARIANTS,
        help="default: those of every step; with --time_to float ternary delayed local_10 local_30",
    )
    parser.add_argument("--batch", type=at_least(1), help="examples of a host; default: 32, of alexnet 8")
    parser.add_argument("--repeats", type=at_least(MIN_REPEATS), default=MIN_REPEATS)
    parser.add_argument("--seed", type=at_least(0), default=0, help="of the weights and the order of examples")
    parser.add_argument("--time_to", type=float, metavar="ACCURACY", help="train to this share, such as 0.97")
    parser.add_argument("--data_dir", help="folder of the idx files of MNIST")
    parser.add_argument("--torch", help="a Python with torch, for --time_to; left out: no rows of torch")
    parser.add_argument("--every", type=at_least(1), default=20, help="steps between evaluations")
    parser.add_argument("--max_steps", type=at_least(1), default=3000, help="after which a run has failed")
    parser.add_argument("--json", type=output_file, help="file for the figures, written after every row")
    parser.add_argument("--plot", type=output_file, help="file for a figure, .png or .svg")
    return measuring.parse(parser, complete)


def complete(arguments: argparse.Namespace) -> None:
    """Refuses what cannot be measured, and completes the rest."""
    to_accuracy = arguments.time_to is not None
    if arguments.latency is not None:
        parse_latency(arguments.latency)
    arguments.hosts = arguments.hosts or ([2] if to_accuracy else [2, 4])
    arguments.rates = arguments.rates or (["100mbit"] if to_accuracy else ["100mbit", "1gbit"])
    of_time_to = ["float", "ternary", "delayed", *LOCAL_STEPS]
    wanted = arguments.variants or (of_time_to if to_accuracy else set(VARIANTS) - set(LOCAL_STEPS))
    if not to_accuracy and set(wanted) & set(LOCAL_STEPS):
        raise ValueError("--variants: local steps are measured with --time_to, as few of them exchange")
    arguments.variants = [each for each in VARIANTS if each in wanted]  # what others are compared with is first
    if arguments.torch:
        if not to_accuracy:
            raise ValueError("--torch: must be given with --time_to")
        torch_version(arguments.torch)
        arguments.variants += time_to.TORCH
    if to_accuracy and not 0 < arguments.time_to <= 1:
        raise ValueError(f"--time_to={arguments.time_to}: must be above 0 and at most 1")
    if to_accuracy != (arguments.data_dir is not None):
        raise ValueError("--data_dir: must be given with --time_to, and only then")
    if arguments.data_dir and not Path(arguments.data_dir).is_dir():
        raise ValueError(f"--data_dir={arguments.data_dir}: must be a folder")


def measure_all(arguments: argparse.Namespace) -> Iterator[dict]:
    """Rows of every number of hosts, in a laboratory of their own."""
    models = ["lenet"] if arguments.time_to is not None else arguments.models
    for hosts in arguments.hosts:
        needed = {model: hosts * (PROCESS_BYTES + WEIGHTS_BYTES[model]) for model in models}
        fitting = [model for model in models if has_memory(needed[model], f"{hosts} hosts, {model}", HEADING)]
        with Lab(hosts, latency=arguments.latency) as lab, tempfile.TemporaryDirectory() as folder:
            own = [str(arguments.seed), *([str(Path(arguments.data_dir).resolve())] if arguments.data_dir else [])]
            team = Team(lab, [sys.executable, "-m", "benchmarks.training.worker", *own], {"JAX_PLATFORMS": "cpu"})
            torch = start_torch(lab, Path(folder), arguments) if arguments.torch else team
            for model in fitting:
                for rate in arguments.rates:
                    yield from measure_rate(lab, team, torch, model, rate, arguments)


def start_torch(lab: Lab, folder: Path, arguments: argparse.Namespace) -> Team:
    """The team of torch, whose threads share the cores."""
    batch = arguments.batch or BATCHES["lenet"]
    most = (arguments.max_steps + arguments.every) * lab.hosts * batch
    time_to.save_task(folder / "task.npz", arguments.data_dir, arguments.seed, most)
    command = [arguments.torch, "-m", "benchmarks.training.torch_worker", str(folder / "task.npz")]
    threads = max(1, len(os.sched_getaffinity(0)) // lab.hosts)
    return Team(lab, [*command, str(RATE), str(MOMENTUM)], {"OMP_NUM_THREADS": str(threads)})


def measure_rate(
    lab: Lab, team: Team, torch: Team, model: str, rate: str, arguments: argparse.Namespace
) -> Iterator[dict]:
    """Rows of one model and rate, until one fails, whose hosts then wait for one that is gone."""
    batch = arguments.batch or BATCHES[model]
    same = {"hosts": lab.hosts, "rate": rate, "model": model, "batch": batch}
    bases: dict[str, float] = {}
    try:
        lab.shape(rate)
        same["network"] = team.ask("calibrate", START_SECONDS)[0]
        for variant in arguments.variants:
            asked = torch if variant in time_to.TORCH else team
            row: dict = same | {"variant": variant} | prepare(lab, asked, same, variant)
            if arguments.time_to is not None:
                yield row | time_to.measure_accuracy(asked, row, arguments)
                continue
            row |= measure_step(team, row, arguments.repeats)
            bases[variant] = row["milliseconds"]
            if "none" in bases:
                row["over_none"] = row["milliseconds"] / bases["none"]
            if "float" in bases:
                row["speed_over_float"] = bases["float"] / row["milliseconds"]
            yield row
    except WorkerError as error:
        raise LabError(f"{model} on {lab.hosts} hosts at {rate}: {error}") from None


def prepare(lab: Lab, team: Team, row: dict, variant: str) -> dict:
    """Compiles a variant while links are fast; what it sends."""
    lab.shape(None)
    answers = team.ask("prepare", 2 * START_SECONDS, model=row["model"], variant=variant, batch=row["batch"])
    lab.shape(row["rate"])
    return {name: answers[0][name] for name in ("exchange", "predicted_bytes", "elements")}


def measure_step(team: Team, row: dict, repeats: int) -> dict:
    """Figures of a variant's steps."""
    wire = 8 * 8 * row["elements"] / parse_rate(row["rate"])  # seconds of a float all-reduce, amply
    timeout = START_SECONDS + (repeats + 2) * (STEP_SECONDS + 4 * wire)
    answers = team.ask("time", timeout, model=row["model"], batch=row["batch"], repeats=repeats)
    figures = combine(answers)
    figures["examples_per_second"] = 1e3 * row["hosts"] * row["batch"] / figures["milliseconds"]
    if row["predicted_bytes"]:
        figures["sent_over_predicted"] = figures["sent_bytes"] / row["predicted_bytes"]
    same = len({answer["digest"] for answer in answers}) == 1
    if not all(answer["is_finite"] for answer in answers):
        figures["error"] = "a loss is not finite"
    elif row["variant"] != "none" and not same:
        figures["error"] = "hosts have different weights"
    return figures | {"same_weights": same}


def as_line(row: dict) -> str:
    figures = [
        row["exchange"],
        f"{row['milliseconds']:.1f}",
        f"{row['min']:.1f} to {row['max']:.1f}",
        f"{row['examples_per_second']:.1f}",
        *(f"{row[name]:.2f}" if name in row else "" for name in ("over_none", "speed_over_float")),
        f"{row['sent_bytes'] / 1e6:.3f}",
        f"{row['predicted_bytes'] / 1e6:.3f}",
        f"{row['sent_over_predicted']:.3f}" if "sent_over_predicted" in row else "",
    ]
    names = f"| {row['hosts']} | {row['rate']} | {row['model']} | {row['batch']} | {row['variant']} "
    error = f" {row['error']}" if "error" in row else ""
    return f"{names}| {' | '.join(figures)} |{error}"


if __name__ == "__main__":
    main()
