"""The flag --networks of the doors that open a run, whose network, method or loss may be the user's own."""

import runpy

from absl import flags

from jaxtern.command_line import UsageError

NETWORKS = flags.DEFINE_string(
    "networks",
    None,
    "Python file that adds the run's network to jaxtern.models.MODELS, its method to jaxtern.METHODS, or its loss to"
    " jaxtern.training.LOSSES, such as its recipe; it is run",
)


def add_networks() -> None:
    """Runs the file of the flag, where it is given.

    Raises:
      UsageError: if it fails.
    """
    if NETWORKS.value is None:
        return
    try:
        runpy.run_path(NETWORKS.value)
    except Exception as error:  # noqa: BLE001 - code may raise anything
        raise UsageError(f"--networks={NETWORKS.value}: {type(error).__name__}: {error}") from None
