"""Opens a run's folder to read it, not to train."""

from pathlib import Path

import numpy as np

from jaxtern.models.model import Model
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.run.inputs import Inputs, create_network, open_inputs
from jaxtern.training.saved.checkpoints import Checkpoint, Checkpoints
from jaxtern.training.saved.trees import arrange
from jaxtern.training.saved.workdir import read_facts, read_recipe
from jaxtern.training.step.state import Averages, TrainState, configure_modules, split_variables


class SavedRun:
    """The checkpoints of a run, its recipe, and `graph`, the static part of its model."""

    def __init__(self, workdir: Path, recipe: Recipe, model: Model):
        """Opens a run's folder, with a model of its recipe; raises ValueError or OSError if it cannot be read."""
        self.recipe = recipe
        configure_modules(model, recipe)
        self.graph, params, frozen, moments = split_variables(model, recipe)
        averages = Averages(params, moments) if recipe.model.average_decay else None
        self._like = TrainState._make([np.int32(0), params, frozen, moments, None, None, averages, None])
        self._workdir, self.checkpoints = workdir, Checkpoints(workdir)

    def restore(self, step: int | None = None, best: bool = False) -> TrainState:
        """Restores a checkpoint, without what only training needs; raises ValueError if it is missing or damaged.

        Args:
          step: step of the checkpoint; None: the newest whole one.
          best: whether to take the one with the best precision@1 among those evaluated when they were saved.
        """
        workdir, missing = f"workdir={str(self._workdir)!r}", "can be read"
        if best:
            step = self.checkpoints.best_step()
            missing = "was evaluated when it was saved (run.evaluate_every, run.checkpoint_every)"
        elif step is None:
            newest = self.checkpoints.restore_latest(self._like, _fit_network)
            if newest is not None:
                return newest.state
        elif step not in self.checkpoints.steps():
            there = ", ".join(map(str, self.checkpoints.steps())) or "none"
            raise ValueError(f"step={step}: {workdir} holds no such checkpoint; available: {there}")
        if step is None:
            raise ValueError(f"{workdir}: holds no checkpoint that {missing}")
        return self.checkpoints.restore(step, self._like, _fit_network).state


def open_run(workdir: Path, data_dir: str | None = None) -> tuple[SavedRun, Inputs]:
    """Opens a run and its data, from `data_dir` if they have moved; raises ValueError or OSError if it cannot."""
    recipe = read_recipe(workdir)
    inputs, facts = open_inputs(recipe.data, data_dir=data_dir), read_facts(workdir)
    if facts is not None and facts.class_names != inputs.dataset.class_names:
        raise ValueError(f"workdir={str(workdir)!r}: its run has other classes than these data, {recipe.data.name}")
    model = create_network(recipe.model, inputs.input_shape, inputs.dataset.num_classes, recipe.run.seed)
    return SavedRun(workdir, recipe, model), inputs


def _fit_network(saved: Checkpoint, like: TrainState) -> TrainState:
    """Takes only the network from a checkpoint, which any number of workers may have written."""
    needed = ("step", "params", "frozen", "moments", "averages")
    return arrange({name: saved.state.get(name) for name in needed}, like)
