"""python -m jaxtern.launch -n N [--max_restarts=R] -- FLAGS: runs N processes of jaxtern.train on this machine."""

import sys

from absl import flags

from jaxtern import command_line
from jaxtern.hosts.processes import launch

NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "number of processes", 1, 4096, short_name="n")
MAX_RESTARTS = flags.DEFINE_integer("max_restarts", 0, "how often to start all again after a failure", 0)
GRACE_SECONDS = flags.DEFINE_float("grace_seconds", 30.0, "between SIGTERM and SIGKILL, once a process has ended")
flags.register_validator(GRACE_SECONDS, lambda seconds: seconds >= 0, "must not be negative")


def main(*train_flags: str) -> int:
    if NUM_PROCESSES.value is None:
        raise command_line.UsageError("-n: must be given, as in python -m jaxtern.launch -n 4 -- --config=digits")
    command = [sys.executable, "-m", "jaxtern.train", *train_flags]
    with command_line.refusing():
        return launch(command, NUM_PROCESSES.value, MAX_RESTARTS.value, GRACE_SECONDS.value)


if __name__ == "__main__":
    command_line.run(main, ["-- FLAG..."])
