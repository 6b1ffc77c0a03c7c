"""python -m jaxtern.evaluate --workdir=FOLDER [--follow]: loss, precision@1 and recall@5 of a run's checkpoints."""

import contextlib
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from jaxtern import command_line, own_networks
from jaxtern.artifact.predictions import rank, require_writable, write_predictions
from jaxtern.data.json_files import parse_json
from jaxtern.training.run.evaluation import Evaluation, evaluate
from jaxtern.training.run.metrics import EventFile
from jaxtern.training.run.saved_run import SavedRun
from jaxtern.training.step.state import variables_of

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
    workdir, predictions = Path(WORKDIR.value), Path(PREDICTIONS.value) if PREDICTIONS.value else None
    own_networks.add_networks()
    try:
        if predictions is not None:
            require_writable(predictions)
        of_one = {"step": STEP.value is not None, "best": BEST.value, "predictions": predictions is not None}
        for name in (name for name, is_given in of_one.items() if is_given and FOLLOW.value):
            raise ValueError(f"--{name}={flags.FLAGS[name].value}: is of one checkpoint; leave out --follow")
        if of_one["best"] and of_one["step"]:
            raise ValueError(f"--step={STEP.value}: leave it out where --best says which")
        while FOLLOW.value and not all((workdir / name).exists() for name in ("config.json", "checkpoints")):
            time.sleep(POLL_SECONDS.value)
        evaluator = Evaluator(workdir, SPLIT.value, DATA_DIR.value, AVERAGED.value)
        if predictions is not None and not evaluator.of_images:
            raise ValueError(f"--predictions={predictions}: are of images, and the data of this run are text")
        if FOLLOW.value:
            for _ in evaluator.follow(POLL_SECONDS.value):
                pass
        else:
            evaluator.evaluate(STEP.value, BEST.value, predictions)
    except (ValueError, OSError) as error:
        raise command_line.UsageError(str(error)) from None
    except KeyboardInterrupt:
        return 130
    return 0


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
        self._run, self._split_name, self._events = SavedRun(workdir, data_dir), split, None
        self._averaged = averaged or not self._run.recipe.model.average_decay
        self.of_images = self._run.inputs.task.of_images
        self._path = workdir / "evaluations.jsonl"
        self._read_records()  # here, where what is wrong with them is not taken for a damaged checkpoint

    def evaluate(self, step: int | None = None, best: bool = False, predictions: Path | None = None) -> dict[str, Any]:
        """The result of one checkpoint.

        Args:
          step: of it; None: the newest that is whole.
          best: whether to take the one that was best in training.
          predictions: file for those of every example; it has the checkpoint evaluated again, if need be.

        Raises:
          ValueError: if there is none.
        """
        return self._run.use(lambda found: self._evaluate(found, predictions), step, best)

    def follow(self, poll_seconds: float) -> Iterator[dict[str, Any]]:
        """Results of all checkpoints as they come, until that of the last step; TensorBoard has them, too.

        Raises:
          OSError: if they cannot be written.
        """
        seen: set[int] = set()
        name = f"evaluated_{self._split_name}{'_last' * (not self._averaged)}"
        with contextlib.closing(EventFile(self._path.parent / "tensorboard" / name, -1)) as self._events:
            while self._run.recipe.run.num_steps not in seen:
                for step in self._run.steps():
                    if step not in seen:
                        seen.add(step)
                        try:
                            yield self._evaluate(step)
                        except ValueError as error:  # also one that the trainer has meanwhile deleted
                            logger.warning("%s; leaving it out", error)
                if self._run.recipe.run.num_steps not in seen:
                    time.sleep(poll_seconds)

    def _evaluate(self, step: int, predictions: Path | None = None) -> dict[str, Any]:
        """The record of one checkpoint, kept from before or measured now."""
        split = self._split_name
        known = {(r["step"], r["split"], r.get("averaged", True)): r for r in reversed(self._read_records())}
        record = known.get((step, split, self._averaged))
        if record is None or predictions is not None:
            result = self._measure(step, predictions)
            if record is None:
                self._append(result)
            record = result
        result = Evaluation.from_scalars(record)
        if self._events is not None:
            self._events.write(step, {f"{split}/{name}": value for name, value in result.scalars().items()})
        described = result.describe(split, self._run.recipe.model.loss)
        print(f"step {step}: {described} on {record['num_examples']:,} examples", flush=True)
        return record

    def _measure(self, step: int, predictions: Path | None) -> dict[str, Any]:
        """The record of one checkpoint, measured; where asked for, the predictions that it counts are written."""
        inputs, logits = self._run.inputs, []
        split = getattr(inputs.dataset, self._split_name)
        result = evaluate(
            self._run.graph,
            variables_of(self._run.restore(step), self._averaged),
            split,
            inputs.task,
            inputs.threads,
            collect=None if predictions is None else logits.append,
            loss=self._run.recipe.model.loss,
        )
        if predictions is not None:
            dataset = inputs.dataset
            labels = dataset.class_names or tuple(map(str, range(dataset.num_classes)))
            keys = [split.key(example) for example in range(split.size)]
            true = [split.read(example).label for example in range(split.size)]
            write_predictions(predictions, rank(keys, np.concatenate(logits), labels, _TOP, true))
        kind = {"step": step, "split": self._split_name} | ({} if self._averaged else {"averaged": False})
        return kind | result.scalars()

    def _read_records(self) -> list[dict[str, Any]]:
        """Those of before; refuses a line that is none."""
        records = []
        for number, line in enumerate(self._read_lines()[0].splitlines(), 1):
            try:
                record = parse_json(line)
                _ = [float(record[name]) for name in Evaluation._fields[:-1]]
                records.append(record | {"step": int(record["step"]), "split": str(record["split"])})
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{self._path}: line {number} is no evaluation: {error}; delete it") from None
        return records

    def _read_lines(self) -> tuple[bytes, bytes]:
        """The whole lines of before, and the beginning of one that a kill cut short."""
        text = self._path.read_bytes() if self._path.exists() else b""
        end = text.rfind(b"\n") + 1
        return text[:end], text[end:]

    def _append(self, record: dict[str, Any]) -> None:
        """Adds a record, in the place of a line that a kill cut short."""
        whole, unfinished = self._read_lines()
        with self._path.open("ab") as file:
            if unfinished:
                file.truncate(len(whole))
            file.write(json.dumps(record).encode() + b"\n")


if __name__ == "__main__":
    command_line.run(main)
