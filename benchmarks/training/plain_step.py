"""Images a second of the trainer's step, beside a step of 40 lines of flax and optax for the same network.

    python -m benchmarks.training.plain_step [--models lenet cifarnet resnet_20] [--batch_size 64] [--json FILE]

One worker on one device, so nothing is exchanged: what is timed is what the trainer adds to the network itself. Both
take examples from images on the device, by indices from the host, and read their metrics one step late. `plain` is the
step as XLA compiles it by its defaults, `plain, alike` as by the options that the trainer sets. `float` is the trainer
with mean.method=float, `ternary` with ternary: its gradients are encoded and decoded. `float, again` is a second
trainer like `float`: how far their ratio is from 1 tells what the machine makes of no difference. All take turns, in a
random order, some steps each, so that whatever else the machine does meets all; a ratio is the median over the turns.
"""

import functools
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from benchmarks.commands import create_parser, output_file, save
from benchmarks.timing import machine
from jaxtern.data.feed import load_split
from jaxtern.data.synthetic import make_synthetic
from jaxtern.models import create_model
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.run.calls import Call
from jaxtern.training.run.run import prepare_run
from jaxtern.training.step.compiler import step_options

SHAPES = {"lenet": (28, 28, 1), "cifarnet": (24, 24, 3), "resnet_20": (32, 32, 3)}
SHAPES |= dict.fromkeys(("alexnet", "resnet_50"), (224, 224, 3))
PROGRAMS = ("plain", "plain, alike", "float", "float, again", "ternary")
CLASSES, EXAMPLES, RATE = 10, 1024, 1e-3


def plain_steps(model: str, batch_size: int, options: dict | None = None) -> Iterator[Any]:
    """Takes a step, and gives its metrics, whenever it is asked: what a user would write, with options to compile."""
    data = load_split(make_synthetic(SHAPES[model], CLASSES, EXAMPLES).train, threads=1)
    images, labels = jnp.asarray(data.images), jnp.asarray(data.labels)
    graph, *variables = nnx.split(create_model(model, SHAPES[model], CLASSES, 0), nnx.Param, nnx.BatchStat)
    params, moments = map(nnx.to_pure_dict, variables)
    optimizer = optax.adam(RATE)
    state = optimizer.init(params)

    def loss(params, moments, images, labels, key):
        network = nnx.merge(graph, params, moments)
        logits = network(images.astype(jnp.float32) / 127.5 - 1, key)
        value = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        moments = nnx.to_pure_dict(nnx.state(network, nnx.BatchStat))
        return value, (moments, (logits.argmax(-1) == labels).mean())

    @functools.partial(jax.jit, compiler_options=options)
    def step(params, moments, state, examples, key):
        arguments = params, moments, images[examples], labels[examples], key
        (value, (moments, accuracy)), gradients = jax.value_and_grad(loss, has_aux=True)(*arguments)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), moments, state, (value, accuracy)

    shuffled, metrics = np.random.default_rng(0), None
    for number in range(1 << 40):
        examples = shuffled.permutation(EXAMPLES)[:batch_size].astype(np.int32)
        before, key = metrics, jax.random.key(number)
        params, moments, state, metrics = step(params, moments, state, examples, key)
        jax.device_get(before)
        yield metrics


def our_steps(model: str, batch_size: int, codec: str, workdir: Path) -> Iterator[Any]:
    """Likewise, as the trainer does."""
    made = {"synthetic_shape": SHAPES[model], "synthetic_classes": CLASSES, "synthetic_examples": EXAMPLES}
    recipe = Recipe().replace(
        data={"name": "synthetic", **made},
        model={"name": model},
        mean={"method": codec},
        optimizer={"name": "adam", "learning_rate": RATE},
        run={"num_workers": 1, "num_devices": 1, "batch_size": batch_size},
    )
    run = prepare_run(recipe, workdir)
    metrics = None
    for batch in run.feed.batches(0):
        before = metrics
        run.state, metrics = run.train_step(run.state, run.feed.examples, batch, Call(1, codec != "float"))
        jax.device_get(before)
        yield metrics


def time_in_turns(programs: dict[str, Iterator[Any]], turns: int, seconds: float) -> dict[str, list[float]]:
    """Seconds a step of each program, in every turn."""
    counts = {}
    for name, steps in programs.items():
        _take(steps, 3)  # compiled, and warm
        counts[name] = max(1, round(seconds / _take(steps, 2)))
    times: dict[str, list[float]] = {name: [] for name in programs}
    order = random.Random(0)
    for _ in range(turns):
        for name in order.sample(list(programs), len(programs)):
            times[name].append(_take(programs[name], counts[name]))
    return times


def _take(steps: Iterator[Any], count: int) -> float:
    """Seconds a step, until the last is done: what it left to do would be another program's time."""
    metrics, start = None, time.perf_counter()
    for _ in range(count):
        metrics = next(steps)
    jax.block_until_ready(metrics)
    return (time.perf_counter() - start) / count


def measure(model: str, batch_size: int, turns: int, seconds: float) -> dict:
    """One row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        makers: dict[str, Callable[[], Iterator[Any]]] = {
            "plain": lambda: plain_steps(model, batch_size),
            "plain, alike": lambda: plain_steps(model, batch_size, step_options(jax.default_backend())),
            "float": lambda: our_steps(model, batch_size, "float", Path(folder) / "float"),
            "float, again": lambda: our_steps(model, batch_size, "float", Path(folder) / "again"),
            "ternary": lambda: our_steps(model, batch_size, "ternary", Path(folder) / "ternary"),
        }
        times = time_in_turns({name: make() for name, make in makers.items()}, turns, seconds)
    rates = {name: batch_size / statistics.median(values) for name, values in times.items()}
    ratios = {
        name: statistics.median(b / a for a, b in zip(times["float"], times[name], strict=True)) for name in PROGRAMS
    }
    return {
        "model": model,
        "images_per_second": rates,
        "float_over_plain": ratios["plain"],
        "float_over_plain_alike": ratios["plain, alike"],
        "float_over_itself": ratios["float, again"],
        "ternary_cost": ratios["ternary"] - 1,
    }


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=["lenet", "cifarnet", "resnet_20"])
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each program in a turn")
    parser.add_argument("--json", type=output_file)
    arguments = parser.parse_args()
    print(f"{machine()}\n")
    columns = [*PROGRAMS, "float / plain", "float / plain, alike", "float / again", "ternary costs"]
    print(f"| model | {' | '.join(columns)} |\n| --- |{' ---: |' * len(columns)}")
    rows = []
    for model in arguments.models:
        row = measure(model, arguments.batch_size, arguments.turns, arguments.seconds)
        rates = " | ".join(f"{row['images_per_second'][name]:,.0f}" for name in PROGRAMS)
        ratios = " | ".join(f"{row[f'float_over_{of}']:.2f}" for of in ("plain", "plain_alike", "itself"))
        print(f"| {model} | {rates} | {ratios} | {row['ternary_cost']:+.1%} |", flush=True)
        rows.append(row)
    save({"machine": machine(), "rows": rows}, arguments.json)


if __name__ == "__main__":
    main()
