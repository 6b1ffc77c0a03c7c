"""python -m jaxtern.launch -n N [--max_restarts=R] -- FLAGS: runs N processes of jaxtern.train on this machine."""

import sys

from absl import flags

from jaxtern import command_line
from jaxtern.hosts.processes import launch

NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "how many processes to start", short_name="n")
MAX_RESTARTS = flags.DEFINE_integer("max_restarts", 0, "how often to start all again from the last checkpoint")
GRACE_SECONDS = flags.DEFINE_float("grace_seconds", 30.0, "from SIGTERM to SIGKILL, for those left when one has ended")


def main(*train_flags: str) -> int:
    if NUM_PROCESSES.value is None:
        raise command_line.UsageError("-n: must be given, as in python -m jaxtern.launch -n 4 -- --config=digits")
    try:
        return launch(
            [sys.executable, "-m", "jaxtern.train", *train_flags],
            NUM_PROCESSES.value,
            max_restarts=MAX_RESTARTS.value,
            grace_seconds=GRACE_SECONDS.value,
        )
    except ValueError as error:
        raise command_line.UsageError(str(error)) from None


if __name__ == "__main__":
    command_line.run(main, ["FLAG..."])
