"""python -m jaxtern.plan --config=RECIPE | --parameters=61M: predicts the time of a step on a cluster, by method.

    python -m jaxtern.plan --parameters=61M --hosts=8 --rate=1gbit --step_seconds=0.25
    python -m jaxtern.plan --config=mnist --config.data.dir=FOLDER --hosts=4 --rate=100mbit

It prints the seconds of compute, codec, wire and the whole step on the cluster for the float mean, each exchange of
radix words, and the recipe's own method; then the step time and the speed-up over one worker for 1 to 1,024 workers,
each with the same number of examples; and which method to take. A worker is a device; "hierarchical" averages the
gradients of a host's devices as floats first, and exchanges between hosts. Only the recipe's step without exchange, and
the codec, are run, on this machine.
"""

import dataclasses
import math
import re
import sys
from pathlib import Path
from typing import NamedTuple

from absl import flags

from jaxtern import command_line

with command_line.loading(__name__):
    import jax
    import jax.numpy as jnp

    from jaxtern import recipe_flags
    from jaxtern.compression.fragments import Timing, as_timing
    from jaxtern.compression.network.links import Network
    from jaxtern.compression.radix.buckets import BUCKET_SIZE
    from jaxtern.compression.radix.quantizer import Quantizer
    from jaxtern.compression.reducer import Layout, Reducer
    from jaxtern.compression.transform import layout_of
    from jaxtern.data.json_files import read_json
    from jaxtern.planning.forecast import Forecast, Scenario, seconds
    from jaxtern.planning.model import INSIDE_HOST, Method, QuantizerSpeed, measured_method, usual_methods
    from jaxtern.planning.speed import measure_quantizer_speed, measure_reduce_seconds
    from jaxtern.training.recipe.mean import MeanSection
    from jaxtern.training.run.inputs import open_inputs
    from jaxtern.training.run.workload import measure_step_seconds, read_workload

PARAMETERS = flags.DEFINE_string("parameters", None, "size of a gradient of one tensor: 61_000_000, 61M or 250k")
HOSTS = flags.DEFINE_integer("hosts", 2, "number of hosts", lower_bound=1)
DEVICES = flags.DEFINE_integer("devices_per_host", 1, "devices of each host", lower_bound=1)
RATE = flags.DEFINE_string("rate", None, "bandwidth of a host's link: 1gbit, 100mbit, or bytes a second [1gbit]")
LATENCY = flags.DEFINE_string("latency", None, "of a message, over gloo as of a ping: 100us, 1ms, or seconds [100us]")
FAST_RATE = flags.DEFINE_string("fast_rate", "80gbit", "bandwidth of the links between a host's devices")
NETWORK = flags.DEFINE_string("network", None, "network.json of a run, or the run's folder, for latency and rate")
STEP_SECONDS = flags.DEFINE_string("step_seconds", None, "time of a step without exchange [a recipe's is measured]")
CODEC = flags.DEFINE_bool("codec", True, "whether compression takes time, which is measured on this machine")
OVERLAP = flags.DEFINE_bool(
    "overlap", None, "whether messages travel during the computation [recipe's mean.delayed or local.delay]"
)
LOCAL_STEPS = flags.DEFINE_integer("local_steps", None, "steps from one exchange to the next [recipe's, or 1]", 1)
FRAGMENTS = flags.DEFINE_integer("fragments", None, "parts of the weights that take turns [recipe's, or 1]", 1)

_RATES = {"": 1.0, "kbit": 125.0, "mbit": 125e3, "gbit": 125e6, "tbit": 125e9}  # in bytes a second
_TIMES = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}


class Job(NamedTuple):
    """The gradients to reduce, and the time of a step without; `others` are methods besides the exchanges."""

    name: str
    quantizer: Quantizer
    layout: Layout
    num_floats: int
    compute_seconds: float
    overlap: bool
    timing: Timing
    bucket_size: int | None
    others: dict[str, Method]


def main() -> int:
    with command_line.refusing():
        network = read_links()
        fast = dataclasses.replace(INSIDE_HOST, bandwidth=parse(FAST_RATE, _RATES, 1))
        job = read_parameters() if PARAMETERS.value is not None else None
        if STEP_SECONDS.value is None or CODEC.value:
            command_line.tell("measuring this machine")
        job = job or read_recipe()
        speed = measure_quantizer_speed(job.quantizer) if CODEC.value else QuantizerSpeed()
        links = HOSTS.value, DEVICES.value, network, fast
        at = Scenario(*links, job.compute_seconds, job.overlap, job.timing)
        forecast, ideal = (
            Forecast(usual_methods(job.quantizer, job.layout, job.num_floats, each, job.bucket_size) | job.others, at)
            for each in (speed, QuantizerSpeed())
        )
    report(job, forecast, ideal)
    return 0


def read_recipe() -> Job:
    """The job of --config; measures its step unless --step_seconds is given."""
    recipe = recipe_flags.read_recipe()
    inputs = open_inputs(recipe.data, recipe.run.steps_per_call)
    work = read_workload(recipe, inputs)
    is_given = STEP_SECONDS.value is not None
    compute = parse(STEP_SECONDS, _TIMES) if is_given else measure_step_seconds(recipe, inputs, work.examples)
    local, is_late = recipe.local.report_options, recipe.local.steps > 0 and recipe.local.delay > 0
    overlap = recipe.mean.delayed or is_late if OVERLAP.value is None else OVERLAP.value
    timing = as_timing(LOCAL_STEPS.value or local["local_steps"], FRAGMENTS.value or local["fragments"])
    quantizer, bucket_size, reducer = read_mean(recipe.mean)
    others = {}
    if reducer is not None:
        took = measure_reduce_seconds(reducer, work.layout)
        others = {recipe.mean.method: measured_method(reducer, work.layout, took, work.num_floats)}
    name = f"{recipe.model.name}, {work.examples} examples a worker"
    return Job(name, quantizer, work.layout, work.num_floats, compute, overlap, timing, bucket_size, others)


def read_mean(mean: MeanSection) -> tuple[Quantizer, int | None, Reducer | None]:
    """The quantizer and bucket size for the exchanges, and the recipe's reducer if it is not one of these."""
    levels = mean.levels if mean.method == "quantized" else 1
    rotation, rounding = (False, "stochastic") if mean.method == "terngrad" else (mean.rotation, mean.rounding)
    quantizer = Quantizer(mean.clip_sigmas, mean.block_size, levels, rotation, rounding)
    is_known = mean.method in ("float", "terngrad", "ternary", "quantized")
    return quantizer, mean.bucket_size, None if is_known else mean.create_reducer()


def read_parameters() -> Job:
    """The job of --parameters: one tensor."""
    if any(argument.lstrip("-").startswith("config") for argument in sys.argv[1:]):
        raise ValueError("--parameters has no recipe: give --config alone to compare a recipe's own method")
    count = round(parse(PARAMETERS, _COUNTS, 1), 3)  # 4.1e6 is a little less than 4.1 times 1e6
    if count >= 2**32 or count % 1:
        raise ValueError(f"--parameters={PARAMETERS.value}: must be a whole number from 1 to below 2^32")
    if STEP_SECONDS.value is None:
        raise ValueError("--step_seconds is not set: --parameters has no step to measure")
    layout = layout_of(jax.ShapeDtypeStruct((int(count),), jnp.float32))
    compute, timing = parse(STEP_SECONDS, _TIMES), as_timing(LOCAL_STEPS.value or 1, FRAGMENTS.value or 1)
    return Job("one tensor", Quantizer(), layout, 0, compute, bool(OVERLAP.value), timing, BUCKET_SIZE, {})


def read_links() -> Network:
    """The links between hosts: of --network, if given; --latency and --rate take precedence."""
    network = Network()
    if NETWORK.value is not None:
        path = Path(NETWORK.value)
        path = path / "network.json" if path.is_dir() else path
        try:
            network = Network(**read_json(path))
        except (TypeError, ValueError, OSError) as error:
            raise ValueError(f"--network={NETWORK.value}: cannot be read: {error}") from None
    if LATENCY.value is not None:
        network = dataclasses.replace(network, latency=parse(LATENCY, _TIMES))
    if RATE.value is not None:
        network = dataclasses.replace(network, bandwidth=parse(RATE, _RATES, 125))
    return network


def parse(flag: flags.FlagHolder, units: dict[str, float], least: float = 0.0) -> float:
    """Parses a flag's number, alone or with a unit, such as 100us; raises ValueError for others or below `least`."""
    found = re.fullmatch(r"([\d_.]+(?:e[+-]?\d+)?)\s*([a-z]*)", (flag.value or "").strip().lower())
    try:
        value = float(found[1]) * units[found[2]] if found else math.nan
    except (ValueError, KeyError):  # several points, or an unknown unit
        value = math.nan
    if not least <= value < math.inf:
        rule = f"a number of {least:g} or more, alone or with {', '.join(filter(None, units))}"
        raise ValueError(f"--{flag.name}={flag.value}: must be {rule}")
    return value


def report(job: Job, forecast: Forecast, ideal: Forecast) -> None:
    """Prints the forecast, and what to take if compression took no time."""
    scenario, steps = forecast.scenario, forecast.scenario.timing.steps
    devices = f" of {scenario.devices} devices" if scenario.devices > 1 else ""
    every = f"; an exchange in {steps} steps, compared with float in every step" if steps > 1 else ""
    print(
        f"{job.name}: {sum(job.layout.sizes):,} elements compressed, {job.num_floats:,} float\n"
        f"{scenario.hosts:,} hosts{devices}, {scenario.network.bandwidth / 125e6:.4g} Gbit/s,"
        f" {seconds(scenario.network.latency)} a message; a step without exchange takes"
        f" {seconds(scenario.compute_seconds)}{', which hides the wire' if scenario.overlap else ''}"
        f"{every}\n\n{forecast}\n\n"
        f"codec: compression, measured on this {jax.devices()[0].device_kind} (--nocodec: none); wire: messages that it"
        " does not hide\n" + forecast.recommendation().replace("; ", "\n  ")
    )
    if CODEC.value:
        print("where compression takes no time: " + ideal.recommendation().split("; ")[0])


if __name__ == "__main__":
    command_line.run(main, more_help=recipe_flags.describe_recipe)
