"""Open MPI, whose mpirun tells every process its rank, but not, from version 5 on, where the first one is.

Its variables: https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html
"""

import zlib
from collections.abc import Mapping

from jaxtern.hosts.settings import ALONE, Cluster, count_of, parse_address, parse_count

_FIRST_PORT, _NUM_PORTS = 61440, 4096  # the range from which JAX picks; Linux by itself gives none of it away


def read_open_mpi(environment: Mapping[str, str], coordinator: str | None = None) -> Cluster | None:
    """This process as mpirun numbered it; None where no mpirun started it, or it alone.

    Where no coordinator is given and all processes are on one host, it is the loopback address there, with a port made
    from the job's name, or JAX_COORDINATOR_PORT. Where they are on several, None.

    Of several on a host each takes the GPU of its local rank, unless JAX_LOCAL_DEVICE_IDS says which.

    Raises:
      ValueError: if variables or coordinator are malformed.
    """
    size = count_of(environment, "OMPI_COMM_WORLD_SIZE")
    if coordinator is not None:
        parse_address("--coordinator", coordinator)
    elif size > 1:
        coordinator = _find_loopback(environment, size)
    if coordinator is None or not size:
        return None
    if size == 1:
        return ALONE
    names = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"
    rank, local_rank = (parse_count(name, environment.get(name)) for name in names)
    if rank >= size:
        raise ValueError(f"OMPI_COMM_WORLD_RANK={rank}: must be below OMPI_COMM_WORLD_SIZE={size}")
    shares = count_of(environment, "OMPI_COMM_WORLD_LOCAL_SIZE") > 1 and "JAX_LOCAL_DEVICE_IDS" not in environment
    return Cluster(rank, size, coordinator, (local_rank,) if shares else None)


def _find_loopback(environment: Mapping[str, str], size: int) -> str | None:
    """Makes an address that all processes of a job on one host agree on, and two jobs hardly ever share."""
    job = environment.get("PMIX_NAMESPACE")  # "prterun-HOST-PID@1", and a number in version 4
    if job is None or count_of(environment, "OMPI_COMM_WORLD_LOCAL_SIZE") != size:
        return None
    port = environment.get("JAX_COORDINATOR_PORT") or _FIRST_PORT + zlib.crc32(job.encode()) % _NUM_PORTS
    address = f"127.0.0.1:{port}"
    parse_address("JAX_COORDINATOR_PORT", address)
    return address
