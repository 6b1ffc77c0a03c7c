"""python -m jaxtern.evaluate --workdir=FOLDER [--follow]: loss, precision@1 and recall@5 of a run's checkpoints."""

import dataclasses
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from absl import flags

from jaxtern import command_line
from jaxtern.training.checkpoints import Checkpoints
from jaxtern.training.evaluation import evaluate
from jaxtern.training.inputs import create_network, open_inputs
from jaxtern.training.recipe import Recipe
from jaxtern.training.state import create_run, variables_of
from jaxtern.training.step import create_mesh
from jaxtern.training.workdir import read_network, read_recipe

logger = logging.getLogger(__name__)

WORKDIR = flags.DEFINE_string("workdir", "runs/digits", "folder of the run")
SPLIT = flags.DEFINE_enum("split", "test", ["train", "test"], "examples to evaluate on")
FOLLOW = flags.DEFINE_bool("follow", False, "go on beside training: wait for new checkpoints, end with the last step")
POLL_SECONDS = flags.DEFINE_float("poll_seconds", 2.0, "time between looks for a new checkpoint", lower_bound=0.01)
DATA_DIR = flags.DEFINE_string("data_dir", None, "folder of the dataset, where it has moved since training")


def main() -> int:
    workdir = Path(WORKDIR.value)
    try:
        if FOLLOW.value:
            _wait_for_run(workdir)
        evaluator = Evaluator(workdir, SPLIT.value, DATA_DIR.value)
        if FOLLOW.value:
            for _ in evaluator.follow(POLL_SECONDS.value):
                pass
        else:
            evaluator.latest()
    except (ValueError, OSError) as error:
        raise command_line.UsageError(str(error)) from None
    except KeyboardInterrupt:
        return 130
    return 0


def _wait_for_run(workdir: Path) -> None:
    while not all((workdir / name).exists() for name in ("config.json", "checkpoints")):
        time.sleep(POLL_SECONDS.value)


class Evaluator:
    """Evaluates checkpoints of a run, each once; results are kept in `<workdir>/evaluations.jsonl`."""

    def __init__(self, workdir: Path, split: str, data_dir: str | None):
        """Loads the run's recipe, data and model.

        Raises:
          ValueError, OSError: if there is no run, or its data cannot be read.
        """
        self._recipe: Recipe = read_recipe(workdir)
        self._split_name = split
        self._inputs = open_inputs(self._recipe, data_dir)
        dataset = self._inputs.dataset
        model = create_network(self._recipe, self._inputs)
        alone = dataclasses.replace(self._recipe, num_devices=1, devices_per_worker=1)
        mesh, network = create_mesh(alone), read_network(workdir)
        self._program, self._like = create_run(self._recipe, model, dataset.train.size, mesh, network)
        self._checkpoints = Checkpoints(workdir)
        self._path = workdir / "evaluations.jsonl"

    def latest(self) -> dict[str, Any]:
        """The result of the newest checkpoint that is whole.

        Raises:
          ValueError: if there is none.
        """
        for step in reversed(self._checkpoints.steps()):
            try:
                return self._evaluate(step)
            except ValueError as error:
                logger.warning("%s; taking the one before it", error)
        raise ValueError(f"workdir={str(self._path.parent)!r}: holds no checkpoint that can be read")

    def follow(self, poll_seconds: float) -> Iterator[dict[str, Any]]:
        """Results of all checkpoints as they come, until that of the last step."""
        seen: set[int] = set()
        while self._recipe.num_steps not in seen:
            for step in self._checkpoints.steps():
                if step not in seen:
                    seen.add(step)
                    try:
                        yield self._evaluate(step)
                    except ValueError as error:  # also one that the trainer has meanwhile deleted
                        logger.warning("%s; leaving it out", error)
            if self._recipe.num_steps not in seen:
                time.sleep(poll_seconds)

    def _evaluate(self, step: int) -> dict[str, Any]:
        """The record of one checkpoint, kept from before or measured now."""
        record = self._recorded(step)
        if record is None:
            variables = variables_of(self._checkpoints.restore(step, self._like).state)
            result = evaluate(
                self._program.graph, variables, getattr(self._inputs.dataset, self._split_name),
                self._inputs.preprocessing, self._recipe.image_size, self._inputs.threads,
            )  # fmt: skip
            record = {"step": step, "split": self._split_name, **result._asdict()}
            with self._path.open("a") as file:
                file.write(json.dumps(record) + "\n")
        print(
            f"step {step}: {self._split_name} loss {record['loss']:.4f}, precision@1 {record['precision_at_1']:.2%},"
            f" recall@5 {record['recall_at_5']:.2%} on {record['num_examples']:,} examples",
            flush=True,
        )
        return record

    def _recorded(self, step: int) -> dict[str, Any] | None:
        if not self._path.exists():
            return None
        records = [json.loads(line) for line in self._path.read_text().splitlines()]
        return next((r for r in records if r["step"] == step and r["split"] == self._split_name), None)


if __name__ == "__main__":
    command_line.run(main)
