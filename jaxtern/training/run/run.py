"""Prepares a run: checks everything, and restores its state.

Only process 0 touches the run's folder. It sends the restored state to the others, so hosts need not share a folder.
"""

import contextlib
import dataclasses
import functools
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import jax
from jax.sharding import Mesh

from jaxtern.compression.methods import METHODS
from jaxtern.compression.network.calibration import calibrate
from jaxtern.compression.network.links import Network, Traffic
from jaxtern.compression.report import WireReport, wire_report
from jaxtern.data.dataset import Dataset
from jaxtern.data.fingerprint import digest_split, fingerprint
from jaxtern.data.records import require_apart
from jaxtern.data.rendering import Share
from jaxtern.hosts import agreement, messages
from jaxtern.hosts.heartbeats import named
from jaxtern.models import functions_of
from jaxtern.training import LOSSES
from jaxtern.training.recipe.mean import MeanSection
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.run.calls import phase_at, steps_per_call
from jaxtern.training.run.divergence import DivergenceGuard
from jaxtern.training.run.evaluation import Evaluation, evaluate
from jaxtern.training.run.inputs import Feed, Inputs, create_network, facts_of, open_inputs
from jaxtern.training.saved.checkpoints import Checkpoints
from jaxtern.training.saved.elastic import carry_over
from jaxtern.training.saved.initialization import initialize
from jaxtern.training.saved.workdir import claim_workdir, keep_facts, read_network, write_run
from jaxtern.training.step.mean import create_reducers
from jaxtern.training.step.mesh import DEVICE_AXIS, create_mesh, lay_out
from jaxtern.training.step.state import Program, TrainState, create_run, place_state, specs_of_state, variables_of
from jaxtern.training.step.step import Metrics, create_train_step

_OF_A_HOST = "data.dir", "data.decode_threads", "data.decode_processes"  # fields that may differ between hosts


@dataclasses.dataclass
class Run:
    """A run that is ready to continue from `state`."""

    recipe: Recipe  # recipe with `lay_out` applied, for the devices of this cluster
    given: Recipe  # recipe as given, as the folder keeps it
    workdir: Path
    mesh: Mesh
    inputs: Inputs
    feed: Feed
    program: Program
    state: TrainState
    train_step: Callable[..., tuple[TrainState, Metrics]]  # takes (state, examples, batch or batches, call, stops)
    examples_seen: int  # examples before `state`
    wires: list[WireReport]  # what a worker sends in a step, in each phase of the run (`Program.means`)
    guard: DivergenceGuard
    checkpoints: Checkpoints | None  # the run's checkpoints, in process 0
    opened: contextlib.ExitStack  # closes the checkpoints and releases the folder
    last_saved: int = 0  # step of the newest checkpoint

    def save(self, step: int, evaluation: Evaluation | None = None) -> None:
        """Starts to write a checkpoint of the state, at `step`, with its evaluation; all processes must call it.

        Raises CheckpointError if this checkpoint, or the one before, cannot be written.
        """
        state = messages.to_host(self.state)
        if self.checkpoints is not None:
            metadata = {"recipe": self.recipe.to_dict(), "examples_seen": self.examples_seen}
            self.checkpoints.save(step, state, evaluation.scalars() if evaluation else None, **metadata)
        self.last_saved = step

    def describe_sent(self) -> str:
        """Describes what a worker sends in an average step of the run."""
        size, batch, steps = self.inputs.dataset.train.size, self.recipe.run.batch_size, self.recipe.run.num_steps
        local = self.recipe.local
        period = max(1, local.steps // local.fragments)  # steps between exchanges, each `delay` steps before its merge
        sending = range(period - 1 - local.delay, steps, period)
        phases = Counter(phase_at(self.recipe.mean, size, step, step * batch) for step in sending)
        wire, count = self.wires[max(phases)], len(sending)
        total = sum((self.wires[phase].traffic.over(1 / times) for phase, times in phases.items()), Traffic())
        floats = f" ({phases[0]:,} of {count:,} exchanges float)" if 0 < phases[0] < count else ""
        return f"{wire._replace(traffic=total.over(count)).summary()}{floats}"

    def evaluate(self) -> Evaluation:
        """Evaluates the weights, or their moving averages if kept, on the test split.

        Each process takes a part of the split; all must call it. Raises DataError if an example cannot be read.
        """
        inputs, share = self.inputs, Share(jax.process_index(), jax.process_count())
        variables = jax.tree.map(lambda leaf: leaf.addressable_data(0), variables_of(self.state))
        test, loss = inputs.dataset.test, self.recipe.model.loss
        return evaluate(self.program.graph, variables, test, inputs.task, inputs.threads, share=share, loss=loss)

    def close(self) -> None:
        """Waits until all is written, and releases the folder; raises CheckpointError if something was not written."""
        self.opened.close()


def prepare_run(given: Recipe, workdir: Path, allow_config_change: bool = False) -> Run:
    """Checks all that can be checked before the first step, and restores the state; all processes must call it.

    Raises ValueError or OSError, in one line, for a recipe, data or folder that does not fit, or if processes do not
    train the same.
    """
    recipe, is_first = lay_out(given), jax.process_index() == 0
    mesh = create_mesh(recipe)
    messages.connect(mesh)
    inputs = open_inputs(recipe.data, recipe.run.steps_per_call)
    recipe = recipe.replace(run={"steps_per_call": steps_per_call(recipe.run, inputs.resident)})
    require_apart(inputs.dataset)
    if jax.process_count() > 1:
        _require_agreement(given, inputs.dataset)
        _require_run_of_first(workdir)
    feed = Feed(recipe.data, recipe.run, inputs, mesh)
    begins = is_first and recipe.model.init_from is not None and not Checkpoints.exist(workdir)
    create = initialize if begins else create_network
    model = create(recipe.model, inputs.input_shape, inputs.dataset.num_classes, recipe.run.seed)
    network = find_network(recipe.mean, mesh, workdir)
    program, state = create_run(recipe, model, inputs.dataset.train.size, mesh, network)
    reducers = create_reducers(recipe.mean, model.last_layer, network)
    wires = [
        wire_report(state.params, each, recipe.run.num_workers, **recipe.local.report_options) for each in reducers
    ]
    fresh, checkpoints, restored = messages.to_host(state), None, None
    with contextlib.ExitStack() as opened:
        if is_first:
            opened.enter_context(claim_workdir(workdir, given, allow_config_change))
            checkpoints = Checkpoints(workdir, recipe.run.keep_checkpoints, recipe.run.keep_best)
            opened.callback(checkpoints.close)
            restored = checkpoints.restore_latest(fresh, functools.partial(carry_over, recipe=recipe))
            facts = facts_of(inputs.task, inputs.dataset)._replace(digest=digest_split(inputs.dataset.train))
            keep_facts(workdir, facts, allow_config_change)
            write_run(workdir, given, network)  # not before the run's state and data are found to fit
        # Process 0 tells the others where the run continues; `seen` is None for a new run.
        seen = messages.broadcast_json(restored and restored.metadata["examples_seen"])
        start = messages.broadcast_arrays(restored.state if restored else fresh)
        state = place_state(start, mesh)
        compiled = functools.cache(lambda call: create_train_step(recipe, program, mesh, **call._asdict()))
        hosts = messages.gather_json(socket.gethostname())
        period = recipe.run.compare_every and (recipe.local.steps or recipe.run.compare_every)
        guard = DivergenceGuard(period, mesh, specs_of_state(recipe.local.steps > 0), hosts)
        run = Run(
            recipe, given, workdir, mesh, inputs, feed, program, state,
            lambda state, examples, batch, call, stops=None: compiled(call)(state, examples, batch, stops),
            seen or 0, wires, guard, checkpoints, opened, int(start.step),
        )  # fmt: skip
        if seen is None:
            run.save(0)
        run.opened = opened.pop_all()
    return run


def _require_agreement(given: Recipe, dataset: Dataset) -> None:
    """Raises ValueError if processes do not train the same."""
    config = {name: value for name, value in given.by_name().items() if name not in _OF_A_HOST}
    facts = {"config": config, "data": fingerprint(dataset), "code": agreement.describe_code()}
    facts["network"] = agreement.describe_source(functions_of(given.model.name))
    facts["method"] = agreement.describe_source([METHODS.get(given.mean.method)])
    facts["loss"] = agreement.describe_source([LOSSES.get(given.model.loss)])
    agreement.require_same(facts)


def _require_run_of_first(workdir: Path) -> None:
    """Raises ValueError if another process has checkpoints in the run's folder and process 0, which reads it, none."""
    found = messages.gather_json([Checkpoints.exist(workdir), socket.gethostname()])
    holder = next((number for number, (has, _) in enumerate(found) if has), 0)
    if holder:
        raise ValueError(
            f"workdir={str(workdir)!r}: {named(holder, found[holder][1])} has checkpoints there, and"
            f" {named(0, found[0][1])}, which reads them for all, has none; copy the folder, or take another --workdir"
        )


def find_network(mean: MeanSection, mesh: Mesh, workdir: Path) -> Network | None:
    """The links by which "auto" chooses: given, stored when the run began, or measured now; None if they are not used.

    Raises ValueError if the stored links cannot be read.
    """
    if not mean.needs_links or mesh.shape[DEVICE_AXIS] == 1:
        return None
    stored = read_network(workdir) if jax.process_index() == 0 else None
    stored = messages.broadcast_json(stored and dataclasses.asdict(stored))
    return Network(**stored | mean.links) if stored else calibrate(mesh, DEVICE_AXIS, **mean.links)
