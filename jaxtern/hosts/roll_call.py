"""The roll call before jax.distributed starts: checks that all processes are there and have the same settings.

If a process does not come, jax.distributed aborts the others with a stack trace that does not name it; if processes
disagree on their number, it lets them start. So process 0 first counts them, at the address where jax.distributed will
listen, tells all the result, and frees the address.

A process sends one line, {"jaxtern": version of this protocol, "process_id": ..., "num_processes": ..., "versions":
...}. The answer is one line, {"start": what process 0 announces} or {"error": a sentence, "wrong_settings": whether
settings are wrong, so that waiting longer would not help}.
"""

import asyncio
import contextlib
import errno
import importlib.metadata
import logging
import socket
import time
from collections.abc import Callable
from typing import Any

from jaxtern.hosts.json_lines import LONGEST_LINE, encode_line, parse_line
from jaxtern.hosts.settings import Cluster, parse_address, shorten

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 0.2
_QUIET_SECONDS = 10.0  # before a line names the missing processes


class StartError(Exception):
    """The processes of a cluster did not all come; the message is one line."""


def call_roll(cluster: Cluster, bind_address: str, timeout: float, announce: Callable[[], Any]) -> Any:
    """Waits in every process until all of them are there; returns what process 0 announces.

    Args:
      cluster: of several processes, with a known `coordinator`.
      bind_address: host:port where process 0 listens.
      timeout: seconds for which process 0 waits for the others, and they for it.
      announce: makes the JSON that process 0 tells all; called only there, once all have come.

    Raises:
      StartError: if a process does not come in time; it is named if process 0 has come.
      ValueError: if settings differ, or the address is not this machine's.
    """
    is_first = cluster.process_id == 0
    answer = asyncio.run(_hold(cluster, bind_address, timeout, announce)) if is_first else _ask(cluster, timeout)
    if "error" in answer:
        raise (ValueError if answer.get("wrong_settings") else StartError)(answer["error"])
    return answer.get("start")


class _Roll:
    """Process 0's list of the processes that have come; `complete` is the answer to all, once it is known."""

    def __init__(self, cluster: Cluster, announce: Callable[[], Any]):
        self._cluster, self._announce, self._here = cluster, announce, {0}
        self.complete: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.meetings: set[Any] = set()

    def missing(self) -> str:
        """Lists the missing processes: "processes 1, 3 of 4"."""
        names = [str(each) for each in range(self._cluster.num_processes) if each not in self._here]
        shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
        return f"process{'es' if len(names) > 1 else ''} {shown} of {self._cluster.num_processes}"

    def fail(self, error: str, wrong_settings: bool) -> None:
        """Makes the answer to all an error, unless it is known already."""
        if not self.complete.done():
            self.complete.set_result({"error": error, "wrong_settings": wrong_settings})

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handles one connection until it ends; closes a stranger's without an answer."""
        with contextlib.closing(writer), contextlib.suppress(OSError, ValueError):  # it has gone; its line is too long
            said = parse_line(await reader.readline())
            if said is None or type(said.get("process_id")) is not int:
                return
            self.meetings.add(asyncio.current_task())
            self._note(said)
            left = asyncio.ensure_future(reader.read())  # ends when the other side does
            await asyncio.wait([left, self.complete], return_when=asyncio.FIRST_COMPLETED)
            if self.complete.done():
                writer.write(encode_line(self.complete.result()))
                await writer.drain()
                await asyncio.wait([left], timeout=1)  # the other side closes first, so that this port becomes free
            self._here.discard(said["process_id"])

    def _note(self, said: dict[str, Any]) -> None:
        """Counts a process; completes the roll if it is the last, or its settings are wrong."""
        process, own = said["process_id"], _introduction(self._cluster)
        wrong = next((name for name in ("num_processes", "versions") if said.get(name) != own[name]), None)
        if wrong is not None:
            different = f"{wrong}={shorten(said.get(wrong))} in process {process}, {shorten(own[wrong])} in process 0"
            self.fail(f"{different}: must be the same in all", wrong_settings=True)
        elif process in self._here or process not in range(self._cluster.num_processes):
            self.fail(f"process_id={process}: is given to two processes; each must have its own", wrong_settings=True)
        else:
            self._here.add(process)
            if len(self._here) == self._cluster.num_processes and not self.complete.done():
                self.complete.set_result({"start": self._announce()})


async def _hold(cluster: Cluster, bind_address: str, timeout: float, announce: Callable[[], Any]) -> dict[str, Any]:
    """Listens in process 0 until all have come or the time is over; returns the answer to all."""
    roll, quiet = _Roll(cluster, announce), min(timeout, _QUIET_SECONDS)
    server = await _listen(roll.meet, bind_address)
    await asyncio.wait([roll.complete], timeout=quiet)
    if timeout > quiet and not roll.complete.done():
        logger.info("waiting for %s, for %g s at most", roll.missing(), timeout)
        await asyncio.wait([roll.complete], timeout=timeout - quiet)
    roll.fail(f"{roll.missing()} did not come to {cluster.coordinator} in {timeout:g} s", wrong_settings=False)
    server.close()
    if roll.meetings:
        await asyncio.wait(roll.meetings, timeout=2)
    return roll.complete.result()


async def _listen(meet: Callable, bind_address: str) -> asyncio.Server:
    host, port = parse_address("coordinator", bind_address)
    try:
        # For asyncio, "::" means only all IPv6 addresses; None means all addresses.
        return await asyncio.start_server(meet, None if host == "::" else host, port, limit=LONGEST_LINE)
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            who = "another program listens there, or another process with process_id=0"
            raise StartError(f"coordinator={bind_address}: {who} ({reason})") from None
        need = "process 0, which this is, must run on that host, or JAX_COORDINATOR_BIND_ADDRESS=HOST:PORT name another"
        raise ValueError(f"coordinator={bind_address}: {' '.join(reason.split())}; {need}") from None


def _ask(cluster: Cluster, timeout: float) -> dict[str, Any]:
    """Introduces this process to process 0, again and again until it answers."""
    address, begun = parse_address("coordinator", cluster.coordinator), time.monotonic()
    reason, told = "no run answers there", False
    while (left := begun + timeout - time.monotonic()) > 0:
        if not told and timeout - left > _QUIET_SECONDS:
            told = True
            logger.info("waiting for process 0 at %s (%s), for %g s at most", cluster.coordinator, reason, timeout)
        try:
            with socket.create_connection(address, min(left, _QUIET_SECONDS)) as connection:
                connection.settimeout(timeout + 5)  # process 0 answers at the latest when its own time is over
                connection.sendall(encode_line(_introduction(cluster)))
                with connection.makefile("rb") as lines:
                    answer = parse_line(lines.readline(LONGEST_LINE))
        except TimeoutError:
            reason = "no run answers there"
        except OSError as error:
            reason = " ".join((error.strerror or str(error)).split())
        else:
            if answer is not None:
                return answer
            reason = "what listens there is no run that is about to start"
        time.sleep(_RETRY_SECONDS)
    where = f"process 0 of {cluster.num_processes} did not come to {cluster.coordinator} in {timeout:g} s"
    hint = f"this is process {cluster.process_id}: does process 0 run there?"
    raise StartError(f"{where} ({reason}; {hint})")


def _introduction(cluster: Cluster) -> dict[str, Any]:
    versions = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib")}
    return {"process_id": cluster.process_id, "num_processes": cluster.num_processes, "versions": versions}
