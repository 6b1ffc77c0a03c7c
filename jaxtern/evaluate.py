"""python -m jaxtern.evaluate --workdir=FOLDER [--follow]: measures loss, precision@1 and recall@5 of checkpoints."""

import contextlib
import json
import logging
import time
from pathlib import Path
from typing import Any

from absl import flags

from jaxtern import command_line, run_flags
from jaxtern.run_flags import AVERAGED, BEST, DATA_DIR, STEP, WORKDIR

with command_line.loading(__name__):
    import numpy as np

    from jaxtern.artifact.predictions import rank, write_predictions
    from jaxtern.data.durable import naming, require_writable
    from jaxtern.data.fingerprint import digest_split
    from jaxtern.training.run.evaluation import Evaluation, evaluate
    from jaxtern.training.run.metrics import EventFile, read_records
    from jaxtern.training.run.saved_run import open_run
    from jaxtern.training.saved.checkpoints import CheckpointError
    from jaxtern.training.saved.trees import digest
    from jaxtern.training.step.state import TrainState, variables_of

logger = logging.getLogger(__name__)

SPLIT = flags.DEFINE_enum("split", "test", ["train", "test"], "examples to evaluate on")
FOLLOW = flags.DEFINE_bool(
    "follow", False, "evaluate new checkpoints while the run trains, up to its last step; also for TensorBoard"
)
POLL_SECONDS = flags.DEFINE_float("poll_seconds", 2.0, "time between looks for a new checkpoint", lower_bound=0.01)
PREDICTIONS = flags.DEFINE_string("predictions", None, "file for the five best labels of every example, .csv")
flags.adopt_module_key_flags(run_flags)
_TOP = 5


def main() -> int:
    run_flags.prepare()
    with command_line.refusing():
        workdir, predictions = Path(WORKDIR.value), Path(PREDICTIONS.value) if PREDICTIONS.value else None
        if predictions is not None:
            require_writable("predictions", predictions, [".csv"])
        for flag in (STEP, BEST, PREDICTIONS):
            if FOLLOW.value and flag.value not in (None, False):
                raise ValueError(f"--{flag.name}={flag.value}: is for one checkpoint; leave out --follow")
        if FOLLOW.value:
            command_line.tell(f"following {workdir}")
        while FOLLOW.value and not all((workdir / name).exists() for name in ("config.json", "checkpoints")):
            time.sleep(POLL_SECONDS.value)
        evaluator = Evaluator(workdir, SPLIT.value, DATA_DIR.value, AVERAGED.value)
        if predictions is not None and not evaluator.of_images:
            raise ValueError(f"--predictions={predictions}: must be left out, as the data of this run are text")
        if FOLLOW.value:
            evaluator.follow(POLL_SECONDS.value)
        else:
            evaluator.evaluate(STEP.value, BEST.value, predictions)
    return 0


class Evaluator:
    """Evaluates checkpoints of a run, each once, and keeps the results in `<workdir>/evaluations.jsonl`."""

    def __init__(self, workdir: Path, split: str, data_dir: str | None, averaged: bool = True):
        """Opens the run and its data; raises ValueError or OSError if they cannot be read."""
        self._run, self._inputs = open_run(workdir, data_dir)
        self._split_name, self._events = split, None
        self._averaged = averaged or not self._run.recipe.model.average_decay
        self._data = digest_split(getattr(self._inputs.dataset, split))
        self.of_images = self._inputs.task.of_images  # whether the run's data are images
        self._path = workdir / "evaluations.jsonl"

    def evaluate(self, step: int | None = None, best: bool = False, predictions: Path | None = None) -> dict[str, Any]:
        """Evaluates the checkpoint that `SavedRun.restore` finds; raises ValueError if there is none.

        If a file for predictions is given, it evaluates again even a checkpoint whose result is known.
        """
        return self._evaluate(self._run.restore(step, best), predictions)

    def follow(self, poll_seconds: float) -> None:
        """Evaluates all checkpoints as they come, up to the last step, also for TensorBoard; OSError if that fails."""
        seen: set[int] = set()
        name = f"evaluated_{self._split_name}{'_last' * (not self._averaged)}"
        with contextlib.closing(EventFile(self._path.parent / "tensorboard" / name, -1)) as self._events:
            while max(seen, default=-1) < self._run.recipe.run.num_steps:
                for step in (step for step in self._run.checkpoints.steps() if step not in seen):
                    seen.add(step)
                    try:
                        state = self._run.restore(step)
                    except CheckpointError as error:  # if the trainer has not deleted it, it is still listed
                        seen.remove(step)
                        logger.warning("%s; trying again", error)
                    except ValueError as error:  # it is damaged, or the trainer has deleted it
                        logger.warning("%s; leaving it out", error)
                    else:
                        self._evaluate(state)
                if max(seen, default=-1) < self._run.recipe.run.num_steps:
                    time.sleep(poll_seconds)

    def _evaluate(self, state: TrainState, predictions: Path | None = None) -> dict[str, Any]:
        """The record of one checkpoint, read from evaluations.jsonl or measured now."""
        step, split = int(state.step), self._split_name
        own = digest(variables_of(state, self._averaged))
        kind = {"step": step, "split": split, "averaged": self._averaged, "digest": own + self._data}
        kept, fields = read_records(self._path, ["split", "digest"]), {*kind, *Evaluation._fields[:-1]}
        record = known = next((each for each in kept if fields <= set(each) and kind.items() <= each.items()), None)
        if record is None or predictions is not None:
            record = kind | self._measure(state, predictions).scalars()
        result = Evaluation.from_scalars(record)
        if self._events is not None:
            self._events.write(step, {f"{split}/{name}": value for name, value in result.scalars().items()})
        described = result.describe(split, self._run.recipe.model.loss)
        print(f"step {step}: {described} on {record['num_examples']:,} examples", flush=True)
        if known is None:
            with naming(self._path), self._path.open("ab+") as file:
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)  # over a last line that a kill cut short
                file.write(json.dumps(record).encode() + b"\n")
        return record

    def _measure(self, state: TrainState, predictions: Path | None) -> Evaluation:
        """Evaluates one checkpoint, and writes its predictions if a file is given."""
        inputs, dataset, logits = self._inputs, self._inputs.dataset, []
        split = getattr(dataset, self._split_name)
        if self._events is None:
            command_line.tell(f"evaluating {split.size:,} examples")
        variables, loss = variables_of(state, self._averaged), self._run.recipe.model.loss
        collect = None if predictions is None else logits.append
        result = evaluate(self._run.graph, variables, split, inputs.task, inputs.threads, collect, loss=loss)
        if predictions is not None:
            labels = dataset.class_names or tuple(map(str, range(dataset.num_classes)))
            keys = [split.key(example) for example in range(split.size)]
            true = [split.read(example).label for example in range(split.size)]
            write_predictions(predictions, rank(keys, np.concatenate(logits), labels, _TOP, true))
        return result


if __name__ == "__main__":
    command_line.run(main)
