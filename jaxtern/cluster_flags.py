"""The flags by which a door joins a cluster."""

import sys

from absl import flags

from jaxtern import cluster
from jaxtern.command_line import UsageError

COORDINATOR = flags.DEFINE_string("coordinator", None, "host:port of process 0, where several processes train together")
PROCESS_ID = flags.DEFINE_integer("process_id", None, "which of them this one is, from 0")
NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "how many there are")
flags.DEFINE_alias("rank", "process_id")
flags.DEFINE_alias("world_size", "num_processes")
START_TIMEOUT = flags.DEFINE_float("start_timeout", 300.0, "seconds within which all of them must have come")
PEER_TIMEOUT = flags.DEFINE_float(
    "peer_timeout", 60.0, "seconds of silence after which a process counts as lost, and all end; process 0's holds"
)


def join() -> cluster.Cluster:
    """Calls `cluster.join` with the values of the flags; exits where that fails, and in a process that is not needed.

    Raises:
      Evaluates: in an evaluator of TF_CONFIG.
      UsageError: for settings that do not fit.
    """
    try:
        return cluster.join(
            COORDINATOR.value, PROCESS_ID.value, NUM_PROCESSES.value, START_TIMEOUT.value, PEER_TIMEOUT.value
        )
    except cluster.Unneeded as reason:
        print(reason)
        sys.exit(0)
    except cluster.StartError as error:
        cluster.tell_failure(str(error), 1)
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except ValueError as error:
        raise UsageError(str(error)) from None
