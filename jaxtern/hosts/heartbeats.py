"""Heartbeats over TCP, by which the processes of a cluster know which of them are alive.

Every process keeps a connection to process 0. Both sides send a beat every second, a word when they have reached their
end, a goodbye before they leave, and a verdict before they leave because something failed. A process is lost if its
connection closes without a goodbye or verdict, or if nothing arrives for too long. Process 0 must stay until all have
reached their end. The first verdict that reaches process 0 is final: it tells all others, which repeat it to confirm.
"""

import abc
import asyncio
import contextlib
import hmac
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtern.hosts.json_lines import LONGEST_LINE, encode_line, parse_line

_HELLO_SECONDS = 10.0  # time for a new connection to say which process it is


class Verdict(NamedTuple):
    """Why a cluster ends."""

    process: int  # number of the process that failed first
    status: int  # exit status of all processes
    reason: str  # one line


class AwakeClock:
    """Counts the seconds during which this process ran.

    If it stood still, because of SIGSTOP or a thread that held the interpreter, at most two beats count, as it has not
    yet read what others sent meanwhile.
    """

    def __init__(self, beat: float, read: Callable[[], float] = time.monotonic):
        self._longest, self._read, self._last = 2 * beat, read, read()
        self.now = 0.0

    def tick(self) -> None:
        """Adds the time since the last call; must be called at every beat."""
        now = self._read()
        self.now += min(now - self._last, self._longest)
        self._last = now


class _Peer:
    """State of the connection to another process; `heard` is when it last sent something, by this process's clock."""

    def __init__(self, host: str, writer: asyncio.StreamWriter, heard: float):
        self.host, self.writer, self.heard = host, writer, heard
        self.at_end = self.finished = self.gone = self.knows_verdict = False


class Side(abc.ABC):
    """One side of the connections. Everything but the constructor runs in one event loop.

    Args:
      process, host: number and host name of this process.
      others: the processes that it is connected to.
      timeout: seconds of silence after which a process counts as lost.
    """

    def __init__(self, process: int, host: str, others: range, timeout: float):
        self.verdict: Verdict | None = None  # why the cluster ends; None while it does not
        self._process, self._name = process, named(process, host)
        self._others, self._timeout = others, timeout
        self._peers: dict[int, _Peer] = {}
        self._beat = min(1.0, timeout / 6)
        self._clock = AwakeClock(self._beat)
        self._at_end = False

    async def run(self, leave: Callable[[Verdict], None]) -> None:
        """Sends and receives for ever; calls `leave` once with a verdict, but not for this process's own failure."""
        self._leave = leave
        await self._connect()

    def tell_failure(self, reason: str, status: int) -> None:
        """Tells the others that this process failed and is about to leave."""
        own = Verdict(self._process, status if 0 < status < 256 else 1, f"{self._name} failed: {reason}")
        self.verdict = self.verdict or own
        self._send(verdict=self.verdict)

    def failure_confirmed(self) -> bool:
        """Whether all others that are left have confirmed the verdict."""
        peers = [self._peers.get(process) for process in self._others]
        return all(peer is not None and (peer.knows_verdict or peer.gone) for peer in peers)

    def tell_end(self, *words: str) -> None:
        """Tells the others that this process has nothing more to do with them; with "bye", that it leaves normally."""
        self._at_end = True
        self._send(end=True, **dict.fromkeys(words, True))

    def all_at_end(self) -> bool:
        """Whether the others have reached their end, too."""
        return all(peer.at_end or peer.gone for peer in tuple(self._peers.values()))

    def alone(self) -> bool:
        """Whether the processes for which this one stays have left."""
        return all(peer.gone for peer in tuple(self._peers.values()))

    @abc.abstractmethod
    async def _connect(self) -> None:
        """Connects, then beats and listens for ever."""

    def _judge(self, verdict: Verdict) -> None:
        """Tells the others a verdict and makes this process leave; only the first verdict counts."""
        if self.verdict is None:
            self.verdict = verdict
            self._send(verdict=verdict)
            self._leave(verdict)

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(self._beat)
            self._clock.tick()
            self._send(beat=True)
            self._look_for_silence()

    async def _listen(self, process: int, peer: _Peer, reader: asyncio.StreamReader) -> None:
        """Handles the messages of a process until its connection closes."""
        with contextlib.suppress(OSError, ValueError):  # a reset; a line that is too long
            while line := await reader.readline():
                said = parse_line(line) or {}
                peer.heard = self._clock.now
                peer.at_end |= "end" in said
                peer.finished |= "bye" in said
                if "verdict" in said:
                    peer.knows_verdict = True
                    told = Verdict(*said["verdict"])
                    if told.process == self._process:
                        reason = f"{self._name}, this one, was silent for so long that the others have left"
                        told = Verdict(self._process, 1, reason)
                    self._judge(told)
        peer.gone = True
        if not peer.finished:
            reason = "ended without a word: it was killed, or its host went down"
            self._judge(Verdict(process, 1, f"{named(process, peer.host)} {reason}"))
        elif process == 0 and not self._at_end:
            self._judge(Verdict(0, 1, f"{named(0, peer.host)} ended before the others had"))

    def _send(self, **content: Any) -> None:
        for peer in self._peers.values():
            if not peer.gone:
                peer.writer.write(encode_line(content))

    def _look_for_silence(self) -> None:
        for process in self._others:
            peer = self._peers.get(process)
            if peer is not None and peer.gone:
                continue
            heard, host = (0.0, "") if peer is None else (peer.heard, peer.host)
            if self._clock.now - heard > self._timeout:
                reason = f"has been silent for {self._timeout:g} s: it is frozen, or cut off from the network"
                self._judge(Verdict(process, 1, f"{named(process, host)} {reason}"))


class Hub(Side):
    """Process 0's side: the others connect to `listener` and must know the token."""

    def __init__(self, listener: socket.socket, token: str, num_processes: int, timeout: float, host: str):
        super().__init__(0, host, range(1, num_processes), timeout)
        self._listener, self._token = listener, token

    def alone(self) -> bool:
        lost = None if self.verdict is None else self.verdict.process
        return all(peer.gone or process == lost for process, peer in tuple(self._peers.items()))

    async def _connect(self) -> None:
        async with await asyncio.start_server(self._meet, sock=self._listener, limit=LONGEST_LINE):
            await self._keep_beating()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handles one connection until it ends; closes a stranger's without an answer."""
        with contextlib.closing(writer), contextlib.suppress(OSError, ValueError, TimeoutError):
            hello = parse_line(await asyncio.wait_for(reader.readline(), _HELLO_SECONDS))
            if hello is not None and self._knows(hello):
                process = hello["process_id"]
                self._peers[process] = peer = _Peer(str(hello.get("host")), writer, self._clock.now)
                if self.verdict is not None:  # it came late
                    self._send(verdict=self.verdict)
                await self._listen(process, peer, reader)

    def _knows(self, hello: dict[str, Any]) -> bool:
        """Whether a hello is from a process of the cluster that is not yet connected."""
        token, process = hello.get("token"), hello.get("process_id")
        authentic = isinstance(token, str) and hmac.compare_digest(token.encode(), self._token.encode())
        return authentic and type(process) is int and process in self._others and process not in self._peers


class Spoke(Side):
    """The side of any other process: connected to process 0, on `hub_host`, which it tells the token."""

    def __init__(self, connection: socket.socket, token: str, process: int, timeout: float, host: str, hub_host: str):
        super().__init__(process, host, range(1), timeout)
        self._connection, self._hub_host = connection, hub_host
        self._hello = {"token": token, "process_id": process, "host": host}

    async def _connect(self) -> None:
        reader, writer = await asyncio.open_connection(sock=self._connection, limit=LONGEST_LINE)
        hub = self._peers[0] = _Peer(self._hub_host, writer, 0.0)
        self._send(**self._hello)
        with contextlib.closing(writer):
            await asyncio.gather(self._keep_beating(), self._listen(0, hub, reader))


def named(process: int, host: str) -> str:
    """Names a process for messages: "process 2 (host b)"."""
    return f"process {process} (host {host})" if host else f"process {process}"
