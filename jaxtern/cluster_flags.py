"""The command-line flags for joining a cluster."""

import sys

from absl import flags

from jaxtern import cluster
from jaxtern.command_line import UsageError

COORDINATOR = flags.DEFINE_string("coordinator", None, "host:port of process 0, if several processes train together")
PROCESS_ID = flags.DEFINE_integer("process_id", None, "number of this process, from 0")
NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "number of processes")
flags.DEFINE_alias("rank", "process_id")
flags.DEFINE_alias("world_size", "num_processes")
START_TIMEOUT = flags.DEFINE_float("start_timeout", 300.0, "seconds within which all processes must have come")
PEER_TIMEOUT = flags.DEFINE_float(
    "peer_timeout", 60.0, "seconds of silence after which a process counts as lost, and all end; process 0 decides"
)


def join() -> cluster.Cluster:
    """Calls `cluster.join` with the flags; raises UsageError for invalid settings, and exits if the start fails."""
    for name, alias in (("process_id", "rank"), ("num_processes", "world_size")):
        if flags.FLAGS[name].present > flags.FLAGS[alias].present > 0:  # an alias counts as both
            raise UsageError(f"--{alias}: is another name of --{name}, which is given, too; give one")
    try:
        return cluster.join(
            COORDINATOR.value, PROCESS_ID.value, NUM_PROCESSES.value, START_TIMEOUT.value, PEER_TIMEOUT.value
        )
    except cluster.StartError as error:
        cluster.tell_failure(str(error), 1)
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except ValueError as error:
        raise UsageError(str(error)) from None
