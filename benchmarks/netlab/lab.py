"""A laboratory: hosts in network namespaces, joined by links of an honest rate."""

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.netlab import relay
from benchmarks.netlab.system import (
    BRIDGE,
    GRACE_SECONDS,
    INTERFACE,
    PREFIX,
    SETTINGS,
    LabError,
    bucket,
    clean,
    end,
    owner,
    parse_latency,
    parse_rate,
    port,
    read_lines,
    remove,
    tool,
    wait,
    why_not,
    write_hosts_file,
)

PORT = 29500
MAX_HOSTS = 250
_serial = itertools.count()


class Result(NamedTuple):
    """What became of a host's command; `ended` if the laboratory ended it because another one had failed."""

    returncode: int
    output: str
    ended: bool


class Counters(NamedTuple):
    """Of an interface. With segmentation offload a packet here has up to 64 KiB, and its headers are counted once."""

    sent: int
    received: int
    sent_packets: int


def interface_bytes(interface: str = INTERFACE) -> Counters:
    """Bytes and packets so far, headers included; called inside a host."""
    folder = Path("/sys/class/net") / interface / "statistics"
    names = ("tx_bytes", "rx_bytes", "tx_packets")
    return Counters(*(int((folder / name).read_text()) for name in names))


class Lab:
    """Hosts on a slow network, from `with` to its end; then, or on an exception or signal, nothing is left of them.

    Attributes:
      hosts: how many.
      coordinator: address:port of host 0, where nothing listens yet.
    """

    def __init__(self, hosts: int = 2, rate: str | None = None, latency: str | None = None):
        """`rate` is of every link and both ways, such as "1gbit"; None: as fast as the machine is.

        `latency` is what a packet takes from host to host, such as "20ms", half of a round trip; None: what the machine
        takes, some 20 us.

        Raises:
          ValueError: for an argument out of its range.
        """
        if isinstance(hosts, bool) or not isinstance(hosts, int) or not 1 <= hosts <= MAX_HOSTS:
            raise ValueError(f"hosts={hosts!r}: must be an integer from 1 to {MAX_HOSTS}")
        if rate is not None:
            parse_rate(rate)
        self.hosts, self._rate, self._latency = hosts, rate, None if latency is None else parse_latency(latency)
        self.coordinator = f"{address(0)}:{PORT}"
        self._name = f"{PREFIX}{owner()}-{next(_serial)}-"
        self._is_shaped = False
        self._processes: list[subprocess.Popen] = []
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Lab":
        if reason := why_not():
            raise LabError(reason)
        self._catch_signals()
        try:
            clean()
            self._build()
            self.shape(self._rate)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all processes and removes all that was made; a second call does nothing."""
        ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ending)  # a second Ctrl-C must not stop the cleaning
        try:
            end(self._processes)
            for process in self._processes:
                if process.stdin is not None:
                    process.stdin.close()
            remove(self._name)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            self._handlers.clear()

    def shape(self, rate: str | None) -> None:
        """Gives every link another rate, in place: connections live on.

        Raises:
          ValueError: if it is no rate.
        """
        for host in range(self.hosts if rate or self._is_shaped else 0):
            for namespace, interface in ((self.namespace(host), INTERFACE), (self.namespace("bridge"), port(host))):
                device = f"dev {interface} root"
                tool(f"tc -n {namespace} qdisc " + (f"replace {device} {bucket(rate)}" if rate else f"delete {device}"))
        self._is_shaped = rate is not None

    def cut(self, host: int) -> None:
        """Takes a host's link away: what is sent is lost without a word, and connections know nothing of it."""
        tool(f"ip -n {self.namespace('bridge')} link set {port(host)} down")

    def mend(self, host: int) -> None:
        """Gives it back; connections that have not given up live on."""
        tool(f"ip -n {self.namespace('bridge')} link set {port(host)} up")

    def popen(
        self, host: int, command: Sequence[str], env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen:
        """Starts a command on a host, in a process group of its own; `options` are those of `subprocess.Popen`."""
        own = {"NETLAB_HOST": str(host), "NETLAB_HOSTS": str(self.hosts), "NETLAB_COORDINATOR": self.coordinator}
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace(host), *command],
            env={**os.environ, **own, **(env or {})},
            start_new_session=True,
            **options,
        )
        self._processes.append(process)
        return process

    def run(
        self,
        commands: Sequence[Sequence[str]],
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        on_line: Callable[[int, str], None] | None = None,
    ) -> list[Result]:
        """Runs a command on every host and waits for all; when one fails, the others are ended.

        Args:
          commands: one a host.
          timeout: seconds for all.
          env: of all, beside this process's own.
          on_line: called with the host's number and each line that it writes, as it comes.

        Returns:
          A result a host, with standard output and error together.

        Raises:
          TimeoutError: with the last lines of every host, which are ended.
        """
        if len(commands) != self.hosts:
            raise ValueError(f"commands: {len(commands)} for {self.hosts} hosts; must be one a host")
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        outputs: list[list[str]] = [[] for _ in commands]
        processes = [
            self.popen(host, command, env, **pipes, text=True, errors="replace")
            for host, command in enumerate(commands)
        ]
        readers = [
            threading.Thread(target=read_lines, args=(host, process.stdout, outputs[host], on_line), daemon=True)
            for host, process in enumerate(processes)
        ]
        for reader in readers:
            reader.start()
        is_late = not wait(processes, timeout)
        ended = end(processes)
        for reader in readers:
            reader.join(GRACE_SECONDS)  # a grandchild may hold the pipe
        if is_late:
            last = [f"\nhost {host}: {line.rstrip()}" for host, lines in enumerate(outputs) for line in lines[-5:]]
            raise TimeoutError(f"not done after {timeout} s{''.join(last)}")
        return [
            Result(process.returncode, "".join(lines), process in ended)
            for process, lines in zip(processes, outputs, strict=True)
        ]

    def namespace(self, host: int | str) -> str:
        """The name of a host's network namespace, or of the "bridge"."""
        return f"{self._name}{host}"

    def _build(self) -> None:
        bridge = self._create_namespace("bridge")
        tool(f"ip -n {bridge} link add name {BRIDGE} type bridge stp_state 0 mcast_snooping 0")
        tool(f"ip -n {bridge} link set {BRIDGE} up")
        for host in range(self.hosts):
            write_hosts_file(self.namespace(host), address(host))
            self._create_namespace(host)
        self._join(bridge)
        for host in range(self.hosts):
            namespace = self.namespace(host)
            tool(f"ip -n {bridge} link set {port(host)} master {BRIDGE} up")
            tool(f"ip -n {namespace} address add {address(host)}/24 dev {INTERFACE}")
            tool(f"ip -n {namespace} link set {INTERFACE} up")

    def _join(self, bridge: str) -> None:
        """Makes the two ends of every link."""
        namespaces = [self.namespace(host) for host in range(self.hosts)]
        if self._latency is None:
            for host, namespace in enumerate(namespaces):
                tool(f"ip -n {bridge} link add name {port(host)} type veth peer name {INTERFACE} netns {namespace}")
            return
        seconds = self._latency / 2  # as a packet passes two links
        command = [sys.executable, relay.__file__, str(seconds), bridge, *namespaces]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        process = subprocess.Popen(command, start_new_session=True, env=environment, **pipes)
        self._processes.append(process)
        assert process.stdout is not None
        with process.stdout:
            if process.stdout.readline() != "ready\n":
                raise LabError("latency: its relay did not start")
        for host, namespace in enumerate(namespaces):
            tool(f"ip -n {bridge} link set {port(host)} mtu {relay.MTU}")
            tool(f"ip -n {namespace} link set {INTERFACE} mtu {relay.MTU}")

    def _create_namespace(self, host: int | str) -> str:
        name = self.namespace(host)
        tool(f"ip netns add {name}")
        tool(f"ip netns exec {name} sh -c", SETTINGS)
        return name

    def _catch_signals(self) -> None:
        """Lets SIGTERM and SIGHUP end this process as an exception does, unless it handles them itself."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is signal.SIG_DFL:
                    self._handlers[number] = signal.signal(number, _exit)


def address(host: int) -> str:
    """Of a host; that of different laboratories may be the same, as their bridges are not joined."""
    return f"10.77.0.{host + 1}"


def _exit(number: int, _: object) -> None:
    sys.exit(128 + number)
