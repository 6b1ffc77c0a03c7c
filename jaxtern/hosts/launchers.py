"""mpirun and torchrun, which tell every process that they start its rank, and several on a host which is which.

Open MPI does not tell, from version 5 on, where the first process is; torchrun itself takes the port that it tells.

Their variables: https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html
https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
"""

import zlib
from collections.abc import Mapping, Sequence

from jaxtern.hosts.settings import ALONE, Cluster, count_of, parse_address, parse_count

_FIRST_PORT, _NUM_PORTS = 61440, 4096  # the range from which JAX picks; Linux by itself gives none of it away
_OPEN_MPI = [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
_TORCHRUN = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"


def read_open_mpi(environment: Mapping[str, str], coordinator: str | None = None) -> Cluster | None:
    """This process as mpirun numbered it; None where no mpirun started it, or it alone.

    Where no coordinator is given and all processes are on one host, it is the loopback address there, with a port made
    from the job's name, or JAX_COORDINATOR_PORT. Where they are on several, None.

    Of several on a host each takes the GPU of its local rank, unless JAX_LOCAL_DEVICE_IDS says which.

    Raises:
      ValueError: if variables or coordinator are malformed.
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
    """This process by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; None without the first two, or for one process.

    The coordinator is at MASTER_ADDR; where torchrun itself listens at MASTER_PORT, with a port made from that one, or
    JAX_COORDINATOR_PORT. GPUs as above.

    Raises:
      ValueError: if variables are malformed, or the last two missing.
    """
    if not {"RANK", "WORLD_SIZE"} <= environment.keys() or environment["WORLD_SIZE"] == "1":
        return None
    host, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    host = f"[{host}]" if ":" in host else host
    parse_address("MASTER_ADDR:MASTER_PORT", f"{host}:{port}")
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        port = _make_port(environment, f"{host}:{port}")
    return _read_ranks(environment, _TORCHRUN, f"{host}:{port}")


def _read_ranks(environment: Mapping[str, str], names: Sequence[str], coordinator: str) -> Cluster:
    """This process by the variables of its rank, their number, and both on its host."""
    rank, size = (parse_count(name, environment.get(name)) for name in names[:2])
    if rank >= size:
        raise ValueError(f"{names[0]}={rank}: must be below {names[1]}={size}")
    shares = count_of(environment, names[3]) > 1 and "JAX_LOCAL_DEVICE_IDS" not in environment
    own = (parse_count(names[2], environment.get(names[2])),) if shares else None
    return Cluster(rank, size, coordinator, own)


def _make_port(environment: Mapping[str, str], job: str) -> str:
    """Makes a port that all processes of a job agree on, by its name, and two jobs hardly ever share."""
    port = environment.get("JAX_COORDINATOR_PORT") or str(_FIRST_PORT + zlib.crc32(job.encode()) % _NUM_PORTS)
    parse_address("JAX_COORDINATOR_PORT", f"127.0.0.1:{port}")
    return port
