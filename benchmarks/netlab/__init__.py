"""A slow network on one machine: hosts in network namespaces, joined by links of an honest rate.

    python -m benchmarks.netlab --hosts 2 --rate 1gbit -- COMMAND ...     runs COMMAND on every host
    python -m benchmarks.netlab --rate 100mbit --latency 20ms -- COMMAND  hosts that are far from each other
    python -m benchmarks.netlab --clean                                   removes what killed laboratories left

    with netlab.Lab(hosts=2, rate="1gbit") as lab:
        results = lab.run([["python", "worker.py"]] * 2, timeout=60)

Every host is a network namespace with `lo` and `eth0`, whose other end hangs on a bridge in a namespace of its own: the
machine's own network is never touched, and hosts reach one another and nothing else. Both ends of every link are shaped
with a token bucket, so a host neither sends nor receives faster than the rate. With a latency, every packet passes a
process that holds it for so long (see relay.py), which takes some of the processor. In a host this machine's name
resolves to the host's own address, as gloo binds that, and every process finds

    NETLAB_HOST          its number, from 0
    NETLAB_HOSTS         how many there are
    NETLAB_COORDINATOR   address:port of host 0, for jax.distributed or a rendezvous

Processes are hosts' only in their network: they share the machine's cores, memory and files. Needs root and iproute2.
"""

from benchmarks.netlab.lab import Counters, Lab, Result, address, interface_bytes
from benchmarks.netlab.system import PREFIX, LabError, burst_bytes, clean, parse_latency, parse_rate, why_not

__all__ = [
    "PREFIX",
    "Counters",
    "Lab",
    "LabError",
    "Result",
    "address",
    "burst_bytes",
    "clean",
    "interface_bytes",
    "parse_latency",
    "parse_rate",
    "why_not",
]
