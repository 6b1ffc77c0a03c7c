"""The command-line flags for joining a cluster."""

from absl import flags

from jaxtern import cluster
from jaxtern.command_line import Failure, UsageError

COORDINATOR = flags.DEFINE_string("coordinator", None, "host:port of process 0, if several processes train together")
PROCESS_ID = flags.DEFINE_integer("process_id", None, "number of this process, from 0")
NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "number of processes")
START_TIMEOUT = flags.DEFINE_float("start_timeout", 300.0, "seconds within which all processes must have come")
PEER_TIMEOUT = flags.DEFINE_float(
    "peer_timeout", 60.0, "seconds of silence after which a process counts as lost, and all end; process 0 decides"
)


def join() -> cluster.Cluster:
    """Calls `cluster.join` with the flags; raises UsageError for invalid settings, and exits if the start fails."""
    try:
        return cluster.join(
            COORDINATOR.value, PROCESS_ID.value, NUM_PROCESSES.value, START_TIMEOUT.value, PEER_TIMEOUT.value
        )
    except cluster.StartError as error:
        raise Failure(str(error)) from None
    except ValueError as error:
        raise UsageError(str(error)) from None
