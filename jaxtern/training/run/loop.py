"""The training loop."""

import logging
import math
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from jaxtern.data.rendering import Batch
from jaxtern.hosts.messages import gather_json, meet
from jaxtern.training.recipe.selection import by_path
from jaxtern.training.run.calls import Call, plan_calls
from jaxtern.training.run.divergence import DivergenceError
from jaxtern.training.run.evaluation import Evaluation
from jaxtern.training.run.metrics import MetricWriter, Scalars
from jaxtern.training.run.run import Run
from jaxtern.training.run.sheet import augment, tile
from jaxtern.training.run.stopping import Stopped, StopSignals
from jaxtern.training.step.local import fetch_own
from jaxtern.training.step.loss import describe_loss
from jaxtern.training.step.step import Metrics

logger = logging.getLogger(__name__)
_SHOWN = 16  # images of the first batch that TensorBoard shows


class NonFiniteError(Exception):
    """The loss, a gradient or a weight is NaN or infinite."""


def require_finite(step: int, metrics: dict[str, Any], paths: Iterable[str], ending: str = "") -> None:
    """Raises NonFiniteError if the loss, gradients or weights (at these paths) of a step are not finite."""
    nonfinite = [path for path, is_bad in zip(paths, metrics["nonfinite"], strict=True) if is_bad]
    loss = float(metrics["loss"])
    if nonfinite or not math.isfinite(loss):
        where = f"not finite in {', '.join(nonfinite)}" if nonfinite else "gradients and weights finite"
        raise NonFiniteError(f"step {step}: loss {loss}, {where}{ending}")


def train(run: Run) -> Evaluation:
    """Trains to the last step and evaluates; all processes of the run must call it.

    Raises:
      NonFiniteError: at the first NaN or infinity; the last good checkpoint stays.
      DivergenceError: if devices hold different states; the last good checkpoint stays.
      Stopped: after SIGTERM, SIGINT or SIGHUP, or if nobody reads the output, once the state is saved.
    """
    try:
        evaluation = _train(run)
    except Stopped:
        meet()
        raise
    meet()  # nobody leaves while another still writes
    return evaluation


def _train(run: Run) -> Evaluation:
    if run.last_saved >= run.recipe.run.num_steps:
        run.close()
        return run.evaluate()
    evaluation = None
    with StopSignals(run.mesh) as signals, closing(run), closing(_Loop(run, signals)) as loop:
        for call in loop.calls():
            evaluation = loop.take(call)
            if loop.stopping and loop.taken < run.recipe.run.num_steps:
                raise Stopped(signals.received, loop.taken)
    assert evaluation is not None  # of the last step
    return evaluation


class _Loop:
    """Takes steps and fetches their metrics one call late: devices run a call while the host reads the last one's."""

    def __init__(self, run: Run, signals: StopSignals):
        self.taken = run.last_saved  # steps so far
        self.stopping = False  # whether a signal made the last call the final one
        self._run, self._signals = run, signals
        self._writer = MetricWriter(run.workdir, self.taken, run.given) if run.checkpoints is not None else None
        hidden = self._writer is None or not sys.stderr.isatty()
        total = run.recipe.run.num_steps
        self._bar = tqdm(total=total, initial=self.taken, unit="step", dynamic_ncols=True, disable=hidden)
        self._batches = run.feed.batches(run.examples_seen, (call.num_steps for call in self.calls()))
        self._paths = list(by_path(run.state.params))
        self._pending: tuple[Call, int, Metrics, jax.Array | None] | None = None
        self._since: list[Scalars] = []
        self._seconds = 0.0  # that the steps in `_since` took
        self._compiled: set[Call] = set()
        self._clock = time.perf_counter()

    def calls(self) -> Iterator[Call]:
        """The calls that are left."""
        run = self._run
        return plan_calls(run.recipe.run, run.recipe.mean, run.inputs.dataset.train.size, self.taken, run.examples_seen)

    def take(self, call: Call) -> Evaluation | None:
        """Runs a call's steps; evaluates and saves if that is due, after the last step, and before a stop."""
        run, recipe, stops = self._run, self._run.recipe, self._signals.tell()
        batch = next(self._batches)
        if self.taken == 0 and self._writer is not None and run.inputs.task.of_images:
            self._show(batch, call, self._writer)
        with self._telling_what_compiles(call):
            run.state, metrics = run.train_step(run.state, run.feed.examples, batch, call, stops)
        run.examples_seen += call.num_steps * recipe.run.batch_size
        self._read_pending()
        before, self.taken = self.taken, self.taken + call.num_steps
        # Decided by the metrics of earlier calls, as this decides whether those of this call are read at once. A stop
        # in this call's metrics takes effect after the next call in all processes, wherever the metrics were read.
        finished, self.stopping = self.taken == recipe.run.num_steps, self._signals.agreed
        saves = finished or self.stopping or self.taken % recipe.run.checkpoint_every == 0
        digests = run.guard.compare(run.state, before, self.taken, saves)
        self._pending = (call, self.taken, metrics, digests)
        evaluates = finished or (recipe.run.evaluate_every and self.taken % recipe.run.evaluate_every == 0)
        if saves or evaluates:
            self._read_pending()  # so that only finite states that all devices share are saved
        evaluation = self._evaluate(self.taken) if evaluates else None
        # After all records of this step: a run that resumes here keeps them and does not write them again.
        if saves:
            if self._writer is not None:
                self._writer.sync()
            run.save(self.taken, evaluation)
        return evaluation

    def close(self) -> None:
        """Ends the threads and processes that make batches, the progress bar and the records."""
        self._batches.close()
        self._bar.close()
        if self._writer is not None:
            self._writer.close()

    @contextmanager
    def _telling_what_compiles(self, call: Call) -> Iterator[None]:
        """Says that the first call of a kind compiles its program, and how long it took."""
        start, is_new = time.perf_counter(), call not in self._compiled
        if is_new:
            self._compiled.add(call)
            self._say(f"compiling {'a step' if call.num_steps == 1 else f'{call.num_steps:,} steps at once'}")
        yield
        if is_new:
            seconds = time.perf_counter() - start
            self._say(f"compiled in {seconds:.1f} s")
            self._clock += seconds
            self._bar.unpause()  # the bar's clock, too, leaves this out

    def _evaluate(self, step: int) -> Evaluation:
        """Evaluates the current weights, of `step`, on the test split."""
        start = time.perf_counter()
        result = self._run.evaluate()
        if self._writer is not None:
            self._writer.write(step, {f"test/{name}": value for name, value in result.scalars().items()})
        self._say(f"step {step}: {result.describe('test', self._run.recipe.model.loss)}")
        self._clock += time.perf_counter() - start
        return result

    def _read_pending(self) -> None:
        """Waits for the metrics of the last call, checks them, and logs every `log_every` steps."""
        if self._pending is None:
            return
        (call, last, metrics, digests), self._pending = self._pending, None
        fetched = fetch_own(metrics, call.num_steps) if self._run.recipe.local.steps else jax.device_get(metrics)
        difference = None if digests is None else self._run.guard.find_difference(jax.device_get(digests))
        if difference is not None:
            raise DivergenceError(f"step {last}: {difference}{self._last_good()}")
        self._signals.agreed |= bool(np.any(fetched.pop("stops", False)))
        now = time.perf_counter()
        seconds, self._clock = now - self._clock, now  # before anything is written, as devices go on meanwhile
        if call.num_steps == 1:
            fetched = jax.tree.map(lambda leaf: leaf[None], fetched)
        loss = rate = math.nan
        for number in range(call.num_steps):
            step = last - call.num_steps + 1 + number
            own = jax.tree.map(lambda leaf, number=number: leaf[number], fetched)
            histograms = own.pop("histograms", None)
            scalars = self._check(step, own)
            loss, rate = scalars["loss"], self._note(step, scalars, call.phase, seconds / call.num_steps)
            if histograms is not None and self._writer is not None and histograms.counts.any():
                names = [f"{kind}/{path}" for kind in ("weights", "gradients") for path in self._paths]
                self._writer.write_histograms(step, names, histograms)
        self._bar.set_postfix_str(f"loss {loss:.4f}, {rate:,.0f} examples/s", refresh=False)
        self._bar.update(call.num_steps)

    def _note(self, step: int, scalars: Scalars, phase: int, seconds: float) -> float:
        """Notes a step, logs if that is due, and returns examples a second since the last record."""
        recipe = self._run.recipe
        wire = self._run.wires[phase]
        sent = {"sent_bits_per_element": wire.bits_per_element, "sent_bytes_per_step": wire.bytes}
        self._since.append(scalars | sent | {"coded_bits_per_element": wire.coded_bits_per_element})
        self._seconds += seconds
        rate = len(self._since) * recipe.run.batch_size / self._seconds
        if step % recipe.run.log_every == 0 or step == recipe.run.num_steps:
            self._log(step, rate)
        return rate

    def _check(self, step: int, metrics: dict[str, Any]) -> Scalars:
        """Metrics of a step as floats; raises NonFiniteError if it was not skipped and they are not finite."""
        scalars = {name: float(value) for name, value in metrics.items() if name != "nonfinite"}
        if scalars.get("overflow"):
            return {"loss": math.nan} | {name: scalars[name] for name in ("overflow", "loss_scale", "learning_rate")}
        require_finite(step, metrics, self._paths, self._last_good())
        return scalars

    def _last_good(self) -> str:
        return f"; the last good checkpoint is at step {self._run.last_saved}"

    def _log(self, step: int, examples_per_second: float) -> None:
        """Prints a line and writes a record, of means since the last record."""
        means = {}  # over the steps that have a number; NaN if none has
        for name in sorted(set().union(*self._since)):
            values = [each[name] for each in self._since if not math.isnan(each.get(name, math.nan))]
            means[name] = float(np.mean(values)) if values else math.nan
        if self._run.recipe.local.steps:  # these are of this process's workers only
            of_all = gather_json(means)
            means = {name: float(np.mean([each[name] for each in of_all])) for name in means}
        rate = self._since[-1].get("learning_rate")  # there if steps may be skipped, as schedules do not count these
        record = {name: value for name, value in means.items() if math.isfinite(value)} | {
            "learning_rate": float(np.asarray(self._run.program.schedule(step - 1))) if rate is None else rate,
            "examples_per_second": examples_per_second,
            "steps_per_second": examples_per_second / self._run.recipe.run.batch_size,
        }
        if self._writer is not None:
            self._writer.write(step, record)
        parts = {name.removeprefix("loss/"): mean for name, mean in means.items() if name.startswith("loss/")}
        self._say(
            f"step {step}: loss {describe_loss(means['loss'], parts)}, accuracy {means.get('accuracy', math.nan):.2%},"
            f" rate {record['learning_rate']:.3g}, {examples_per_second:,.0f} examples/s"
        )
        self._since.clear()
        self._seconds = 0.0

    def _show(self, batch: Batch, call: Call, writer: MetricWriter) -> None:
        """Shows some of this host's first inputs in TensorBoard."""
        first = jax.tree.map(lambda leaf: np.asarray(leaf.addressable_data(0)), batch)
        rows = jax.tree.map(lambda leaf: (leaf if call.num_steps == 1 else leaf[0])[:_SHOWN], first)
        resident = self._run.feed.examples
        examples = None if resident is None else resident.addressable_data(0)
        images, _ = augment(self._run.recipe, self._run.inputs.task, examples, rows)
        writer.write_image(0, "inputs", tile(images))

    def _say(self, line: str) -> None:
        """Prints a line above the progress bar, in process 0."""
        if self._writer is not None:
            try:
                tqdm.write(line, file=sys.stdout)
                sys.stdout.flush()
            except OSError as error:  # a closed pipe or terminal, or a full disk: the run is saved and ends
                logger.warning("standard output: %s", error.strerror)
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                if self._signals.received is None:  # a second signal would end it unsaved
                    signal.raise_signal(signal.SIGTERM)
