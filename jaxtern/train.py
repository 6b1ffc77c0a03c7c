"""python -m jaxtern.train --config=RECIPE --config.run.seed=1 --workdir=FOLDER: trains, evaluates, draws curves."""

import logging
from pathlib import Path

from absl import flags

from jaxtern import command_line

with command_line.loading(__name__):
    import jax

    from jaxtern import cluster, cluster_flags, recipe_flags
    from jaxtern.data.dataset import DataError
    from jaxtern.training.recipe.recipe import Recipe
    from jaxtern.training.run import dry_run, loop
    from jaxtern.training.run.curves import plot_curves
    from jaxtern.training.run.divergence import DivergenceError
    from jaxtern.training.run.evaluation import Evaluation
    from jaxtern.training.run.run import Run, prepare_run
    from jaxtern.training.run.stopping import Stopped
    from jaxtern.training.step.compiler import keep_programs
    from jaxtern.training.step.loss import LossError

WORKDIR = flags.DEFINE_string("workdir", None, "folder of the run; default: runs/<name of the recipe>")
ALLOW_CONFIG_CHANGE = flags.DEFINE_bool(
    "allow_config_change", False, "continue the run in workdir although its config was another"
)
flags.adopt_module_key_flags(cluster_flags)
logger = logging.getLogger(__name__)


def main() -> int:
    recipe = recipe_flags.read_recipe()
    keep_programs()
    if recipe.run.dry_run:
        return rehearse_and_report(recipe)
    if WORKDIR.value == "":
        raise command_line.UsageError("--workdir=: must name a folder")
    cluster_flags.join()
    return train_and_report(recipe, Path(WORKDIR.value or f"runs/{recipe_flags.recipe_path().stem}"))


def train_and_report(recipe: Recipe, workdir: Path) -> int:
    """Trains to the end and reports the result; returns the exit status."""
    process, count = jax.process_index(), jax.process_count()
    reports = f"; process 0 reports, this is process {process} of {count}" if process else ""
    command_line.tell(f"opening the data: {recipe.data.name}{reports}")
    with command_line.refusing(place=workdir):
        run = prepare_run(recipe, workdir, ALLOW_CONFIG_CHANGE.value)
    if run.checkpoints is not None:
        cluster.before_leaving(run.checkpoints.wait)
        print(describe(run), flush=True)
    try:
        result = loop.train(run)
    except (DataError, LossError) as error:
        raise command_line.UsageError(str(error)) from None
    except (loop.NonFiniteError, DivergenceError, OSError) as error:  # the disk is full, or the folder is gone
        raise command_line.Failure(command_line.describe(error, workdir)) from None
    except Stopped as stopped:
        print(stopped)
        return 128 + stopped.signal_number
    if run.checkpoints is not None:
        report(run, result)
    return 0


def report(run: Run, result: Evaluation) -> None:
    """Prints the result of a run, and plots its curves."""
    recipe, workdir = run.recipe, run.workdir
    print(
        f"test accuracy {result.precision_at_1:.2%} (recall@5 {result.recall_at_5:.2%}, loss {result.loss:.4f})"
        f" on {result.num_examples} examples\n"
        f"sent {run.describe_sent()}\n"
        f"checkpoints in {workdir / 'checkpoints'}",
        flush=True,
    )
    title = f"{recipe.model.name} on {recipe.data.name}, {recipe.run.num_workers} workers, {recipe.mean.method}"
    try:
        curves = plot_curves(workdir, title, recipe.model.loss)
    except ModuleNotFoundError as error:
        print(f"no curves.png: {command_line.describe(error)}")
    except (OSError, ValueError, OverflowError) as error:  # the run is complete without the plot
        logger.warning("curves cannot be drawn: %s", command_line.describe(error, workdir))
    else:
        print(f"curves in {curves}")


def rehearse_and_report(recipe: Recipe) -> int:
    """Describes the training and takes three small steps; returns the exit status."""
    with command_line.refusing():
        run = dry_run.prepare_dry_run(recipe)
    print(dry_run.describe(run), flush=True)
    try:
        for line in dry_run.rehearse(run):
            print(line, flush=True)
    except LossError as error:
        raise command_line.UsageError(str(error)) from None
    except loop.NonFiniteError as error:
        raise command_line.Failure(str(error)) from None
    print("dry run passed")
    return 0


def describe(run: Run) -> str:
    """Describes a run in a few lines."""
    recipe, dataset, step = run.recipe, run.inputs.dataset, int(run.state.step)
    parameters = sum(leaf.size for leaf in jax.tree.leaves((run.state.params, run.state.frozen)))
    feed = "resident" if run.inputs.resident else "streamed"
    start = f"from step {step}" if 0 < step < recipe.run.num_steps else "finished" if step else "from the start"
    devices = f" of {jax.local_device_count()} devices" if jax.local_device_count() > 1 else ""
    processes = f" in {jax.process_count()} processes{devices}" if jax.process_count() > 1 else ""
    wire = "\n".join(str(run.wires[1]).splitlines()[-1 if step else 0 :])  # the table was told when the run began
    return (
        f"{recipe.model.name} ({parameters:,} parameters) on {recipe.data.name} ({dataset.train.size:,} training and"
        f" {dataset.test.size:,} test examples, {feed})\n"
        f"{recipe.run.num_workers} workers{processes}, {recipe.local.exchanged} by {recipe.mean.method}\n{wire}\n"
        f"{recipe.run.num_steps:,} steps of {recipe.run.batch_size} examples, {start}, in {run.workdir}"
    )


if __name__ == "__main__":
    with cluster.leaving_when_failed():
        command_line.run(main, more_help=recipe_flags.describe_recipe)
