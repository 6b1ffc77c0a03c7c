"""The roll call before jax.distributed starts: who is there, and do all believe the same.

jax.distributed waits for the processes of a cluster in C++. If one does not come, it aborts the others with a stack
trace that names none; if they disagree on their number, it lets them start. So process 0 first counts them on the very
address where jax.distributed will listen, tells all what it found, and makes room.

A process sends one line, {"jaxtern": version of this protocol, "process_id": ..., "num_processes": ..., "versions":
..., "patience": seconds}, and is answered in one, {"start": what process 0 tells all} or {"error": a sentence,
"wrong_settings": whether that is no matter of time}.
"""

import asyncio
import contextlib
import errno
import importlib.metadata
import logging
import time
from collections.abc import Callable
from typing import Any

from jaxtern.hosts.json_lines import LONGEST_LINE, encode_line, parse_line
from jaxtern.hosts.settings import Cluster, parse_address, shorten

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 0.2
_QUIET_SECONDS = 10.0  # before those that are waited for are named


class StartError(Exception):
    """The processes of a cluster did not all come; the message is one line."""


def call_roll(cluster: Cluster, bind_address: str, timeout: float, announce: Callable[[], Any]) -> Any:
    """Waits in every process until all of them are there; returns what process 0 announces.

    Args:
      cluster: of several processes; `coordinator` is known.
      bind_address: host:port where process 0 listens.
      timeout: seconds.
      announce: what process 0 tells all, as JSON; called in it alone, once all are there.

    Raises:
      StartError: if one does not come in time, named where process 0 is there to know.
      ValueError: if they disagree, or the address is not this machine's.
    """
    if cluster.process_id == 0:
        return asyncio.run(_hold(cluster, bind_address, timeout, announce))
    return asyncio.run(_answer(cluster, timeout))


class _Roll:
    """Process 0's list of who has come."""

    def __init__(self, cluster: Cluster, timeout: float, announce: Callable[[], Any]):
        self._cluster, self._timeout, self._announce, self._here = cluster, timeout, announce, {0}
        self._meetings: set[asyncio.Task] = set()
        self._begun = time.monotonic()
        self.complete: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    def receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Takes a connection."""
        task = asyncio.ensure_future(self._meet(reader, writer))
        self._meetings.add(task)
        task.add_done_callback(self._meetings.discard)

    def name_missing(self) -> None:
        """Says for whom it waits."""
        if not self.complete.done():
            logger.info("waiting for %s, for %g s at most", self._missing(), self._timeout)

    def give_up(self, process: int = 0) -> None:
        """Has all fail, where they are not complete when the patience of this one is over."""
        waited = f"{time.monotonic() - self._begun:.0f} s"
        limit = f"; process {process} would wait no longer" if process else ""
        reason = f"{self._missing()} did not come to {self._cluster.coordinator} in {waited}{limit}"
        self._fail(reason, wrong=False)

    async def end(self) -> None:
        """Waits until all who are here are told, but not for strangers."""
        if self._meetings:
            await asyncio.wait(self._meetings, timeout=2)
        for task in self._meetings:
            task.cancel()
        await asyncio.gather(*self._meetings, return_exceptions=True)

    def _missing(self) -> str:
        """The processes that are not here, as in "processes 1, 3 of 4"."""
        names = [str(each) for each in range(self._cluster.num_processes) if each not in self._here]
        shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
        return f"process{'es' if len(names) > 1 else ''} {shown} of {self._cluster.num_processes}"

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end; a stranger's is closed without a word."""
        with contextlib.closing(writer), contextlib.suppress(OSError, ValueError):  # it has gone; its line is too long
            said = parse_line(await reader.readline())
            if said is not None and _is_number(said.get("process_id")) and _is_number(said.get("patience")):
                patience = asyncio.get_running_loop().call_later(said["patience"], self.give_up, said["process_id"])
                try:
                    await self._attend(said, reader, writer)
                finally:
                    patience.cancel()

    async def _attend(self, said: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Counts a process while it is here, and tells it what came of the roll call."""
        came = self._note(said)
        left = asyncio.ensure_future(reader.read())  # ends when the other side does
        try:
            await asyncio.wait([left, self.complete], return_when=asyncio.FIRST_COMPLETED)
            if not self.complete.done():
                if came:
                    self._here.discard(said["process_id"])
                return
            writer.write(encode_line(self.complete.result()))
            await writer.drain()
            await asyncio.wait([left], timeout=1)  # that side closes first: else this one's port would not be free
        finally:
            left.cancel()

    def _note(self, said: dict[str, Any]) -> bool:
        """Whether a process is new and of this cluster; settles the roll where it is the last, or does not fit."""
        process, own = said["process_id"], _introduction(self._cluster)
        wrong = next((name for name in ("num_processes", "versions") if said.get(name) != own[name]), None)
        if wrong is not None:
            different = f"{wrong}={shorten(said.get(wrong))} in process {process}, {shorten(own[wrong])} in process 0"
            self._fail(f"{different}: must be the same in all", wrong=True)
        elif process in self._here or process not in range(self._cluster.num_processes):
            self._fail(f"process_id={process}: is given to two processes; each must have its own", wrong=True)
        else:
            self._here.add(process)
            if len(self._here) == self._cluster.num_processes and not self.complete.done():
                self.complete.set_result({"start": self._announce()})
            return True
        return False

    def _fail(self, error: str, wrong: bool) -> None:
        if not self.complete.done():
            self.complete.set_result({"error": error, "wrong_settings": wrong})


async def _hold(cluster: Cluster, bind_address: str, timeout: float, announce: Callable[[], Any]) -> Any:
    """Listens in process 0 until all are there."""
    roll, loop = _Roll(cluster, timeout, announce), asyncio.get_running_loop()
    server = await _listen(roll.receive, bind_address)
    timers = loop.call_later(timeout, roll.give_up), loop.call_later(_QUIET_SECONDS, roll.name_missing)
    try:
        answer = await roll.complete
    finally:
        server.close()
        for timer in timers:
            timer.cancel()
    await roll.end()
    return _take_answer(answer)


async def _listen(meet: Any, bind_address: str) -> asyncio.Server:
    host, port = parse_address("coordinator", bind_address)
    try:
        # asyncio takes "::" as all addresses of IPv6 alone, None as all
        return await asyncio.start_server(meet, None if host == "::" else host, port, limit=LONGEST_LINE)
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            raise StartError(f"coordinator={bind_address}: another program listens there ({reason})") from None
        need = (
            "process 0 must be able to listen there; JAX_COORDINATOR_BIND_ADDRESS=HOST:PORT names another address of it"
        )
        raise ValueError(f"coordinator={bind_address}: {need} ({' '.join(reason.split())})") from None


async def _answer(cluster: Cluster, timeout: float) -> Any:
    """Introduces another process to process 0 until it is answered."""
    deadline, reason, told = time.monotonic() + timeout, "no answer", False
    while (left := deadline - time.monotonic()) > 0:
        if not told and timeout - left > _QUIET_SECONDS:
            told = True
            logger.info("waiting for process 0 at %s (%s), for %g s at most", cluster.coordinator, reason, timeout)
        try:
            # Process 0 waits no longer than the least patient of all, and then says which are missing.
            answer = await asyncio.wait_for(_introduce(cluster, left), left + 5)
        except TimeoutError:
            break
        except OSError as error:
            reason = " ".join((error.strerror or str(error)).split())
        else:
            if answer is not None:
                return _take_answer(answer)
            reason = "what listens there is no run that is about to start"
        await asyncio.sleep(_RETRY_SECONDS)
    where = f"process 0 of {cluster.num_processes} did not come to {cluster.coordinator} in {timeout:g} s"
    raise StartError(f"{where} ({reason}; this is process {cluster.process_id})")


async def _introduce(cluster: Cluster, patience: float) -> dict[str, Any] | None:
    """Returns process 0's answer; None where something else listens, or it has ended."""
    assert cluster.coordinator is not None
    host, port = parse_address("coordinator", cluster.coordinator)
    reader, writer = await asyncio.open_connection(host, port, limit=LONGEST_LINE)
    try:
        writer.write(encode_line(_introduction(cluster) | {"patience": patience}))
        await writer.drain()
        return parse_line(await reader.readline())
    except ValueError:  # a line that is too long
        return None
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _introduction(cluster: Cluster) -> dict[str, Any]:
    versions = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib")}
    return {"process_id": cluster.process_id, "num_processes": cluster.num_processes, "versions": versions}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < 1e6


def _take_answer(answer: dict[str, Any]) -> Any:
    """Returns what process 0 tells all, or raises the error that it tells."""
    if answer.get("wrong_settings"):
        raise ValueError(answer["error"])
    if "error" in answer:
        raise StartError(answer["error"])
    return answer.get("start")
