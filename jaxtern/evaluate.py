"""python -m jaxtern.evaluate --workdir=FOLDER [--follow]: loss, precision@1 and recall@5 of a run's checkpoints."""

import contextlib
import json
import logging
import time
from pathlib import Path
from typing import Any

from absl import flags

from jaxtern import command_line

with command_line.loading(__name__):
    import numpy as np

    from jaxtern import own_networks
    from jaxtern.artifact.predictions import rank, require_writable, write_predictions
    from jaxtern.training.run.evaluation import Evaluation, evaluate
    from jaxtern.training.run.metrics import EventFile, read_records
    from jaxtern.training.run.saved_run import open_run
    from jaxtern.training.step.state import TrainState, variables_of

logger = logging.getLogger(__name__)

WORKDIR = flags.DEFINE_string("workdir", "runs/digits", "folder of the run")
SPLIT = flags.DEFINE_enum("split", "test", ["train", "test"], "examples to evaluate on")
FOLLOW = flags.DEFINE_bool(
    "follow", False, "go on beside training: wait for new checkpoints, end with the last step; also for TensorBoard"
)
POLL_SECONDS = flags.DEFINE_float("poll_seconds", 2.0, "time between looks for a new checkpoint", lower_bound=0.01)
BEST = flags.DEFINE_bool("best", False, "of the checkpoints evaluated in training, that of best precision@1")
STEP = flags.DEFINE_integer("step", None, "of the checkpoint [the newest that is whole]")
AVERAGED = flags.DEFINE_bool("averaged", True, "take the moving averages of the weights, where the run keeps them")
DATA_DIR = flags.DEFINE_string("data_dir", None, "folder of the dataset, where it has moved since training")
PREDICTIONS = flags.DEFINE_string("predictions", None, "file for the five best labels of every example, .csv")
flags.adopt_module_key_flags(own_networks)
_TOP = 5


def main() -> int:
    own_networks.add_networks()
    with command_line.refusing():
        run()
    return 0


def run() -> None:
    """Evaluates by the flags.

    Raises:
      ValueError, OSError: for flags that do not go together, or what cannot be read or written.
    """
    workdir, predictions = Path(WORKDIR.value), Path(PREDICTIONS.value) if PREDICTIONS.value else None
    if predictions is not None:
        require_writable(predictions)
    for flag in (STEP, BEST, PREDICTIONS):
        if FOLLOW.value and flag.value not in (None, False):
            raise ValueError(f"--{flag.name}={flag.value}: is of one checkpoint; leave out --follow")
    if BEST.value and STEP.value is not None:
        raise ValueError(f"--step={STEP.value}: leave it out where --best says which")
    while FOLLOW.value and not all((workdir / name).exists() for name in ("config.json", "checkpoints")):
        time.sleep(POLL_SECONDS.value)
    evaluator = Evaluator(workdir, SPLIT.value, DATA_DIR.value, AVERAGED.value)
    if predictions is not None and not evaluator.of_images:
        raise ValueError(f"--predictions={predictions}: are of images, and the data of this run are text")
    if FOLLOW.value:
        evaluator.follow(POLL_SECONDS.value)
    else:
        evaluator.evaluate(STEP.value, BEST.value, predictions)


class Evaluator:
    """Evaluates checkpoints of a run, each once; results are kept in `<workdir>/evaluations.jsonl`.

    Attributes:
      of_images: whether the run's data are images.
    """

    def __init__(self, workdir: Path, split: str, data_dir: str | None, averaged: bool = True):
        """Loads the run's recipe, data and model.

        Raises:
          ValueError, OSError: if there is no run, or its data cannot be read.
        """
        self._run, self._inputs = open_run(workdir, data_dir)
        self._split_name, self._events = split, None
        self._averaged = averaged or not self._run.recipe.model.average_decay
        self.of_images = self._inputs.task.of_images
        self._path = workdir / "evaluations.jsonl"

    def evaluate(self, step: int | None = None, best: bool = False, predictions: Path | None = None) -> dict[str, Any]:
        """The result of one checkpoint, which `SavedRun.restore` finds by step and best.

        With a file for the predictions of every example, it is evaluated again, if need be.

        Raises:
          ValueError: if there is none.
        """
        return self._evaluate(self._run.restore(step, best), predictions)

    def follow(self, poll_seconds: float) -> None:
        """Evaluates all checkpoints as they come, until that of the last step; TensorBoard has the results, too.

        Raises:
          OSError: if they cannot be written.
        """
        seen: set[int] = set()
        name = f"evaluated_{self._split_name}{'_last' * (not self._averaged)}"
        with contextlib.closing(EventFile(self._path.parent / "tensorboard" / name, -1)) as self._events:
            while self._run.recipe.run.num_steps not in seen:
                for step in (step for step in self._run.steps() if step not in seen):
                    seen.add(step)
                    try:
                        state = self._run.restore(step)
                    except ValueError as error:  # also one that the trainer has meanwhile deleted
                        logger.warning("%s; leaving it out", error)
                    else:
                        self._evaluate(state)
                if self._run.recipe.run.num_steps not in seen:
                    time.sleep(poll_seconds)

    def _evaluate(self, state: TrainState, predictions: Path | None = None) -> dict[str, Any]:
        """The record of one checkpoint, kept from before or measured now."""
        step, split = int(state.step), self._split_name
        kind = {"step": step, "split": split, "averaged": self._averaged}
        kept = [record for record in read_records(self._path, ["split"]) if set(Evaluation._fields[:-1]) <= set(record)]
        record = next((record for record in kept if kind.items() <= record.items()), None)
        if record is None or predictions is not None:
            measured = kind | self._measure(state, predictions).scalars()
            if record is None:
                self._append(measured)
            record = measured
        result = Evaluation.from_scalars(record)
        if self._events is not None:
            self._events.write(step, {f"{split}/{name}": value for name, value in result.scalars().items()})
        described = result.describe(split, self._run.recipe.model.loss)
        print(f"step {step}: {described} on {record['num_examples']:,} examples", flush=True)
        return record

    def _measure(self, state: TrainState, predictions: Path | None) -> Evaluation:
        """Of one checkpoint; where asked for, the predictions that it counts are written."""
        inputs, logits = self._inputs, []
        split = getattr(inputs.dataset, self._split_name)
        command_line.tell(f"evaluating {split.size:,} examples")
        collect, loss = None if predictions is None else logits.append, self._run.recipe.model.loss
        what = self._run.graph, variables_of(state, self._averaged), split, inputs.task, inputs.threads
        result = evaluate(*what, collect=collect, loss=loss)
        if predictions is not None:
            dataset = inputs.dataset
            labels = dataset.class_names or tuple(map(str, range(dataset.num_classes)))
            keys = [split.key(example) for example in range(split.size)]
            true = [split.read(example).label for example in range(split.size)]
            write_predictions(predictions, rank(keys, np.concatenate(logits), labels, _TOP, true))
        return result

    def _append(self, record: dict[str, Any]) -> None:
        """Adds a record, in the place of a line that a kill cut short."""
        with self._path.open("ab+") as file:
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            file.write(json.dumps(record).encode() + b"\n")


if __name__ == "__main__":
    command_line.run(main)
