"""Several processes on this machine that begin and end together."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import TextIO

from jaxtern.hosts.settings import for_process

# Killed when its parent ends, however that ends; also if that was before it said so. By exec, not between fork and exec
# in the parent, where Python is not safe.
_TIED = "setpriv", "--pdeathsig", "KILL", "sh", "-c", '[ "$PPID" = "$1" ] && shift && exec "$@"', "launch"
_IN_VAIN = 2, 126, 127  # statuses of usage errors, and as in shells of commands that cannot be run or found
_PASSED_ON = signal.SIGINT, signal.SIGTERM


def launch(command: Sequence[str], num_processes: int, max_restarts: int = 0, grace_seconds: float = 30.0) -> int:
    """Runs a command in so many processes, which find each other by the environment; the status of the first to fail.

    Their lines are printed with their number before them. When one fails the others are ended. SIGINT and SIGTERM are
    passed on to all, and their ends awaited. If this process is killed, so are they.

    Args:
      command: to run.
      num_processes: from 1 to 4096, as all run here.
      max_restarts: how often all are started again after one has failed, but for usage errors; on another port.
      grace_seconds: from SIGTERM to SIGKILL, for those that are left when one has ended.
    """
    return asyncio.run(_launch(command, num_processes, max_restarts, grace_seconds))


async def _launch(command: Sequence[str], num_processes: int, max_restarts: int, grace: float) -> int:
    restarts = 0
    while True:
        status, stopped = await _Team(command, num_processes, grace).run()
        if status == 0 or stopped or status in _IN_VAIN or restarts == max_restarts:
            return status
        restarts += 1
        print(f"launch: starting all again, {restarts} of {max_restarts} times", file=sys.stderr, flush=True)


class _Team:
    """The processes of one start."""

    def __init__(self, command: Sequence[str], num_processes: int, grace: float):
        self._command, self._num_processes, self._grace = command, num_processes, grace
        self._coordinator = f"127.0.0.1:{_free_port()}"
        self._processes: list[asyncio.subprocess.Process] = []
        self._copies: list[asyncio.Task] = []
        self._signals = 0
        self._killing: asyncio.TimerHandle | None = None

    async def run(self) -> tuple[int, bool]:
        """Starts all, and waits until all have ended; the first failure's status, and whether a signal was passed on"""
        loop = asyncio.get_running_loop()
        for number in _PASSED_ON:
            loop.add_signal_handler(number, self._pass_on, number)
        try:
            for process in range(self._num_processes):
                if not self._signals:
                    await self._start(process)
            return await self._wait(), self._signals > 0
        finally:
            self._kill()
            await asyncio.gather(*(process.wait() for process in self._processes))
            if self._copies:
                await asyncio.wait(self._copies, timeout=2)
            for number in _PASSED_ON:
                loop.remove_signal_handler(number)

    async def _start(self, process: int) -> None:
        """Starts a process in a session of its own, so that Ctrl-C reaches it by `_pass_on` alone, and once."""
        environment = for_process(self._coordinator, process, self._num_processes) | {"PYTHONUNBUFFERED": "1"}
        # Not asyncio's own pipes: by those a process has ended only when its descendants have closed them, too.
        (out, own_out), (errors, own_errors) = os.pipe(), os.pipe()
        try:
            started = await asyncio.create_subprocess_exec(
                *(*_TIED, str(os.getpid()), *self._command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=own_out,
                stderr=own_errors,
                env=os.environ | environment,
                start_new_session=True,
            )
        finally:
            os.close(own_out)
            os.close(own_errors)
        self._processes.append(started)
        for pipe, stream in ((out, sys.stdout), (errors, sys.stderr)):
            copy = _copy_lines(await _open_reader(pipe), process, stream)
            self._copies.append(asyncio.ensure_future(copy))

    async def _wait(self) -> int:
        """Waits until all have ended; returns the status of the first process to fail, or 0."""
        first = 0
        waiting = {asyncio.ensure_future(started.wait()): i for i, started in enumerate(self._processes)}
        while waiting:
            done, _ = await asyncio.wait([*waiting, *self._broken()], return_when=asyncio.FIRST_COMPLETED)
            statuses = {waiting.pop(task): task.result() for task in done if task in waiting}
            if any(task.exception() for task in done):  # nobody reads what is printed any more
                return first or 1
            failed = [process for process, status in statuses.items() if status]
            if self._signals and statuses:
                self._kill_later()
            if not first and failed:
                # JAX aborts those that miss another: where both are found at once, that other one was first.
                process = min(failed, key=lambda each: statuses[each] == -signal.SIGABRT)
                first = statuses[process] if statuses[process] > 0 else 128 - statuses[process]
                self._end_others(process, first, bool(waiting))
        return first

    def _broken(self) -> list[asyncio.Task]:
        """Copies that may still fail, as where standard output is a pipe that was closed."""
        return [copy for copy in self._copies if not copy.done() or copy.exception()]

    def _end_others(self, process: int, status: int, others: bool) -> None:
        """After a failure; those that were sent a signal before are not interrupted a second time."""
        what = "; ending the others" if others and not self._signals else ""
        print(f"launch: process {process} ended with status {status}{what}", file=sys.stderr, flush=True)
        if not self._signals:
            self._send(signal.SIGTERM)
        self._kill_later()

    def _pass_on(self, number: int) -> None:
        self._signals += 1
        self._send(number)
        if self._signals > 1:
            self._kill_later()

    def _kill_later(self) -> None:
        if self._killing is None:
            self._killing = asyncio.get_running_loop().call_later(self._grace, self._kill)

    def _send(self, number: int) -> None:
        for process in self._processes:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(number)

    def _kill(self) -> None:
        """All that is left, with what they have started."""
        if self._killing is not None:
            self._killing.cancel()
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


async def _open_reader(pipe: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    file = open(pipe, "rb", buffering=0)  # noqa: SIM115 the transport closes it
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    return reader


async def _copy_lines(reader: asyncio.StreamReader, process: int, stream: TextIO) -> None:
    """Prints what a process does, each line behind its number."""
    rest = b""
    while chunk := await reader.read(1 << 16):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            print(f"[{process}] {_as_seen(line)}", file=stream, flush=True)
    if _as_seen(rest):
        print(f"[{process}] {_as_seen(rest)}", file=stream, flush=True)


def _as_seen(line: bytes) -> str:
    """The text that a terminal would show of a line with carriage returns: the last part that is not blank."""
    drawn = [part for part in line.decode(errors="replace").split("\r") if part.strip()]
    return drawn[-1].rstrip() if drawn else ""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
