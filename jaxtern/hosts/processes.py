"""Runs a command in several processes on this machine, which start and end together."""

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO, TextIO

from jaxtern.hosts.settings import for_process

# Has the kernel kill the command when its parent ends, even if that was before setpriv ran. A preexec_fn would not be
# safe in a process with threads.
_TIED = "setpriv", "--pdeathsig", "KILL", "sh", "-c", '[ "$PPID" = "$1" ] && shift && exec "$@"', "launch"
_IN_VAIN = 2, 126, 127  # exit statuses of usage errors, and of commands that cannot be run or found
_PASSED_ON = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
_STEP_SECONDS = 0.02
_LAST_LINES_SECONDS = 2.0  # time to read the last lines, as a descendant may keep a pipe open


def launch(command: Sequence[str], num_processes: int, max_restarts: int = 0, grace_seconds: float = 30.0) -> int:
    """Runs a command in several processes; returns the exit status of the first that failed, or 0.

    They find each other by environment variables. Each line gets its process's number. When one fails, the others are
    ended. SIGINT, SIGTERM and SIGHUP are passed on; SIGTERM is sent if nobody reads. If this is killed, so are they.

    Args:
      command: to run.
      num_processes: 1 to 4096.
      max_restarts: how often to start all again, on another port, after a failure other than a usage error.
      grace_seconds: between SIGTERM and SIGKILL, for the processes that are left when one has ended.
    """
    restarts = 0
    while True:
        team = _Team(grace_seconds)
        status = team.run(command, num_processes)
        if status == 0 or team.caught or status in _IN_VAIN or restarts == max_restarts:
            return status
        restarts += 1
        print(f"launch: starting all again, {restarts} of {max_restarts} times", file=sys.stderr, flush=True)


class _Team:
    """The processes of one start; `caught` are the signals received."""

    def __init__(self, grace: float):
        self.caught: list[int] = []
        self._num_sent, self._grace, self._kill_at = 0, grace, math.inf  # _num_sent: signals that were passed on
        self._processes: list[subprocess.Popen] = []
        self._copies: list[threading.Thread] = []
        self._printing, self._nobody_reads = threading.Lock(), False

    def run(self, command: Sequence[str], num_processes: int) -> int:
        """Starts all processes and waits for their ends; returns the status of the first to fail, or 0."""
        with socket.create_server(("127.0.0.1", 0)) as probe:  # a free port
            coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
        heeded = [number for number in _PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, lambda number, _: self.caught.append(number)) for number in heeded}
        try:
            for process in range(num_processes):
                if not self.caught:
                    self._start(command, process, for_process(coordinator, process, num_processes))
            return self._wait() if self._processes else 128 + self.caught[0]
        finally:
            self._kill()
            for process in self._processes:
                process.wait()
            end = time.monotonic() + _LAST_LINES_SECONDS
            for copy in self._copies:
                copy.join(max(end - time.monotonic(), 0))
            for number, handler in before.items():
                signal.signal(number, handler)

    def _start(self, command: Sequence[str], process: int, environment: dict[str, str]) -> None:
        """Starts a process in its own session, so that Ctrl-C reaches it only once, when passed on."""
        started = subprocess.Popen(
            [*_TIED, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | environment | {"PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        self._processes.append(started)
        for pipe, stream in ((started.stdout, sys.stdout), (started.stderr, sys.stderr)):
            copy = threading.Thread(target=self._copy_lines, args=(pipe, process, stream), daemon=True)
            self._copies.append(copy)
            copy.start()

    def _copy_lines(self, pipe: IO[bytes], process: int, stream: TextIO) -> None:
        """Prints a process's lines after its number; of a line drawn over itself, the last part that is not blank."""
        with pipe:
            for line in pipe:
                drawn = [part.rstrip() for part in line.decode(errors="replace").split("\r") if part.strip()]
                if drawn or line.endswith(b"\n"):
                    self._print(f"[{process}] {drawn[-1] if drawn else ''}", stream)

    def _print(self, line: str, stream: TextIO) -> None:
        try:
            with self._printing:
                print(line, file=stream, flush=True)
        except OSError:  # it may be a closed pipe, or a file on a full disk
            self._nobody_reads = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # else Python's exit fails to flush: status 120

    def _wait(self) -> int:
        first, waiting = 0, list(range(len(self._processes)))
        while waiting:
            time.sleep(_STEP_SECONDS)
            if self._nobody_reads and not self.caught:
                self.caught.append(signal.SIGTERM)
            while self._num_sent < len(self.caught):
                self._send(self.caught[self._num_sent])
                self._num_sent += 1
            ended = {i: status for i in waiting if (status := self._processes[i].poll()) is not None}
            waiting = [i for i in waiting if i not in ended]
            failed = [i for i, status in ended.items() if status]
            if failed and not first:
                # JAX aborts processes that miss another one, so an abort found at the same time came second.
                process = min(failed, key=lambda i: ended[i] == -signal.SIGABRT)
                first = ended[process] if ended[process] > 0 else 128 - ended[process]
                what = "; ending the others" if waiting and not self._num_sent else ""
                self._print(f"launch: process {process} ended with status {first}{what}", sys.stderr)
                if not self._num_sent:
                    self._send(signal.SIGTERM)
            if failed or (ended and self._num_sent) or self._num_sent > 1:
                self._kill_at = min(self._kill_at, time.monotonic() + self._grace)
            if time.monotonic() > self._kill_at:
                self._kill()
        return first or int(self._nobody_reads)

    def _send(self, number: int) -> None:
        for process in self._processes:
            process.send_signal(number)

    def _kill(self) -> None:
        """Kills all that is left, with their descendants."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
