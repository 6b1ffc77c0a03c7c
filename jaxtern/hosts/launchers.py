"""Reads the environment variables of mpirun and torchrun, which give each process its rank, also within its host.

From version 5 on, Open MPI does not say where the first process is. torchrun itself listens at the port that it names.

Variables: https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html
https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
"""

import zlib
from collections.abc import Mapping, Sequence

from jaxtern.hosts.settings import ALONE, Cluster, count_of, parse_address, parse_count

_FIRST_PORT, _NUM_PORTS = 61440, 4096  # the range from which JAX picks; Linux does not assign these by itself
_OPEN_MPI = [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
_TORCHRUN = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"


def read_open_mpi(environment: Mapping[str, str], coordinator: str | None = None) -> Cluster | None:
    """Reads mpirun's variables; None without them, or if no coordinator is known.

    Without a given coordinator, processes on a single host use the loopback address, and JAX_COORDINATOR_PORT or a port
    made from the job's name. If a host has several processes, each takes the GPU of its local rank, unless
    JAX_LOCAL_DEVICE_IDS is set. Raises ValueError for a malformed variable or coordinator.
    """
    size, job = count_of(environment, "OMPI_COMM_WORLD_SIZE"), environment.get("PMIX_NAMESPACE")
    if coordinator is not None:
        parse_address("--coordinator", coordinator)
    elif job is not None and 1 < size == count_of(environment, "OMPI_COMM_WORLD_LOCAL_SIZE"):
        coordinator = f"127.0.0.1:{_make_port(environment, job)}"
    if coordinator is None or not size:
        return None
    return ALONE if size == 1 else _read_ranks(environment, _OPEN_MPI, coordinator)


def read_torchrun(environment: Mapping[str, str]) -> Cluster | None:
    """Reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; None without the first two, or for a single process.

    The coordinator is at MASTER_ADDR and MASTER_PORT. If torchrun itself listens there, the port is
    JAX_COORDINATOR_PORT or made from MASTER_PORT. GPUs are assigned as by `read_open_mpi`. Raises ValueError for a
    malformed variable, or if one of the last two is missing.
    """
    if not {"RANK", "WORLD_SIZE"} <= environment.keys() or environment["WORLD_SIZE"] == "1":
        return None
    host, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    if not host or not port:
        missing = "MASTER_PORT" if host else "MASTER_ADDR"
        raise ValueError(f"{missing}: must be set too, as RANK and WORLD_SIZE are; unset these to train alone")
    host = f"[{host}]" if ":" in host else host
    parse_address("MASTER_ADDR:MASTER_PORT", f"{host}:{port}")
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        port = _make_port(environment, f"{host}:{port}")
    return _read_ranks(environment, _TORCHRUN, f"{host}:{port}")


def _read_ranks(environment: Mapping[str, str], names: Sequence[str], coordinator: str) -> Cluster:
    """Reads rank, size, local rank and local size from variables of these names."""
    rank, size = (parse_count(name, environment.get(name)) for name in names[:2])
    if rank >= size:
        raise ValueError(f"{names[0]}={rank}: must be below {names[1]}={size}")
    shares = count_of(environment, names[3]) > 1 and "JAX_LOCAL_DEVICE_IDS" not in environment
    own = (parse_count(names[2], environment.get(names[2])),) if shares else None
    return Cluster(rank, size, coordinator, own)


def _make_port(environment: Mapping[str, str], job: str) -> str:
    """Makes a port from a job's name: the same for all its processes, and most likely another for other jobs."""
    port = environment.get("JAX_COORDINATOR_PORT") or str(_FIRST_PORT + zlib.crc32(job.encode()) % _NUM_PORTS)
    parse_address("JAX_COORDINATOR_PORT", f"127.0.0.1:{port}")
    return port
