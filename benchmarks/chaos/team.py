"""The processes of a run: on hosts of a laboratory, or by jaxtern.launch; and what they print."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from benchmarks.chaos.faults import send
from benchmarks.netlab import Lab

GRACE_SECONDS = 3
_STEP, _STOPPED = re.compile(r"step (\d+): loss"), re.compile(r"stopped by .* at step (\d+)")
_BEGINS = re.compile(r"[\d,]+ steps of \d+ examples, from (?:the start|step (\d+)), in ")
_AGAIN = "launch: starting all again"
_PIPES: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}


class Line(NamedTuple):
    """What was printed: when by `time.monotonic`, in which start, by which process (None: the launcher)."""

    time: float
    start: int
    process: int | None
    text: str


class Printed:
    """All lines of a run, in the order in which they came; of each start, whether it goes on where it should.

    Attributes:
      lines: so far.
      began: from which step each start said that it goes on, also those of a launcher.
      wrong: starts that went on from another than the newest whole checkpoint, or after which that was an older one
        than what they had printed means; a line each.
      start: number of the start whose lines come now.
      step: of the last step's line; 0 in start-up, also that of a launcher's second start.
      moved: when that came, or the start was.
      steps: when each came.
    """

    def __init__(self, log: Path, find_newest: Callable[[], int], checkpoint_every: int):
        """With the step of the newest whole checkpoint, as it is found where a start begins or has ended."""
        self.lines: list[Line] = []
        self.began: list[int] = []
        self.wrong: list[str] = []
        self._find_newest, self._every = find_newest, checkpoint_every
        self._newest = self._saved = 0
        self.start, self.step, self.moved = -1, 0, time.monotonic()
        self.steps: list[float] = []
        self._log, self._lock = log, threading.Lock()
        log.unlink(missing_ok=True)

    def begin(self) -> None:
        """Another start."""
        self.start, self._newest = self.start + 1, self._find_newest()
        self.step, self.moved = 0, time.monotonic()

    def end(self) -> None:
        """A start has ended, and nothing has befallen the folder since."""
        self._newest = self._find_newest()
        if self._newest < self._saved:
            self.wrong.append(f"the checkpoint of step {self._saved} is lost, the newest is that of {self._newest}")

    def follow(self, stream: IO[str], process: int | None) -> threading.Thread:
        """Reads until nobody writes any more; of a launcher (None) the lines of all processes."""
        thread = threading.Thread(target=self._read, args=(stream, process, self.start), daemon=True)
        thread.start()
        return thread

    def _read(self, stream: IO[str], process: int | None, start: int) -> None:
        with stream, self._log.open("a") as log:
            for whole in stream:
                line = Line(time.monotonic(), start, *_split(whole.rstrip("\n"), process))
                with self._lock:
                    self.lines.append(line)
                    self._follow_steps(line)
                log.write(f"{line.time:.3f} start {start} [{line.process}] {line.text}\n")
                log.flush()

    def _follow_steps(self, line: Line) -> None:
        """What a line says of where the run stands."""
        if found := _STEP.match(line.text):
            self.step, self.moved = int(found[1]), line.time
            self.steps.append(line.time)
            # A step's line comes after its predecessor's checkpoint was begun, which waits for the one before that.
            self._saved = max(self._saved, (self.step - 1) // self._every * self._every - self._every)
        elif found := _STOPPED.match(line.text):
            self._saved = max(self._saved, int(found[1]))
        elif found := _BEGINS.match(line.text):
            self.began.append(int(found[1] or 0))
            if self.began[-1] != self._newest:
                self.wrong.append(f"went on from step {self.began[-1]}, not from the newest, {self._newest}")
        elif line.text.startswith(_AGAIN):
            self.end()
            self.step, self.moved = 0, time.monotonic()


def _split(text: str, process: int | None) -> tuple[int | None, str]:
    """A launcher's line into who printed it and what."""
    found = re.match(r"\[(\d+)\] ", text) if process is None else None
    return (int(found[1]), text[found.end() :]) if found else (process, text)


class Hosts:
    """One process on every host of a laboratory, all started by hand."""

    def __init__(self, lab: Lab, module: str, flags: Sequence[str], environment: dict[str, str], printed: Printed):
        self._processes, self._readers = [], []
        for host in range(lab.hosts):
            who = [f"--coordinator={lab.coordinator}", f"--process_id={host}", f"--num_processes={lab.hosts}"]
            command = [sys.executable, "-u", "-m", module, *who, *flags]
            process = lab.popen(host, command, environment, **_PIPES, text=True, errors="replace")
            self._processes.append(process)
            assert process.stdout is not None
            self._readers.append(printed.follow(process.stdout, host))

    def pids(self) -> dict[int, int]:
        return {i: process.pid for i, process in enumerate(self._processes) if process.poll() is None}

    def statuses(self) -> list[int] | None:
        """Of all, once they have ended."""
        found = [process.poll() for process in self._processes]
        return None if None in found else [status for status in found if status is not None]

    def kill(self) -> None:
        for process in self._processes:
            process.kill()

    def close(self) -> None:
        """Waits for the last lines."""
        self.kill()
        for process, reader in zip(self._processes, self._readers, strict=True):
            process.wait()
            reader.join(5)


class Launched:
    """All processes by `python -m jaxtern.launch`, which starts them again once."""

    def __init__(self, num_processes: int, flags: Sequence[str], environment: dict[str, str], printed: Printed):
        options = ["-n", str(num_processes), "--max_restarts=1", f"--grace_seconds={GRACE_SECONDS}"]
        command = [sys.executable, "-u", "-m", "jaxtern.launch", *options, "--", *flags]
        own: dict[str, Any] = {"env": os.environ | environment, "start_new_session": True}
        self._process = subprocess.Popen(command, **_PIPES, **own, text=True, errors="replace")
        assert self._process.stdout is not None
        self._reader = printed.follow(self._process.stdout, None)

    def pids(self) -> dict[int, int]:
        found = {}
        for pid in _children(self._process.pid):
            with contextlib.suppress(OSError):
                number = re.search(rb"\0JAXTERN_PROCESS_ID=(\d+)\0", b"\0" + Path(f"/proc/{pid}/environ").read_bytes())
                if number and is_alive(pid):
                    found[int(number[1])] = pid
        return found

    def statuses(self) -> list[int] | None:
        return None if self._process.poll() is None else [self._process.returncode]

    def kill(self) -> None:
        """The launcher, with which its processes end."""
        self._process.kill()

    def close(self) -> None:
        """Waits for the last lines."""
        left = _children(self._process.pid)
        self.kill()
        self._process.wait()
        for pid in left:
            send(pid, signal.SIGKILL)
        self._reader.join(5)


def is_alive(pid: int) -> bool:
    """Whether a process runs or stands still, so has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
