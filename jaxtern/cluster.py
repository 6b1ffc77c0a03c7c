"""This process among those that train together, on jax.distributed.

A start that cannot succeed ends in one line: see `jaxtern.hosts.roll_call`.
"""

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from jaxtern.hosts.roll_call import StartError, call_roll
from jaxtern.hosts.settings import ALONE, Cluster, detects, from_environment, from_flags, parse_address
from jaxtern.hosts.tf_config import Unneeded, read_tf_config

__all__ = ["Cluster", "StartError", "Unneeded", "find_cluster", "join", "leaving_when_failed"]

logger = logging.getLogger(__name__)

_LOOPBACK = "localhost", "127.", "::1"
_SLACK_SECONDS = 60  # that JAX would wait longer than we do, and then abort


def join(
    coordinator: str | None = None,
    process_id: int | None = None,
    num_processes: int | None = None,
    start_timeout: float = 300.0,
) -> Cluster:
    """Makes this process one of its cluster, before any JAX backend is used; returns once all others are there.

    What is given goes before JAXTERN_COORDINATOR, JAXTERN_PROCESS_ID and JAXTERN_NUM_PROCESSES, these before TF_CONFIG,
    and that before what JAX finds by itself of SLURM, Open MPI and Kubernetes. A process alone needs none of them, and
    does not touch jax.distributed. On CPUs collectives go over gloo, unless another implementation was chosen.

    Args:
      coordinator: host:port where process 0 listens, there and on no other address, unless JAX_COORDINATOR_BIND_ADDRESS
        names one.
      process_id: 0 to num_processes - 1.
      num_processes: in all.
      start_timeout: seconds.

    Raises:
      ValueError: for settings that are malformed, incomplete or contradict each other, also among processes.
      StartError: if not all have come in time; in one line, which are missing.
      Unneeded: in a parameter server of TF_CONFIG.
    """
    if not 0 < start_timeout < 1e6:
        raise ValueError(f"start_timeout={start_timeout:g}: must be positive, in seconds")
    cluster = find_cluster(coordinator, process_id, num_processes, os.environ)
    launcher = detects(os.environ) if cluster is None else None
    if launcher is not None:
        _start(start_timeout, launcher)
        return Cluster(jax.process_index(), jax.process_count(), None)
    if cluster is None or cluster.num_processes == 1:
        return ALONE
    assert cluster.coordinator is not None
    deadline = time.monotonic() + start_timeout
    bind_address = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", cluster.coordinator)
    if cluster.process_id == 0:
        _warn_of_loopback(bind_address)
    call_roll(cluster, bind_address, start_timeout)
    _start(
        max(deadline - time.monotonic(), 30.0),
        cluster.coordinator,
        coordinator_address=cluster.coordinator,
        num_processes=cluster.num_processes,
        process_id=cluster.process_id,
        coordinator_bind_address=bind_address if cluster.process_id == 0 else None,
        cluster_detection_method="deactivate",
    )
    return cluster


def find_cluster(
    coordinator: str | None, process_id: int | None, num_processes: int | None, environment: Mapping[str, str]
) -> Cluster | None:
    """What is said of this process, by the first of the sources of `join` that says anything; None where none does.

    Raises:
      ValueError, Unneeded: as `join`.
    """
    found = from_flags(coordinator, process_id, num_processes) or from_environment(environment)
    if found is None and environment.get("TF_CONFIG"):
        found = read_tf_config(environment["TF_CONFIG"])
    return found


@contextlib.contextmanager
def leaving_when_failed() -> Iterator[None]:
    """Ends a process of a cluster at once where what runs inside fails, be it by an exception or by `sys.exit`.

    Python's usual end would wait for all other processes, which wait for this one.
    """
    try:
        yield
    except BaseException as error:
        status = error.code if isinstance(error, SystemExit) else 1
        if not jax.distributed.is_initialized() or not status:
            raise
        if not isinstance(status, int) or not isinstance(error, SystemExit):
            traceback.print_exc()
        _end(status if isinstance(status, int) else 1)


def _start(timeout: float, where: str, **arguments: Any) -> None:
    """jax.distributed.initialize, which ends in one line where it takes longer than `timeout` seconds."""
    if "JAX_CPU_COLLECTIVES_IMPLEMENTATION" not in os.environ:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    late = threading.Timer(
        timeout, _give_up, [f"error: not all processes have joined jax.distributed ({where}) in {timeout:.0f} s"]
    )
    late.daemon = True
    late.start()
    terminate = signal.getsignal(signal.SIGTERM)
    try:
        jax.distributed.initialize(initialization_timeout=int(timeout) + _SLACK_SECONDS, **arguments)
    except (ValueError, RuntimeError) as error:
        kind = ValueError if isinstance(error, ValueError) else StartError
        raise kind(f"{where}: jax.distributed cannot start: {' '.join(str(error).split())}") from None
    finally:
        late.cancel()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, terminate)  # JAX notes the signal as a preemption, and has the process go on


def _give_up(line: str) -> None:
    print(line, file=sys.stderr)
    _end(1)


def _end(status: int) -> None:
    """Without what is to run at exit: jax.distributed waits there, and aborts in the end."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _warn_of_loopback(bind_address: str) -> None:
    """Where a host's name means the loopback address on itself, as on Debian, others will not find it."""
    host, port = parse_address("coordinator", bind_address)
    if host.startswith(_LOOPBACK):
        return
    with contextlib.suppress(OSError):
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]
        if str(address).startswith(_LOOPBACK):
            logger.warning(
                "coordinator: %s is %s here, where other hosts cannot reach it; give its IP address", host, address
            )
