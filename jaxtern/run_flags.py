"""The flags of the doors that open a run: its folder, one of its checkpoints, and the user's own code for it."""

import runpy

from absl import flags

from jaxtern.command_line import UsageError

WORKDIR = flags.DEFINE_string("workdir", "runs/digits", "folder of the run")
STEP = flags.DEFINE_integer("step", None, "step of the checkpoint [the newest that is whole]")
BEST = flags.DEFINE_bool("best", False, "take the checkpoint of best precision@1, among those evaluated in training")
AVERAGED = flags.DEFINE_bool("averaged", True, "take the moving averages of the weights, if the run keeps them")
DATA_DIR = flags.DEFINE_string("data_dir", None, "folder of the dataset, if it has moved since training")
NETWORKS = flags.DEFINE_string(
    "networks",
    None,
    "Python file to run first, such as the recipe, which adds the run's network to jaxtern.models.MODELS, its method to"
    " jaxtern.METHODS, or its loss to jaxtern.training.LOSSES",
)


def prepare() -> None:
    """Checks the flags and runs the file of --networks; raises UsageError if that fails."""
    if BEST.value and STEP.value is not None:
        raise UsageError(f"--step={STEP.value}: leave it out, as --best picks the checkpoint")
    if NETWORKS.value is None:
        return
    try:
        runpy.run_path(NETWORKS.value)
    except Exception as error:  # noqa: BLE001 - the file may raise anything
        raise UsageError(f"--networks={NETWORKS.value}: {type(error).__name__}: {error}") from None
