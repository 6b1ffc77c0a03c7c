"""Joins this process to a cluster of processes that train together, on jax.distributed.

A failed start ends in one line (see `jaxtern.hosts.roll_call`), and so do all processes when one of them fails or is
lost (see `jaxtern.hosts.watch`).
"""

import collections
import contextlib
import functools
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import jax
import numpy as np
from jax.sharding import Mesh

from jaxtern.hosts import messages, watch
from jaxtern.hosts.launchers import read_open_mpi, read_torchrun
from jaxtern.hosts.roll_call import StartError, call_roll
from jaxtern.hosts.settings import ALONE, Cluster, detects, from_environment, from_flags, parse_address
from jaxtern.hosts.watch import before_leaving, tell_failure

__all__ = ["StartError", "before_leaving", "create_mesh", "join", "leaving_when_failed", "tell_failure"]

logger = logging.getLogger(__name__)

_SLACK_SECONDS = 60  # JAX, which would abort, waits this much longer than we do
# Exit statuses of `jaxtern.train` after a signal to one process made all of them save and leave, which is no failure.
_STOP_STATUSES = 128 + signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGHUP


def join(
    coordinator: str | None = None,
    process_id: int | None = None,
    num_processes: int | None = None,
    start_timeout: float = 300.0,
    peer_timeout: float = 60.0,
) -> Cluster:
    """Joins this process to its cluster; returns once all other processes are there.

    Call it before any JAX backend is used, within `leaving_when_failed`. Settings come from the first of: the
    arguments; JAXTERN_COORDINATOR, JAXTERN_PROCESS_ID and JAXTERN_NUM_PROCESSES; torchrun's variables; Open MPI's for
    processes on one host; what JAX detects of SLURM, Open MPI and Kubernetes. Without any, this is a single process,
    which does not use jax.distributed. On CPUs, collectives go over gloo unless another implementation was chosen. From
    then on the processes watch each other, and all leave when one fails.

    Args:
      coordinator: host:port, or tcp://host:port, of process 0. It listens only there, unless
        JAX_COORDINATOR_BIND_ADDRESS names another address.
      process_id: 0 to num_processes - 1; not needed with a `coordinator` under Open MPI's mpirun.
      num_processes: total number; likewise.
      start_timeout: seconds within which all must have come.
      peer_timeout: seconds of silence after which a process counts as lost; process 0's value holds for all.

    Raises:
      ValueError: for settings that are malformed or incomplete, or that differ between processes; and if processes have
        different numbers of devices.
      StartError: if processes did not come in time; it names them.
    """
    for name, seconds in (("start_timeout", start_timeout), ("peer_timeout", peer_timeout)):
        if not 0 < seconds < 1e6:
            raise ValueError(f"{name}={seconds:g}: must be positive, in seconds")
    cluster = find_cluster(coordinator, process_id, num_processes, os.environ)
    launcher = detects(os.environ) if cluster is None else None
    if launcher is None and (cluster is None or cluster.num_processes == 1):
        return ALONE
    if cluster is not None:
        _start_where_told(cluster, start_timeout, peer_timeout)
    else:
        _start(start_timeout, peer_timeout, str(launcher))
        cluster = Cluster(jax.process_index(), jax.process_count(), None)
    with explaining_addresses():
        if launcher is not None and cluster.num_processes > 1:
            _keep_watch_where_jax_found(peer_timeout)
        messages.connect(create_mesh())
    return cluster


def _start_where_told(cluster: Cluster, start_timeout: float, peer_timeout: float) -> None:
    """Calls the roll, starts the watch, and then jax.distributed."""
    assert cluster.coordinator is not None
    deadline = time.monotonic() + start_timeout
    bind_address = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", cluster.coordinator)
    host, _ = parse_address("coordinator", bind_address)
    if cluster.process_id == 0:
        _warn_of_loopback(host)
    announce = functools.partial(watch.start_hub, host, cluster.num_processes, peer_timeout)
    told = call_roll(cluster, bind_address, start_timeout, announce)
    if cluster.process_id > 0:
        watch.start_spoke([parse_address("coordinator", cluster.coordinator)[0]], told, cluster.process_id)
    _start(
        max(deadline - time.monotonic(), 30.0),
        told["timeout"],
        cluster.coordinator,
        coordinator_address=cluster.coordinator,
        num_processes=cluster.num_processes,
        process_id=cluster.process_id,
        local_device_ids=cluster.local_devices,
        coordinator_bind_address=bind_address if cluster.process_id == 0 else None,
        cluster_detection_method="deactivate",
    )


def find_cluster(
    coordinator: str | None, process_id: int | None, num_processes: int | None, environment: Mapping[str, str]
) -> Cluster | None:
    """Reads which process this is from the first of the sources of `join` that is set; None if none is."""
    coordinator = coordinator and coordinator.removeprefix("tcp://")
    lone = coordinator is not None and process_id is None and num_processes is None
    found = read_open_mpi(environment, coordinator) if lone else None
    found = found or from_flags(coordinator, process_id, num_processes) or from_environment(environment)
    return found or read_torchrun(environment) or read_open_mpi(environment)


def create_mesh() -> Mesh:
    """A mesh of all devices, {"host": P, "device": D}: P processes (slow axis) of D devices each (fast axis).

    `jaxtern.ternary_mean("host", fast_axis_name="device")` averages as floats within a process, and sends trits between
    processes. Raises ValueError if processes have different numbers of devices.
    """
    return Mesh(devices_by_process(), ("host", "device"))


def devices_by_process() -> np.ndarray:
    """The devices of the P processes, Device[P, D]; raises as `create_mesh`."""
    counts = collections.Counter(device.process_index for device in jax.devices())
    for process, count in counts.items():
        if count != counts[0]:
            raise ValueError(f"devices: process {process} has {count}, process 0 {counts[0]}; each must have as many")
    return np.array(jax.devices()).reshape(len(counts), counts[0])


@contextlib.contextmanager
def leaving_when_failed() -> Iterator[None]:
    """Ends a process of a cluster at once if the code inside fails, by an exception or by `sys.exit`.

    Python's usual exit would wait for the other processes, which wait for this one. The others are told why. If this
    process fails only because another did, as collectives do, it prints that one's reason and no traceback. Where none
    fails, all wait for each other at the end of the code inside, and leave JAX's cluster.
    """
    try:
        yield
    except BaseException as error:
        status, reason = _describe_end(error)
        if not status or not (watch.is_kept() or jax.distributed.is_initialized()):
            watch.say_goodbye()
            raise
        try:
            if isinstance(error, SystemExit) and status in _STOP_STATUSES:
                watch.say_goodbye(awaits_others=True)
            else:
                watch.tell_failure(reason, status, asks_first=not isinstance(error, KeyboardInterrupt))
            if not isinstance(error, SystemExit):
                traceback.print_exc()
            elif not isinstance(error.code, int):
                print(error.code, file=sys.stderr)
        finally:  # even after another interrupt
            _exit(status)
    else:
        watch.say_goodbye()


def _describe_end(error: BaseException) -> tuple[int, str]:
    """Python's exit status for an uncaught exception, and the reason to give the other processes."""
    if not isinstance(error, SystemExit):
        interrupted = isinstance(error, KeyboardInterrupt)
        return (130, "it was interrupted") if interrupted else (1, f"{type(error).__name__}: {error}")
    if isinstance(error.code, int | None):
        return error.code or 0, f"it ended with status {error.code}"
    return 1, str(error.code)


def _keep_watch_where_jax_found(peer_timeout: float) -> None:
    """Starts the watch if JAX detected the cluster; process 0 sends its addresses to the others by a collective.

    Like JAX then, process 0 listens at all addresses, unless JAX_COORDINATOR_BIND_ADDRESS names one.
    """
    process, told = jax.process_index(), {}
    with messages.without_gloo_lines():
        messages.meet()  # before process 0 begins to count the seconds of silence
        if process == 0:
            bound = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS")
            host = parse_address("JAX_COORDINATOR_BIND_ADDRESS", bound)[0] if bound else None
            told = watch.start_hub(host, jax.process_count(), peer_timeout) | {"addresses": _own_addresses()}
        told = messages.broadcast_json(told)
    if process > 0:
        watch.start_spoke(told["addresses"], told, process)


def _own_addresses() -> list[str]:
    """Addresses of this host for other processes: its name, its addresses, and loopback for processes on it."""
    name, found = socket.gethostname(), []
    with contextlib.suppress(OSError):
        found = [str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    return [name, *dict.fromkeys(found[:8]), "127.0.0.1"]


def _start(timeout: float, peer_timeout: float, where: str, **arguments: Any) -> None:
    """Calls jax.distributed.initialize; ends this process with one line if it takes longer than `timeout` seconds."""
    if "JAX_CPU_COLLECTIVES_IMPLEMENTATION" not in os.environ:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    missing = f"not all processes have joined jax.distributed ({where}) in {timeout:.0f} s"
    late = threading.Timer(timeout, _fail_and_exit, [missing])
    late.daemon = True
    late.start()
    terminate = signal.getsignal(signal.SIGTERM)
    try:
        jax.distributed.initialize(
            initialization_timeout=int(timeout) + _SLACK_SECONDS,
            heartbeat_timeout_seconds=max(100, int(peer_timeout) + _SLACK_SECONDS),  # then JAX aborts
            **arguments,
        )
    except (ValueError, RuntimeError) as error:
        kind = ValueError if isinstance(error, ValueError) else StartError
        raise kind(f"{where}: jax.distributed cannot start: {' '.join(str(error).split())}") from None
    finally:
        late.cancel()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, terminate)  # JAX's handler would note a preemption and go on


def _fail_and_exit(reason: str) -> NoReturn:
    watch.tell_failure(reason, 1)
    print(f"error: {reason}", file=sys.stderr)
    _exit(1)


def _exit(status: int) -> NoReturn:
    """Exits without exit handlers, in which jax.distributed would wait and then abort."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a full disk, or a closed pipe
            stream.flush()
    os._exit(status)


@contextlib.contextmanager
def explaining_addresses() -> Iterator[None]:
    """Raises StartError where processes on CPUs cannot connect: gloo takes the address of each host's name."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        name, address = socket.gethostname(), "unknown"
        with contextlib.suppress(OSError):
            address = socket.gethostbyname(name)
        why = str(error).partition("\n")[0]
        if address.startswith("127."):
            why = "which other hosts cannot reach: put its own address into /etc/hosts"
        raise StartError(f"processes cannot connect; the name of this host, {name}, is {address} here, {why}") from None


def _warn_of_loopback(host: str) -> None:
    """Warns if a host's name resolves to the loopback address, as on Debian: other hosts cannot reach that."""
    with contextlib.suppress(OSError):
        address = socket.gethostbyname(host)
        if address.startswith("127.") and not host.startswith(("127.", "localhost")):
            told = "coordinator: %s is %s here, where other hosts cannot reach it; give its IP address"
            logger.warning(told, host, address)
