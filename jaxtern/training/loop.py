"""The run: prepare everything, step after step, leave nothing half done."""

import dataclasses
import functools
import math
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxtern.compression.calibration import calibrate
from jaxtern.compression.cost import Network
from jaxtern.compression.report import WireReport, wire_report
from jaxtern.data.rendering import Batch
from jaxtern.models import MODELS
from jaxtern.training.calls import Call, plan_calls
from jaxtern.training.checkpoints import Checkpoints
from jaxtern.training.elastic import carry_over
from jaxtern.training.evaluation import Evaluation, evaluate
from jaxtern.training.initialization import initialize
from jaxtern.training.inputs import Feed, Inputs, create_network, open_inputs
from jaxtern.training.metrics import MetricWriter, Progress, Scalars
from jaxtern.training.recipe import Recipe
from jaxtern.training.selection import path_of
from jaxtern.training.state import (
    DEVICE_AXIS,
    Program,
    TrainState,
    create_codec,
    create_run,
    place_state,
    stays_float,
    variables_of,
)
from jaxtern.training.step import Metrics, TrainStep, create_mesh, create_train_step
from jaxtern.training.workdir import claim_workdir, read_network, write_network, write_recipe


class NonFiniteError(Exception):
    """The loss, a gradient or a weight is NaN or infinite."""


class Stopped(Exception):
    """A signal asked the run to stop; its state is saved."""

    def __init__(self, signal_number: int, step: int):
        super().__init__(f"stopped by {signal.Signals(signal_number).name} at step {step}; the same command continues")
        self.signal_number = signal_number


@dataclasses.dataclass
class Run:
    """A run that is ready to go on from `state`."""

    recipe: Recipe
    workdir: Path
    inputs: Inputs
    feed: Feed
    program: Program
    state: TrainState
    train_step: Callable[[TrainState, jax.Array | None, Batch, Call], tuple[TrainState, Metrics]]
    checkpoints: Checkpoints
    examples_seen: int
    wire: WireReport
    float_wire: WireReport  # of steps that are float in a ternary run
    claim: Any
    network: Network | None  # by which its exchange is chosen

    def save(self, step: int, evaluation: Evaluation | None = None) -> None:
        """Starts to write a checkpoint of the state, which is that of `step`, with what was found in evaluating it."""
        self.checkpoints.save(
            step, self.state, metrics=evaluation._asdict() if evaluation else None, recipe=self.recipe.to_dict(),
            examples_seen=self.examples_seen, network=dataclasses.asdict(self.network) if self.network else None,
        )  # fmt: skip

    def evaluate(self) -> Evaluation:
        """Of the weights as they are, or their moving averages where they are kept, on the test split.

        Raises:
          ValueError: if an example cannot be read.
        """
        inputs = self.inputs
        return evaluate(
            self.program.graph, variables_of(self.state), inputs.dataset.test, inputs.preprocessing,
            self.recipe.image_size, inputs.threads,
        )  # fmt: skip


def prepare_run(recipe: Recipe, workdir: Path, allow_config_change: bool = False) -> Run:
    """Checks everything that can be checked before the first step, and finds where the run stands.

    Raises:
      ValueError, OSError: for a recipe, data or folder that does not fit, in one line.
    """
    mesh = create_mesh(recipe)
    inputs = open_inputs(recipe)
    feed = Feed(recipe, inputs, mesh)
    model = create_network(recipe, inputs)
    if not Checkpoints.exist(workdir):
        initialize(model, recipe)
    network = find_network(recipe, mesh, workdir)
    program, state = create_run(recipe, model, inputs.dataset.train.size, mesh, network)
    wire = report_wire(recipe, state.params, network)
    float_wire = report_wire(dataclasses.replace(recipe, codec="float"), state.params, None)
    claim = claim_workdir(workdir, recipe, allow_config_change)
    checkpoints = Checkpoints(workdir, recipe.keep_checkpoints, recipe.keep_best)
    fit = functools.partial(carry_over, recipe=recipe, network=network)
    restored, seen = checkpoints.restore_latest(state, fit), 0
    write_recipe(workdir, recipe)  # not before the run's state is found to fit
    write_network(workdir, network)
    if restored is not None:
        state = place_state(restored.state, recipe, mesh)
        seen = restored.metadata["examples_seen"]
    train_step = create_train_steps(recipe, program, mesh)
    reports = wire, float_wire
    run = Run(recipe, workdir, inputs, feed, program, state, train_step, checkpoints, seen, *reports, claim, network)
    if restored is None:
        run.save(0)
    return run


def create_train_steps(
    recipe: Recipe, program: Program, mesh: Mesh
) -> Callable[[TrainState, jax.Array | None, Batch, Call], tuple[TrainState, Metrics]]:
    """(state, images, batch or batches, call) -> (state, metrics), compiled for every kind of call that comes."""

    @functools.cache
    def compiled(call: Call) -> TrainStep:
        num_steps = call.num_steps if call.num_steps > 1 else None
        return create_train_step(recipe, program, mesh, compresses=call.compresses, num_steps=num_steps)

    return lambda state, images, batch, call: compiled(call)(state, images, batch)


def find_network(recipe: Recipe, mesh: Mesh, workdir: Path) -> Network | None:
    """The links by which "auto" chooses: those measured when the run began, or measured now; None where none are used.

    Raises:
      ValueError: for a stored network that cannot be read, or numbers out of their range.
    """
    given = {"latency": recipe.network_latency, "bandwidth": recipe.network_bandwidth}
    Network(**{name: value for name, value in given.items() if value is not None})
    if recipe.codec == "float" or recipe.exchange != "auto" or mesh.shape[DEVICE_AXIS] == 1:
        return None
    return read_network(workdir) or calibrate(mesh, DEVICE_AXIS, **given)


def report_wire(recipe: Recipe, params: Any, network: Network | None) -> WireReport:
    """What a worker sends in a step of this recipe.

    Raises:
      ValueError: if the exchange cannot carry so many workers.
    """
    last_layer = MODELS[recipe.model].last_layer
    return wire_report(
        params,
        "float" if recipe.codec == "float" else create_codec(recipe),
        recipe.exchange,
        recipe.num_workers,
        min_size=recipe.min_size,
        exclude=lambda path: stays_float(recipe, last_layer, path),
        bucket_size=recipe.bucket_size,
        network=network,
        devices_per_worker=recipe.devices_per_worker,
    )


def train(run: Run) -> Evaluation:
    """Trains to the last step and evaluates there.

    Raises:
      NonFiniteError: at the first NaN or infinity; the last good checkpoint stays.
      Stopped: after SIGTERM or SIGINT, when the state is saved.
    """
    first_step = int(run.state.step)
    if first_step >= run.recipe.num_steps:
        run.checkpoints.close()
        return run.evaluate()
    writer, progress = MetricWriter(run.workdir, first_step), Progress(first_step, run.recipe.num_steps)
    loop, evaluation = _Loop(run, writer, progress), None
    try:
        with _Signals() as signals:
            for call in loop.calls():
                stopped = signals.received  # read once: a signal that comes during this call stops after the next
                evaluation = loop.take(call, stopping=stopped is not None)
                if stopped is not None and loop.taken < run.recipe.num_steps:
                    raise Stopped(stopped, loop.taken)
        assert evaluation is not None  # of the last step
        return evaluation
    finally:
        loop.close()
        progress.close()
        writer.close()
        run.checkpoints.close()


class _Loop:
    """Steps with their metrics fetched one call late: while the host reads those of one, the devices run the next.

    Attributes:
      taken: steps so far.
    """

    def __init__(self, run: Run, writer: MetricWriter, progress: Progress):
        self.taken = int(run.state.step)
        self._run, self._writer, self._progress = run, writer, progress
        self._batches = run.feed.batches(run.examples_seen, (call.num_steps for call in self.calls()))
        self._paths = [path_of(keys) for keys, _ in jax.tree_util.tree_flatten_with_path(run.state.params)[0]]
        self._pending: tuple[Call, int, Metrics] | None = None
        self._since: list[Scalars] = []
        self._compressed = 0  # steps of them
        self._clock = time.perf_counter()

    def calls(self) -> Iterator[Call]:
        """What is left to do."""
        run = self._run
        return plan_calls(run.recipe, run.inputs.dataset.train.size, self.taken, run.examples_seen)

    def take(self, call: Call, stopping: bool) -> Evaluation | None:
        """Runs a call's steps; evaluates and saves where that is due, and after the last one."""
        run, recipe = self._run, self._run.recipe
        run.state, metrics = run.train_step(run.state, run.feed.images, next(self._batches), call)
        run.examples_seen += call.num_steps * recipe.batch_size
        self._read_pending()
        self.taken += call.num_steps
        self._pending = (call, self.taken, metrics)
        finished = self.taken == recipe.num_steps
        saves = finished or stopping or self.taken % recipe.checkpoint_every == 0
        evaluates = finished or (recipe.evaluate_every and self.taken % recipe.evaluate_every == 0)
        if saves or evaluates:
            self._read_pending()  # nothing that is not finite is ever saved
        evaluation = self._evaluate(self.taken) if evaluates else None
        if saves:  # after all records of this step: a run that resumes here keeps them and does not write them again
            run.save(self.taken, evaluation)
        return evaluation

    def close(self) -> None:
        """Ends the threads and processes that make batches."""
        self._batches.close()

    def _evaluate(self, step: int) -> Evaluation:
        """Evaluates the weights as they are now, at `step`, on the test split."""
        start = time.perf_counter()
        result = self._run.evaluate()
        self._writer.write(step, {f"test/{name}": value for name, value in result._asdict().items()})
        self._progress.print(
            f"step {step}: test loss {result.loss:.4f}, precision@1 {result.precision_at_1:.2%},"
            f" recall@5 {result.recall_at_5:.2%}"
        )
        self._clock += time.perf_counter() - start
        return result

    def _read_pending(self) -> None:
        """Waits for the metrics of the call before, checks them, and logs every `log_every` steps."""
        if self._pending is None:
            return
        (call, last, metrics), self._pending = self._pending, None
        fetched = jax.device_get(metrics)
        if call.num_steps == 1:
            fetched = jax.tree.map(lambda leaf: leaf[None], fetched)
        for number in range(call.num_steps):
            step = last - call.num_steps + 1 + number
            self._since.append(self._check(step, {name: values[number] for name, values in fetched.items()}))
            self._compressed += call.compresses
        now = time.perf_counter()
        rate = len(self._since) * self._run.recipe.batch_size / (now - self._clock)
        self._progress.update(self._since[-1]["loss"], rate, call.num_steps)
        if last % self._run.recipe.log_every == 0 or last == self._run.recipe.num_steps:
            self._log(last, rate)
            self._clock = now  # not later: the device works on while this is written

    def _check(self, step: int, metrics: dict[str, Any]) -> Scalars:
        """One step's numbers.

        Raises:
          NonFiniteError: if they are none; a step that was skipped has only those of the skipping.
        """
        bad = metrics.pop("nonfinite")
        nonfinite = [path for path, is_bad in zip(self._paths, bad, strict=True) if is_bad]
        scalars = {name: float(value) for name, value in metrics.items()}
        if scalars.get("overflow"):
            return {"loss": math.nan} | {name: scalars[name] for name in ("overflow", "loss_scale", "learning_rate")}
        if nonfinite or not np.isfinite(scalars["loss"]):
            raise NonFiniteError(self._describe(step, scalars["loss"], nonfinite))
        return scalars

    def _describe(self, step: int, loss: float, nonfinite: list[str]) -> str:
        where = f"not finite in {', '.join(nonfinite)}" if nonfinite else "gradients and weights finite"
        kept = self._run.checkpoints.steps()
        return f"step {step}: loss {loss}, {where}; the last good checkpoint is at step {kept[-1]}"

    def _log(self, step: int, examples_per_second: float) -> None:
        """A line and a record: means since the last one."""
        means = {name: self._mean(name) for name in sorted({name for scalars in self._since for name in scalars})}
        share, wire, plain = self._compressed / len(self._since), self._run.wire, self._run.float_wire
        rate = self._since[-1].get("learning_rate")  # where steps may be skipped, the schedule lags behind
        record = {name: value for name, value in means.items() if not math.isnan(value)} | {
            "learning_rate": float(np.asarray(self._run.program.schedule(step - 1))) if rate is None else rate,
            "examples_per_second": examples_per_second,
            "sent_bits_per_element": share * wire.bits_per_element + (1 - share) * plain.bits_per_element,
            "sent_bytes_per_step": share * wire.bytes + (1 - share) * plain.bytes,
        }
        self._writer.write(step, record)
        self._progress.print(
            f"step {step}: loss {means['loss']:.4f}, accuracy {means.get('accuracy', math.nan):.2%},"
            f" rate {record['learning_rate']:.3g}, {examples_per_second:,.0f} examples/s"
        )
        self._since.clear()
        self._compressed = 0

    def _mean(self, name: str) -> float:
        """Since the last record, over the steps that have it; NaN where none has."""
        values = [scalars[name] for scalars in self._since if not math.isnan(scalars.get(name, math.nan))]
        return float(np.mean(values)) if values else math.nan


class _Signals:
    """Notes the first SIGTERM or SIGINT; the second one acts at once."""

    def __init__(self):
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "_Signals":
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: Any) -> None:
        self.received = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __exit__(self, *exception: Any) -> None:
        self._restore()
