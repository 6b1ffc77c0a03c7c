"""Dry runs: describe what a recipe would do, and try a few small steps, without data and without writing anything."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from tqdm import tqdm

from jaxtern.compression.network.links import Network
from jaxtern.compression.report import WireReport, wire_report
from jaxtern.data.facts import Facts, published_facts
from jaxtern.models import create_model
from jaxtern.training.recipe.data import DataSection
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.recipe.selection import by_path, require_match
from jaxtern.training.run.inputs import Feed, Inputs, create_network, facts_of, open_inputs, require_feed, task_of
from jaxtern.training.run.loop import NonFiniteError, require_finite
from jaxtern.training.step.local import fetch_own
from jaxtern.training.step.mean import create_reducers
from jaxtern.training.step.mesh import create_mesh
from jaxtern.training.step.schedules import create_schedule
from jaxtern.training.step.state import TrainState, create_run, split_variables
from jaxtern.training.step.step import Metrics, create_train_step

_STEPS = 3
_WORKERS, _EXAMPLES, _PARTS = 2, 2, 2  # at most: workers, examples of each part, parts of an accumulation
_LOSS_SCALE = 128.0  # at most, as a recipe's own may need more than three steps to shrink until nothing overflows
_UNKNOWN = "unknown"
_RATES = 100_000  # steps, at most, whose rates are compared
_bytes = functools.partial(tqdm.format_sizeof, suffix="B")


@dataclasses.dataclass(frozen=True)
class DryRun:
    """A recipe with what is known before anything is drawn or compiled."""

    recipe: Recipe  # the given recipe
    small: Recipe  # the same with few, made examples, for the devices of this machine
    facts: Facts  # facts of the recipe's dataset
    inputs: Inputs  # inputs of `small`, with the recipe's image size and number of classes
    mesh: Mesh  # mesh of `small`
    params: Any  # params, frozen: shapes of the weights that are trained, and of the others
    frozen: Any
    wire: WireReport  # what a worker of the recipe sends


def prepare_dry_run(recipe: Recipe) -> DryRun:
    """Checks all that can be checked without data and weights; raises ValueError or OSError for what does not fit."""
    require_feed(recipe.data, task_of(recipe.data), recipe.run.steps_per_call)
    facts = find_facts(recipe.data)
    small = shrink(recipe, facts)
    mesh, inputs = create_mesh(small), open_inputs(small.data)
    shape, num_classes = inputs.input_shape, facts.num_classes
    named, seed = recipe.model, recipe.run.seed
    model = nnx.eval_shape(lambda: create_model(named.name, shape, num_classes, seed, named.dropout_rate))
    _, params, frozen, moments = split_variables(model, recipe)
    paths = [path for tree in (params, frozen, moments) for path in by_path(tree)]
    for pattern in recipe.model.init_exclude:
        require_match("model.init_exclude", pattern, paths)
    network = Network(**recipe.mean.links)  # usual links, where the recipe gives none
    reducer = create_reducers(recipe.mean, model.last_layer, network)[1]
    wire = wire_report(params, reducer, recipe.run.num_workers, **recipe.local.report_options)
    return DryRun(recipe, small, facts, inputs, mesh, params, frozen, wire)


def find_facts(data: DataSection) -> Facts:
    """Facts of a dataset if it is there; else published ones if its name is known; else the synthetic_... fields."""
    task = task_of(data)
    is_path = "/" in data.name and Path(data.name).exists()
    if data.name == "digits" or is_path or data.dir is not None:
        return facts_of(task, task.open(data.name, data.dir, data.train_split, data.test_split))
    published = published_facts(data.name) if task.of_images else None
    if published is not None:
        return published
    source = "which are made" if data.name == "synthetic" else _UNKNOWN
    return Facts(None, data.synthetic_classes, data.synthetic_examples, source)


def shrink(recipe: Recipe, facts: Facts) -> Recipe:
    """The recipe with a few made examples, for this machine's devices; it does not read weights of `init_from`."""
    shape = task_of(recipe.data).view_shape or facts.image_shape or recipe.data.synthetic_shape
    workers, parts = min(recipe.run.num_workers, _WORKERS), min(recipe.run.accumulation, _PARTS)
    fast = min(recipe.mean.worker_devices, len(jax.devices()))
    batch_size = workers * fast * parts * _EXAMPLES
    virtual = "vmapped" if recipe.model.batch_norm == "sync" else recipe.run.virtual_workers  # a device may get several
    return recipe.replace(
        data={
            "name": "synthetic", "dir": None, "feed": "auto", "synthetic_shape": shape,
            "synthetic_classes": facts.num_classes, "synthetic_examples": batch_size,
        },
        model={"init_from": None, "loss_scale": min(recipe.model.loss_scale, _LOSS_SCALE)},
        mean={"devices_per_worker": fast},
        local={"steps": recipe.local.steps and recipe.local.fragments, "delay": 0},  # an exchange in every step
        run={
            "num_workers": workers, "num_devices": None, "batch_size": batch_size, "accumulation": parts,
            "steps_per_call": 1, "virtual_workers": virtual,
        },
    )  # fmt: skip


def describe(run: DryRun) -> str:
    """Describes network, wire, steps and rates of the recipe."""
    recipe, facts = run.recipe, run.facts
    trained, frozen = (sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (run.params, run.frozen))
    shape = "x".join(map(str, run.inputs.input_shape))
    data = f"{facts.num_examples:,} examples, {facts.num_classes:,} classes, {facts.source}"
    epochs = f": {recipe.run.num_steps * recipe.run.batch_size / facts.num_examples:.1f} epochs"
    if facts.source == _UNKNOWN:
        data, epochs = f"is not there, and taken to have {facts.num_classes:,} classes", ""
    first, highest, last = find_rates(recipe, facts.num_examples)
    split = f", in {recipe.run.accumulation} parts" if recipe.run.accumulation > 1 else ""
    return (
        f"{recipe.model.name}: {trained + frozen:,} parameters, {trained:,} trained and {frozen:,} frozen\n"
        f"{recipe.data.name}: {data}; the network is given {shape}\n"
        f"{recipe.run.num_workers} workers, {recipe.local.exchanged} by {recipe.mean.method}\n"
        f"{run.wire}\nsent {run.wire.summary()}\n"
        f"{recipe.run.num_steps:,} steps of {recipe.run.batch_size:,} examples,"
        f" {recipe.run.batch_size // recipe.run.num_workers:,} a worker{split}{epochs}\n"
        f"learning rate {first:.4g} first, {highest:.4g} highest, {last:.4g} last"
    )


def find_rates(recipe: Recipe, num_examples: int) -> tuple[float, float, float]:
    """The first, the highest (of up to 100,000 steps) and the last learning rate."""
    num_steps = recipe.run.num_steps
    steps = np.linspace(0, num_steps - 1, min(num_steps, _RATES)).round().astype(np.int32)
    rates = np.asarray(create_schedule(recipe.optimizer, recipe.run, num_examples)(steps))
    return float(rates[0]), float(rates.max()), float(rates[-1])


def rehearse(run: DryRun) -> Iterator[str]:
    """Takes three small steps and yields lines about them.

    Raises NonFiniteError if the loss, a gradient or a weight is not finite, or if gradients overflow in every step.
    """
    small, skipped = run.small, 0
    yield _describe_small(run)
    network = create_network(small.model, run.inputs.input_shape, run.facts.num_classes, small.run.seed)
    program, state = create_run(small, network, run.facts.num_examples, run.mesh)
    yield _describe_memory(state, small.run.num_workers)
    feed = Feed(small.data, small.run, run.inputs, run.mesh)
    step = create_train_step(small, program, run.mesh)
    with contextlib.closing(feed.batches(0)) as batches:
        batch = next(batches)
        compiled = step.lower(state, feed.examples, batch).compile()
        measured = compiled.memory_analysis()
        size = "not told by this backend" if measured is None else _bytes(measured.temp_size_in_bytes)
        yield f"the compiled step takes besides: {size}, for these {small.run.batch_size} examples"
        for number in range(1, _STEPS + 1):
            begin = time.perf_counter()
            state, metrics = compiled(*step.arguments(state, feed.examples, batch))
            metrics = fetch_own(metrics, 1) if small.local.steps else jax.device_get(metrics)
            seconds = time.perf_counter() - begin
            skipped += bool(metrics.get("overflow"))
            yield f"step {number}: {_describe_step(number, metrics, state.params)}, {seconds:.3f} s"
            batch = next(batches)
    if skipped == _STEPS:
        raise NonFiniteError(f"gradients overflow in every step, from a loss scale of {small.model.loss_scale:g} on")


def _describe_small(run: DryRun) -> str:
    """Says how the small steps differ from the recipe's."""
    recipe, small, devices, source = run.recipe, run.small, run.mesh.devices.size, run.recipe.model.init_from
    ignored = f"; model.init_from={source!r} is not read, weights are fresh" if source else ""
    return (
        f"\nthree steps on made data: {small.run.num_workers} of {recipe.run.num_workers} workers on {devices}"
        f" {'device' if devices == 1 else 'devices'}, {small.run.batch_size} examples a step{ignored}"
    )


def _describe_memory(state: TrainState, num_workers: int) -> str:
    """Describes what a device keeps from step to step, and the gradients that each worker needs besides."""
    weights = _size((state.params, state.frozen))
    parts = {"weights": weights, "moments of batch norm": _size(state.moments), "optimiser": _size(state.optimizer)}
    parts |= {"averages": _size(state.averages), f"compressor of {num_workers} workers": _size(state.compressor)}
    kept = ", ".join(f"{name} {_bytes(size)}" for name, size in parts.items() if size)
    return f"memory: {kept}; gradients {_bytes(_size(state.params))} a worker"


def _size(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def _describe_step(number: int, metrics: Metrics, params: Any) -> str:
    """Gives a step's loss, or says that it was skipped; raises NonFiniteError if anything else is not finite."""
    if metrics.get("overflow"):
        return f"skipped, gradients overflow at a loss scale of {float(metrics['loss_scale']):g}"
    require_finite(number, metrics, by_path(params))
    return f"loss {float(metrics['loss']):.4f}"
