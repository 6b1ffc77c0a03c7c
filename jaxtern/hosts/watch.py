"""The watch of a cluster's processes over each other: when one fails or is lost, all print one line and leave.

A thread sends and reads the heartbeats of `jaxtern.hosts.heartbeats`. When it learns that another process is lost, it
prints the reason and ends this process, as the main thread mostly waits in a collective for ever. A collective's own
error is not the cause, so a process that fails asks the watch first.
"""

import asyncio
import contextlib
import faulthandler
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxtern.hosts.heartbeats import Hub, Side, Spoke, Verdict
from jaxtern.hosts.roll_call import StartError
from jaxtern.hosts.settings import shorten, to_line

_CONNECT_SECONDS = 30.0
_VERDICT_SECONDS = 3.0  # time for the watch to hear of a lost process after a collective has failed
_TELL_SECONDS = 2.0
_ASIDE_SECONDS = 0.5  # how long a process stays before it leaves because another failed
_LAST_SECONDS = 2.0  # how long process 0 stays, as JAX aborts the others at once when it leaves
_END_SECONDS = 300.0  # as jax.distributed waits
_GOODBYE_SECONDS = 10.0
_HOOK_SECONDS = 20.0
_STEP_SECONDS = 0.02


class Watch:
    """This process's part of the watch."""

    def __init__(self, side: Side):
        self._side = side
        self._lock = threading.Lock()
        self._fails = self._leaves = False  # this process leaves as it failed, or as another did; never both
        self._verdict = threading.Event()
        self.hooks: list[Callable[[], Any]] = []
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def say_goodbye(self, awaits_others: bool) -> None:
        if not awaits_others:
            self._call(self._side.tell_end)
            self._wait_for(self._side.all_at_end, _END_SECONDS)
            while self._verdict.wait(5 * _STEP_SECONDS):  # the watch's thread is about to end this process
                time.sleep(60)
            import jax  # here, as a command says something before it loads JAX

            jax.distributed.shutdown()  # not at Python's exit: JAX aborts if one is lost before
        self._call(self._side.tell_end, "bye")
        if awaits_others and isinstance(self._side, Hub):
            self._wait_for(self._side.alone, _GOODBYE_SECONDS)

    def tell_failure(self, reason: str, status: int, asks_first: bool) -> None:
        if self._fails:
            return
        self._verdict.wait(_VERDICT_SECONDS if asks_first else 0)
        with self._lock:
            self._fails = not self._leaves
        while not self._fails:  # the watch's thread is about to end this process
            time.sleep(60)
        self._call(self._side.tell_failure, reason, status)
        self._wait_for(self._side.failure_confirmed, _TELL_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._side.run(self._begin_exit))

    def _call(self, function: Callable, *arguments: object) -> None:
        """Calls a function in the watch's thread and waits for it."""

        async def call() -> None:
            function(*arguments)

        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(call(), self._loop).result(_TELL_SECONDS)

    def _wait_for(self, condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:
            time.sleep(_STEP_SECONDS)

    def _begin_exit(self, verdict: Verdict) -> None:
        """Starts to end this process, in the watch's thread; returns at once."""
        with self._lock:
            self._leaves = not self._fails
        if self._leaves:
            self._verdict.set()
            self._exiting = asyncio.ensure_future(self._exit(verdict))

    async def _exit(self, verdict: Verdict) -> None:
        # If a lock or a full pipe blocks what follows, faulthandler's C thread ends this process.
        with Path(os.devnull).open("w") as nowhere:
            limit = _LAST_SECONDS + _ASIDE_SECONDS + (_HOOK_SECONDS if self.hooks else 2.0)
            faulthandler.dump_traceback_later(limit, exit=True, file=nowhere)
            _speak_last(f"error: {verdict.reason}")
            os.dup2(nowhere.fileno(), 2)  # hides the errors that follow from this one
            await self._stay_for_the_others()
            for hook in (*self.hooks, sys.stdout.flush):  # the disk may be full, or nobody may read
                with contextlib.suppress(Exception):
                    hook()
            os._exit(verdict.status)

    async def _stay_for_the_others(self) -> None:
        """Waits a little, so that a launcher first sees the process that failed first; process 0 leaves last."""
        await asyncio.sleep(_STEP_SECONDS)
        start, is_hub = time.monotonic(), isinstance(self._side, Hub)
        while (passed := time.monotonic() - start) < (_LAST_SECONDS if is_hub else _ASIDE_SECONDS):
            if self._side.alone() and (passed > _ASIDE_SECONDS or not is_hub):
                break
            await asyncio.sleep(_STEP_SECONDS)


_watch: Watch | None = None


def listen(host: str | None) -> socket.socket:
    """Listens at one address, or at all for None or "::", and at a port that the system picks."""
    if host in (None, "::"):
        both = socket.has_dualstack_ipv6()
        return socket.create_server(("", 0), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both)
    family, *_, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return socket.create_server(address[:2], family=family)


def start_hub(host: str | None, num_processes: int, timeout: float) -> dict[str, Any]:
    """Starts the watch of process 0, which listens at `host`; returns what `start_spoke` needs in the others.

    Any process that is silent for `timeout` seconds counts as lost.
    """
    global _watch  # noqa: PLW0603
    listener = listen(host)
    token, name = secrets.token_hex(16), socket.gethostname()
    _watch = Watch(Hub(listener, token, num_processes, timeout, name))
    return {"port": listener.getsockname()[1], "token": token, "host": name, "timeout": timeout}


def start_spoke(addresses: list[str], told: Mapping[str, Any], process: int) -> None:
    """Starts the watch of another process, which connects to the first of process 0's addresses that answers.

    `told` is the result of process 0's `start_hub`. Raises StartError if no address answers.
    """
    global _watch  # noqa: PLW0603
    connection = _connect(addresses, told["port"])
    _watch = Watch(Spoke(connection, told["token"], process, told["timeout"], socket.gethostname(), told["host"]))


def is_kept() -> bool:
    """Whether this process keeps a watch."""
    return _watch is not None


def tell_failure(reason: str, status: int, asks_first: bool = True) -> None:
    """Tells the other processes that this one failed; call it before leaving, and before printing anything.

    If another process failed before, it does not return: the watch then ends this process with that one's reason. A
    second call does nothing, nor does a call in a single process.

    Args:
      reason: one line.
      status: exit status of this process, and then of all others.
      asks_first: whether to wait three seconds for news of another's failure.
    """
    if _watch is not None:
        _watch.tell_failure(to_line(reason), status, asks_first)


def say_goodbye(awaits_others: bool = False) -> None:
    """Leaves normally, together with all others, for which it waits up to 5 minutes.

    With `awaits_others`, it leaves at once, but process 0 waits up to 10 seconds for the others to exit, as JAX aborts
    them when they lose it.
    """
    if _watch is not None:
        _watch.say_goodbye(awaits_others)


def before_leaving(hook: Callable[[], Any]) -> None:
    """Calls a function, in the watch's thread, before this process leaves because another failed; all share 20 s."""
    if _watch is not None:
        _watch.hooks.append(hook)


def _speak_last(line: str) -> None:
    """Writes a line to standard error, over a progress bar if there is one."""
    clear = "\r\x1b[K" if os.isatty(2) else ""
    with contextlib.suppress(OSError):
        os.write(2, f"{clear}{line}\n".encode(errors="replace"))


def _connect(addresses: list[str], port: int) -> socket.socket:
    reasons = []
    for address in addresses:
        try:
            return socket.create_connection((address, port), timeout=_CONNECT_SECONDS / len(addresses))
        except OSError as error:
            reasons.append(error.strerror or error)
    raise StartError(f"process 0's watch cannot be reached at {shorten(addresses[0])}, port {port}: {reasons[0]}")
