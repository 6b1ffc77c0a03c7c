"""A run's folder, opened by those who do not train it on."""

from pathlib import Path

from jaxtern.models.model import Model
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.run.inputs import Inputs, create_network, open_inputs
from jaxtern.training.saved.arrange import arrange
from jaxtern.training.saved.checkpoints import Checkpoint, Checkpoints
from jaxtern.training.saved.workdir import read_network, read_recipe
from jaxtern.training.step.mesh import create_mesh
from jaxtern.training.step.state import TrainState, create_run


class SavedRun:
    """The checkpoints of a run.

    Attributes:
      recipe: of the run.
      graph: static part of its model.
    """

    def __init__(self, workdir: Path, recipe: Recipe, model: Model, num_examples: int):
        """Finds the checkpoints in a run's folder; the model is one of its recipe, with any weights.

        Raises:
          ValueError, OSError: if the folder cannot be read.
        """
        self.recipe = recipe
        alone = recipe.replace(run={"num_devices": 1}, mean={"devices_per_worker": 1}, model={"batch_norm": "local"})
        unsent = recipe.replace(
            mean={"method": "float", "delayed": False}, local={"steps": 0}
        )  # what workers carry is large
        mesh, network = create_mesh(alone), read_network(workdir)
        program, self._like = create_run(unsent, model, num_examples, mesh, network)
        self.graph = program.graph
        self._workdir, self._checkpoints = workdir, Checkpoints(workdir)

    def steps(self) -> list[int]:
        """Of its checkpoints, rising."""
        return self._checkpoints.steps()

    def restore(self, step: int | None = None, best: bool = False) -> TrainState:
        """The state of a checkpoint, but for what only training needs, which is None.

        Args:
          step: of the checkpoint; None: the newest that is whole.
          best: whether to take that of best precision@1, by the evaluation that training made as it saved it.

        Raises:
          ValueError: if there is no such checkpoint, or it is damaged.
        """
        workdir, missing = f"workdir={str(self._workdir)!r}", "can be read"
        if best:
            step = self._checkpoints.best_step()
            missing = "was evaluated when it was saved (run.evaluate_every, run.checkpoint_every)"
        elif step is None:
            newest = self._checkpoints.restore_latest(self._like, _fit_network)
            if newest is not None:
                return newest.state
        elif step not in self.steps():
            there = ", ".join(map(str, self.steps())) or "none"
            raise ValueError(f"step={step}: {workdir} holds no such checkpoint; available: {there}")
        if step is None:
            raise ValueError(f"{workdir}: holds no checkpoint that {missing}")
        return self._checkpoints.restore(step, self._like, _fit_network).state


def open_run(workdir: Path, data_dir: str | None = None) -> tuple[SavedRun, Inputs]:
    """A run and its data, which are in `data_dir` where they have moved since training.

    Raises:
      ValueError, OSError: if there is no run, or its data cannot be read.
    """
    recipe = read_recipe(workdir)
    inputs = open_inputs(recipe.data, data_dir=data_dir)
    model = create_network(recipe.model, inputs.input_shape, inputs.dataset.num_classes, recipe.run.seed)
    return SavedRun(workdir, recipe, model, inputs.dataset.train.size), inputs


def _fit_network(saved: Checkpoint, like: TrainState) -> TrainState:
    """A state of which only the network is that of the checkpoint, which other workers may have written."""
    needed = ("step", "params", "frozen", "moments", "averages")
    own = like._replace(**{name: None for name in TrainState._fields if name not in needed})
    return arrange({name: saved.state.get(name) for name in needed}, own)
