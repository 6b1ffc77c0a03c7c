"""What a laboratory asks of the system: namespaces, their removal, token buckets, processes."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

PREFIX = "jaxtern-lab-"
INTERFACE, BRIDGE = "eth0", "bridge0"  # of a host; in the bridge's namespace
NAMESPACES, HOSTS_FILES = Path("/run/netns"), Path("/etc/netns")
UNITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
# A bucket holds what passes while a timer is late: too small, and the rate is not reached; too large, and short
# transfers do not feel it. From 700 Mbit/s on it also takes a packet of 64 KiB, as segmentation offload makes them;
# slower links have the time to let the kernel cut them.
BURST_SECONDS, MIN_BURST = 7.5e-4, 16 * 1024
GRACE_SECONDS = 2.0  # between asking a process to end and killing it
# IPv6 would send packets of its own; the rest makes hosts alike however the machine is tuned. Cubic is what hosts have,
# but only the machine itself may allow it to namespaces; where it does not, Reno is the same at so short round trips.
SETTINGS = """
assign() { [ ! -e "/proc/sys/net/$1" ] || echo "$2" > "/proc/sys/net/$1"; }
assign ipv6/conf/default/disable_ipv6 1
assign ipv4/tcp_no_metrics_save 1
control=reno
! grep -qw cubic /proc/sys/net/ipv4/tcp_allowed_congestion_control || control=cubic
assign ipv4/tcp_congestion_control $control
ip link set lo up
"""


class LabError(RuntimeError):
    """The laboratory cannot be built here; says why in one line."""


def why_not() -> str | None:
    """What is missing for a laboratory on this machine, or None."""
    missing = [tool for tool in ("ip", "tc") if not shutil.which(tool)]
    if missing:
        return f"needs {' and '.join(missing)} of iproute2"
    capabilities = int(re.findall(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text())[0], 16)
    if os.geteuid() or not (capabilities >> 12 & 1 and capabilities >> 21 & 1):  # CAP_NET_ADMIN, CAP_SYS_ADMIN
        return "needs root, with the right to make network namespaces"
    return None


def parse_rate(text: str) -> int:
    """Bits a second of a rate such as 100mbit or 2.5gbit.

    Raises:
      ValueError: if it is no rate.
    """
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)(bit|kbit|mbit|gbit)", text)
    rate = round(float(match[1]) * UNITS[match[2]]) if match else 0
    if not 10**5 <= rate <= 10**11:
        raise ValueError(f"rate={text!r}: must be a number and bit, kbit, mbit or gbit, from 100kbit to 100gbit")
    return rate


def parse_latency(text: str) -> float:
    """Seconds of a latency such as 20ms or 500us.

    Raises:
      ValueError: if it is none.
    """
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)(us|ms|s)", text)
    seconds = float(match[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[match[2]] if match else 0.0
    if not 1e-4 <= seconds <= 1:
        raise ValueError(f"latency={text!r}: must be a number and us, ms or s, from 100us to 1s")
    return seconds


def port(host: int) -> str:
    """The bridge's end of a host's link."""
    return f"host{host}"


def burst_bytes(rate: str) -> int:
    """What a link may send at once, after a pause."""
    return max(MIN_BURST, round(parse_rate(rate) / 8 * BURST_SECONDS))


def bucket(rate: str) -> str:
    """tc's words for a token bucket whose queue holds 50 ms."""
    return f"tbf rate {parse_rate(rate)}bit burst {burst_bytes(rate)} latency 50ms"


def tool(words: str, *more: str) -> None:
    """Runs ip or tc.

    Raises:
      LabError: if it fails, with its words.
    """
    done = subprocess.run([*words.split(), *more], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"{words}: {' '.join(done.stderr.split()) or 'failed'}")


def owner() -> str:
    """This process's number and start time, as numbers are used again."""
    return f"{os.getpid()}-{_start_time(os.getpid())}"


def write_hosts_file(namespace: str, address: str) -> None:
    """Names that resolve differently in a namespace: this machine's is that of the host."""
    name = socket.gethostname()
    for attempt in range(10):
        try:
            (HOSTS_FILES / namespace).mkdir(parents=True, exist_ok=True)
            (HOSTS_FILES / namespace / "hosts").write_text(f"127.0.0.1 localhost\n{address} {name}\n")
            return
        except FileNotFoundError:  # another laboratory, the last one until now, has removed the folder above
            if attempt == 9:
                raise


def remove(prefix: str) -> None:
    """Removes all namespaces of this prefix, what runs in them, their interfaces and files."""
    names = sorted({path.name for path in (*_list(NAMESPACES), *_list(HOSTS_FILES)) if path.name.startswith(prefix)})
    existing = [name for name in names if (NAMESPACES / name).exists()]
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + GRACE_SECONDS
        _signal(pids := _pids(existing), number)
        while pids and time.monotonic() < deadline:
            time.sleep(0.01)
            pids = _pids(existing)
    for name in names:
        if name in existing:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
        shutil.rmtree(HOSTS_FILES / name, ignore_errors=True)
    with contextlib.suppress(OSError):  # not empty, or not there
        HOSTS_FILES.rmdir()


def clean() -> int:
    """Removes laboratories whose owner is gone, and returns how many."""
    gone = set()
    for path in (*_list(NAMESPACES), *_list(HOSTS_FILES)):
        match = re.match(rf"{PREFIX}(\d+)-(\d+)-\d+-", path.name)
        if match and _start_time(int(match[1])) != match[2]:
            gone.add(match[0])
    for prefix in gone:
        remove(prefix)
    return len(gone)


def end(processes: Sequence[subprocess.Popen]) -> list[subprocess.Popen]:
    """Ends the process groups that still run, first kindly, and returns their leaders."""
    running = [process for process in processes if process.poll() is None]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in running:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
        deadline = time.monotonic() + GRACE_SECONDS
        while any(process.poll() is None for process in running) and time.monotonic() < deadline:
            time.sleep(0.01)
    return running


def read_lines(host: int, stream: TextIO, lines: list[str], on_line: Callable[[int, str], None] | None) -> None:
    """Appends what a host writes, until it closes its output."""
    with stream:
        for line in stream:
            lines.append(line)
            if on_line:
                on_line(host, line)


def wait(processes: Sequence[subprocess.Popen], timeout: float | None) -> bool:
    """Until all are done or one has failed; false if that takes longer than `timeout`."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while any(process.poll() is None for process in processes) and not any(process.returncode for process in processes):
        if deadline is not None and time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _start_time(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def _list(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _pids(namespaces: Sequence[str]) -> list[int]:
    pids: set[int] = set()
    for name in namespaces:
        found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False).stdout
        pids |= set(map(int, found.split()))
    return sorted(pids - {os.getpid()})


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
