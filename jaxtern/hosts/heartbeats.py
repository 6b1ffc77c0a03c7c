"""Which processes of a cluster are alive, by lines that they send each other over TCP.

Every process keeps a connection to process 0. Both sides send a beat a second, a goodbye before they leave in the
regular way, and a reason before they leave because something failed. A connection that closes without one of the last
two has lost its other side; closed after a goodbye it has not, but process 0 must stay until all have said theirs. So
has a connection on which nothing has come for too long; also after a goodbye, since beats go on until it closes: JAX
has all wait for each other in the end. Process 0 judges once, and tells all.
"""

import abc
import asyncio
import contextlib
import hmac
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtern.hosts.json_lines import encode_line, parse_line

_LONGEST_LINE = 1 << 16  # bytes
_HELLO_SECONDS = 10.0  # within which who connects must have said who it is


class Verdict(NamedTuple):
    """Why a cluster ends.

    Attributes:
      process: which of them failed first.
      status: with which all leave.
      reason: in one line.
    """

    process: int
    status: int
    reason: str


class AwakeClock:
    """Seconds during which this process ran.

    Of a time in which it stood still, as by SIGSTOP or where another thread did not let go of the interpreter, two
    beats count at most: what others sent meanwhile is yet to be read.
    """

    def __init__(self, beat: float, read: Callable[[], float] = time.monotonic):
        self._longest, self._read, self._last = 2 * beat, read, read()
        self.now = 0.0

    def tick(self) -> None:
        """Adds the time since the last call; must be called every beat."""
        now = self._read()
        self.now += min(now - self._last, self._longest)
        self._last = now


class Side(abc.ABC):
    """What both sides of the connections have in common; all but the constructor runs in one event loop.

    Attributes:
      verdict: why the cluster ends; None as long as it does not.
    """

    def __init__(self, process: int, timeout: float, leave: Callable[[Verdict], None]):
        self.verdict: Verdict | None = None
        self._process, self._timeout, self._leave = process, timeout, leave
        self._beat = min(1.0, timeout / 6)
        self._clock = AwakeClock(self._beat)
        self._finished = False

    def judge_and_leave(self, verdict: Verdict) -> None:
        """Tells the others, and has this process leave; the first verdict is final, a later one does nothing."""
        if self.verdict is None:
            self.verdict = verdict
            self._tell_verdict(verdict)
            self._leave(verdict)

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(self._beat)
            self._clock.tick()
            self._send_beat()
            self._look_for_silence()

    @abc.abstractmethod
    async def run(self) -> None:
        """Sends and receives for ever."""

    @abc.abstractmethod
    def tell_failure(self, reason: str, status: int) -> None:
        """This process fails, and is about to leave by itself."""

    @abc.abstractmethod
    def told_failure(self) -> bool:
        """Whether the others know of it, as far as that can be known."""

    def tell_goodbye(self) -> None:
        """This process is about to end in the regular way."""
        self._finished = True
        self._send({"bye": True})

    @abc.abstractmethod
    def alone(self) -> bool:
        """Whether those for whom this process stays have left."""

    @abc.abstractmethod
    def _tell_verdict(self, verdict: Verdict) -> None: ...

    def _send_beat(self) -> None:
        self._send({"beat": True})

    @abc.abstractmethod
    def _send(self, content: dict[str, Any]) -> None: ...

    @abc.abstractmethod
    def _look_for_silence(self) -> None: ...

    def _silent(self, process: int, host: str) -> Verdict:
        reason = f"has been silent for {self._timeout:g} s: it is frozen, or cut off from the network"
        return Verdict(process, 1, f"{named(process, host)} {reason}")


class _Member:
    """A process as process 0 knows it; `heard` by its clock."""

    def __init__(self, host: str, writer: asyncio.StreamWriter, heard: float):
        self.host, self.writer, self.heard = host, writer, heard
        self.finished = self.gone = self.acknowledged = False


class Hub(Side):
    """Process 0's side.

    Args:
      listener: where the others connect.
      token: that they must say.
      num_processes: in all.
      timeout: seconds after which a process that says nothing counts as lost.
      host: this one's name.
      leave: is called with the verdict, once, in the event loop; not for this process's own failure.
    """

    def __init__(
        self,
        listener: socket.socket,
        token: str,
        num_processes: int,
        timeout: float,
        host: str,
        leave: Callable[[Verdict], None],
    ):
        super().__init__(0, timeout, leave)
        self._listener, self._token, self._host = listener, token, host
        self._expected = range(1, num_processes)
        self._members: dict[int, _Member] = {}

    async def run(self) -> None:
        async with await asyncio.start_server(self._meet, sock=self._listener, limit=_LONGEST_LINE):
            await self._keep_beating()

    def tell_failure(self, reason: str, status: int) -> None:
        # no judge_and_leave: who calls this leaves, with its own words
        self.verdict = self.verdict or Verdict(0, status, failed(0, self._host, reason))
        self._tell_verdict(self.verdict)

    def told_failure(self) -> bool:
        members = [self._members.get(process) for process in self._expected]
        return all(member is not None and (member.acknowledged or member.gone) for member in members)

    def alone(self) -> bool:
        lost = None if self.verdict is None else self.verdict.process
        return all(member.gone or process == lost for process, member in tuple(self._members.items()))

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end; a stranger's is closed without a word."""
        with contextlib.closing(writer), contextlib.suppress(OSError, ValueError, TimeoutError):
            hello = parse_line(await asyncio.wait_for(reader.readline(), _HELLO_SECONDS))
            if hello is None or not self._knows(hello):
                return
            process, member = hello["process_id"], _Member(str(hello.get("host")), writer, self._clock.now)
            self._members[process] = member
            writer.write(encode_line({"welcome": self._host}))
            if self.verdict is not None:  # it came late
                self._send(_as_json(self.verdict), member)
            with contextlib.suppress(OSError, ValueError):  # it was reset; a line is too long
                while line := await reader.readline():
                    self._take_in(process, member, parse_line(line) or {})
            member.gone = True
            if not member.finished:
                self.judge_and_leave(_ended(process, member.host))

    def _knows(self, hello: dict[str, Any]) -> bool:
        """Whether who connects is one of the cluster, and new."""
        token, process = hello.get("token"), hello.get("process_id")
        authentic = isinstance(token, str) and hmac.compare_digest(token.encode(), self._token.encode())
        return authentic and type(process) is int and process in self._expected and process not in self._members

    def _take_in(self, process: int, member: _Member, said: dict[str, Any]) -> None:
        member.heard = self._clock.now
        if "bye" in said:
            member.finished = True
        elif "acknowledged" in said:
            member.acknowledged = True
        elif "failed" in said:
            self._send({"acknowledged": True}, member)
            self.judge_and_leave(Verdict(process, _status(said), failed(process, member.host, str(said["failed"]))))
        elif "given_up" in said:
            self.judge_and_leave(_expelled(0, self._host))

    def _tell_verdict(self, verdict: Verdict) -> None:
        self._send(_as_json(verdict))

    def _send(self, content: dict[str, Any], *members: _Member) -> None:
        for member in members or self._members.values():
            if not member.gone:
                member.writer.write(encode_line(content))

    def _look_for_silence(self) -> None:
        for process in self._expected:
            member = self._members.get(process)
            if member is not None and member.gone:
                continue
            heard, host = (0.0, "") if member is None else (member.heard, member.host)
            if self._clock.now - heard > self._timeout:
                self.judge_and_leave(self._silent(process, host))


class Spoke(Side):
    """The side of a process that is not process 0.

    Args:
      connection: to process 0.
      token: that shows to it who may watch.
      process: this one.
      timeout: seconds after which process 0 counts as lost, if it says nothing.
      host: this one's name.
      leave: as `Hub`.
    """

    def __init__(
        self,
        connection: socket.socket,
        token: str,
        process: int,
        timeout: float,
        host: str,
        leave: Callable[[Verdict], None],
    ):
        super().__init__(process, timeout, leave)
        self._connection, self._host = connection, ""
        self._hello = {"token": token, "process_id": process, "host": host}
        self._heard, self._writer = 0.0, None
        self._acknowledged = self._gone = self._left = False

    async def run(self) -> None:
        reader, self._writer = await asyncio.open_connection(sock=self._connection, limit=_LONGEST_LINE)
        self._send(self._hello)
        with contextlib.closing(self._writer):
            await asyncio.gather(self._keep_beating(), self._listen(reader))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError, ValueError):
            while line := await reader.readline():
                self._take_in(parse_line(line) or {})
        self._gone = True
        if not (self._finished and self._left):
            self.judge_and_leave(_ended(0, self._host, "ended before the others had" if self._left else None))

    def tell_failure(self, reason: str, status: int) -> None:
        self._send({"failed": reason, "status": status})

    def told_failure(self) -> bool:
        return self._acknowledged or self._gone

    def alone(self) -> bool:
        return self._gone

    def welcomed(self) -> bool:
        """Whether process 0 has answered."""
        return self._host != ""

    def _take_in(self, said: dict[str, Any]) -> None:
        self._heard = self._clock.now
        if "welcome" in said:
            self._host = str(said["welcome"])
        elif "bye" in said:
            self._left = True
        elif "acknowledged" in said:
            self._acknowledged = True
        elif "verdict" in said:
            self._send({"acknowledged": True})
            process = int(said.get("process_id", 0))
            told = Verdict(process, _status(said), str(said["verdict"]))
            self.judge_and_leave(_expelled(process, self._hello["host"]) if process == self._process else told)

    def _tell_verdict(self, verdict: Verdict) -> None:
        if verdict.process == 0 and not self._gone:  # should it only have been frozen, it learns so when it thaws
            self._send({"given_up": True})

    def _send(self, content: dict[str, Any]) -> None:
        if self._writer is not None and not self._gone:
            self._writer.write(encode_line(content))

    def _look_for_silence(self) -> None:
        if not self._gone and self._clock.now - self._heard > self._timeout:
            self.judge_and_leave(self._silent(0, self._host))


def named(process: int, host: str) -> str:
    """A name for messages, as "process 2 (host b)"."""
    return f"process {process} (host {host})" if host else f"process {process}"


def failed(process: int, host: str, reason: str) -> str:
    """The reason that others give for a process that told why it failed."""
    return f"{named(process, host)} failed: {reason}"


def _ended(process: int, host: str, how: str | None = None) -> Verdict:
    how = how or "ended without a word: it was killed, or its host went down"
    return Verdict(process, 1, f"{named(process, host)} {how}")


def _expelled(process: int, host: str) -> Verdict:
    """The verdict of a process on itself when the others have left without it."""
    return Verdict(process, 1, f"{named(process, host)}, this one, was silent for so long that the others have left")


def _as_json(verdict: Verdict) -> dict[str, Any]:
    return {"verdict": verdict.reason, "status": verdict.status, "process_id": verdict.process}


def _status(said: dict[str, Any]) -> int:
    """The exit status that a message names, or 1 if that is none of a failure."""
    status = said.get("status")
    return status if type(status) is int and 0 < status < 256 else 1
