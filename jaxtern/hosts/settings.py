"""Reads from flags or the environment which process of a cluster this one is."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

_NAMES = "coordinator", "process_id", "num_processes"
_VARIABLES = [f"JAXTERN_{name.upper()}" for name in _NAMES]
_LONGEST = 400  # characters of a message
_HEAD = 250  # characters kept before the gap in a longer one


class Cluster(NamedTuple):
    """This process among those that train together."""

    process_id: int  # 0 to `num_processes` - 1
    num_processes: int
    coordinator: str | None  # host:port where process 0 listens; None for a single process, or if JAX found it itself
    # numbers of its GPUs on its host; None: those in JAX_LOCAL_DEVICE_IDS, else all
    local_devices: tuple[int, ...] | None = None


ALONE = Cluster(0, 1, None)


def from_flags(coordinator: str | None, process_id: int | None, num_processes: int | None) -> Cluster | None:
    """Reads --coordinator, --process_id and --num_processes; None without any, ValueError if they do not fit."""
    return _fit(coordinator, process_id, num_processes, [f"--{name}" for name in _NAMES])


def from_environment(environment: Mapping[str, str]) -> Cluster | None:
    """Reads JAXTERN_COORDINATOR, JAXTERN_PROCESS_ID and JAXTERN_NUM_PROCESSES, as `from_flags` does."""
    index, count = (parse_count(name, environment[name]) if name in environment else None for name in _VARIABLES[1:])
    return _fit(environment.get(_VARIABLES[0]), index, count, _VARIABLES)


def for_process(coordinator: str, process_id: int, num_processes: int) -> dict[str, str]:
    """Makes the environment variables for `from_environment`."""
    return dict(zip(_VARIABLES, map(str, (coordinator, process_id, num_processes)), strict=True))


def detects(environment: Mapping[str, str]) -> str | None:
    """Names the launcher of several processes that JAX detects by itself; None if there is none.

    Raises ValueError for Open MPI from 5 on over several hosts, as it does not say where its first process is.
    """
    if count_of(environment, "OMPI_COMM_WORLD_SIZE") > 1:
        if "OMPI_MCA_orte_hnp_uri" not in environment:
            raise ValueError(
                f"OMPI_COMM_WORLD_SIZE={environment['OMPI_COMM_WORLD_SIZE']}: this Open MPI does not tell on which host"
                " its first process is; give --coordinator=HOST:PORT with that host and a free port"
            )
        return "Open MPI"
    slurm = "SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_PROCID", "SLURM_LOCALID"  # set in a step, not in its script
    if count_of(environment, "SLURM_NTASKS") > 1 and all(name in environment for name in slurm):
        return "SLURM"
    if "KUBERNETES_SERVICE_HOST" in environment and "JOB_COMPLETION_INDEX" in environment:
        return "Kubernetes"
    return None


def parse_address(name: str, value: object) -> tuple[str, int]:
    """Parses "host:port", or "[address]:port" for an address with colons; raises ValueError for anything else."""
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not _is_host(bare):
        raise ValueError(f"{name}={shorten(value)}: must be HOST:PORT, as 10.0.0.1:2222")
    if ":" in host and bare == host:
        raise ValueError(f"{name}={shorten(value)}: must be HOST:PORT, where an IPv6 address stands in brackets")
    if not (port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 1 << 16):
        raise ValueError(f"{name}={shorten(value)}: must be HOST:PORT with a port from 1 to 65535")
    return bare, int(port)


def _is_host(name: str) -> bool:
    """Whether this can be a host's name or address."""
    try:
        name.encode("idna")
    except UnicodeError:  # a label is empty or has more than 63 characters
        return False
    return bool(name) and not any(each.isspace() or not each.isprintable() or each in "/[]@," for each in name)


def parse_count(name: str, value: str | None) -> int:
    """Parses a string of decimal digits; raises ValueError for anything else."""
    if value is None or not (value.isascii() and value.isdecimal() and len(value) < 10):
        raise ValueError(f"{name}={shorten(value)}: must be a whole number")
    return int(value)


def count_of(environment: Mapping[str, str], name: str) -> int:
    """Reads a launcher's variable as a number; 0 if it is not one."""
    value = environment.get(name, "")
    return int(value) if value.isascii() and value.isdecimal() else 0


def shorten(value: object) -> str:
    """Formats a value for an error message, at most 80 characters."""
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def to_line(message: str) -> str:
    """Makes a message one printable line of at most 400 characters."""
    line = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in " ".join(message.split()))
    return line if len(line) <= _LONGEST else f"{line[:_HEAD]} … {line[_HEAD + 3 - _LONGEST :]}"


def _fit(coordinator: str | None, index: int | None, count: int | None, names: Sequence[str]) -> Cluster | None:
    """Checks three settings, which errors call by `names`, against each other."""
    if count is None:
        for name, value in zip(names, (coordinator, index), strict=False):
            if value is not None:
                raise ValueError(f"{name}={value}: {names[2]} must be given too")
        return None
    if count < 1:
        raise ValueError(f"{names[2]}={count}: must be 1 or more")
    if index is not None and not 0 <= index < count:
        raise ValueError(f"{names[1]}={index}: must be from 0 to {count - 1}, as {names[2]}={count}")
    if coordinator is not None:
        parse_address(names[0], coordinator)
    if count == 1:
        return ALONE
    if index is None or coordinator is None:
        raise ValueError(f"{names[2]}={count}: {names[1 if index is None else 0]} must be given too")
    return Cluster(index, count, coordinator)
