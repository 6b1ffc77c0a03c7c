"""One run: started, struck, watched, undone, started again, up to its end."""

import contextlib
import functools
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.chaos import check, examples, faults
from benchmarks.chaos.faults import Fault, Scene
from benchmarks.chaos.team import Hosts, Launched, Printed, is_alive
from benchmarks.netlab import Lab

START_TIMEOUT, PEER_TIMEOUT = 60, 8
START_LIMIT, QUIET_LIMIT = START_TIMEOUT + 240, 60  # seconds in which a run that lives has shown it by a step's line
LIMIT = PEER_TIMEOUT + 12  # from a fault in training until all have ended; before, START_TIMEOUT goes before it
MAX_STARTS = 4
USAGE_ERROR = 2
_POLL_SECONDS, _ENDING_SECONDS = 0.02, 10


class Setting(NamedTuple):
    """What all runs have in common.

    Attributes:
      processes: how many.
      flags: of jaxtern.train, but for the folder.
      environment: in which it runs, beside this process's own.
      out: the runs' folder.
      steps: of a run.
      checkpoint_every: so many of them.
    """

    processes: int
    flags: tuple[str, ...]
    environment: dict[str, str]
    out: Path
    steps: int
    checkpoint_every: int


class Struck(NamedTuple):
    """What befell the run, when, and the ids of the processes that are to end by themselves."""

    fault: Fault
    time: float
    awaited: list[int]


class Session:
    """A run from its first start to its end.

    Attributes:
      printed: all lines.
      wrong: what has gone wrong, a line each.
    """

    def __init__(self, setting: Setting, name: str, fault: Fault | None, lab: Lab | None):
        self.workdir, self._setting, self._fault, self._lab = setting.out / name, setting, fault, lab
        self._examples = setting.out / f"{name}.examples"
        find_newest = functools.partial(check.find_newest, self.workdir)
        self.printed = Printed(setting.out / f"{name}.log", find_newest, setting.checkpoint_every)
        self.wrong: list[str] = []
        self._facts: dict[str, Any] = {"seconds": None, "did": "", "phase": None}
        self._disk: faults.Disk | None = None

    def run(self) -> dict[str, Any]:
        """Starts all until the run is finished or refused; what happened, by name."""
        fault, statuses = self._fault, []
        with contextlib.ExitStack() as stack:
            if fault is not None and fault.kind == "disk_full":
                self._disk = stack.enter_context(faults.Disk(faults.disk_folder(fault, self.workdir)))
            began = time.monotonic()
            while not self.wrong:
                statuses.append(self._start(strikes=fault is not None and not statuses))
                if not any(statuses[-1]) or USAGE_ERROR in statuses[-1]:
                    break
                if len(statuses) == MAX_STARTS:
                    self.wrong.append(f"not finished after {MAX_STARTS} starts")
            ended = time.monotonic()
            if self._disk is not None:
                self._disk.empty()  # also where it was filled too late to stop the run
            left = None if any(statuses[-1]) else self._inspect()
        self.wrong += self.printed.wrong
        again = sum(line.text.startswith("launch: starting all again") for line in self.printed.lines)
        restarts = len(statuses) - 1 + again
        if not restarts:
            self._facts["seconds"] = None  # it went on
        found = {"statuses": statuses, "restarts": restarts, "by_launcher": again, "from": self.printed.began}
        return self._facts | found | {"began": began, "ended": ended, "left": left}

    def _inspect(self) -> dict[str, Any] | None:
        """What a finished run has left."""
        try:
            self.wrong += check.left_behind(self.workdir)
            if self._lab is not None:
                noted = examples.read_examples(self._examples, self._setting.processes)
                self.wrong += examples.find_faults(noted, self._setting.steps)
            return check.read_run(self.workdir)
        except (OSError, ValueError) as error:
            self.wrong.append(f"cannot be read: {error}")
            return None

    def _start(self, strikes: bool) -> list[int]:
        """One start, to the end of all processes; their statuses."""
        self.printed.begin()
        flags = [*self._setting.flags, f"--workdir={self.workdir}"]
        own = flags, self._setting.environment | {examples.EXAMPLES: str(self._examples)}, self.printed
        if self._lab is None:
            team = Launched(self._setting.processes, *own)
        else:
            team = Hosts(self._lab, "benchmarks.chaos.train", *own)
        pids: set[int] = set()
        try:
            struck = self._strike(team, pids) if strikes else None
            self._await_end(team, struck, pids)
            statuses = team.statuses()
        finally:
            team.close()
        self._require_none(pids)
        self.printed.end()
        if struck is not None and self._fault is not None and (statuses is None or any(statuses)):
            scene = Scene(team, self.workdir, self._lab, self._disk)
            did = faults.undo(self._fault, scene)
            self._facts["did"] = "; ".join(filter(None, (self._facts["did"], did)))
        return statuses or [1]

    def _require_none(self, pids: set[int]) -> None:
        """Of a start's processes; those of a launcher that was killed take a moment to end."""
        deadline = time.monotonic() + _ENDING_SECONDS
        while (left := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        if left:
            self.wrong.append(f"processes left: {left}")

    def _strike(self, team: Hosts | Launched, pids: set[int]) -> Struck | None:
        """Waits for the moment and strikes; None where the run has ended before."""
        fault, started = self._fault, self.printed.moved
        assert fault is not None
        while self._is_before(fault, started):
            pids |= set(team.pids().values())
            if team.statuses() is not None or self._is_still():
                return None
            time.sleep(_POLL_SECONDS)
        victims = team.pids()
        pids |= set(victims.values())
        still = {victims.get(fault.victim)} if fault.kind in ("freeze", "thaw") else set()
        self._facts["phase"] = f"step {self.printed.step}" if self.printed.step else "start-up"
        now = time.monotonic()
        self._facts["did"] = faults.strike(fault, Scene(team, self.workdir, self._lab, self._disk))
        return Struck(fault, now, [pid for pid in victims.values() if pid not in still])

    def _is_before(self, fault: Fault, started: float) -> bool:
        """Whether its moment is still to come."""
        step, since = self.printed.step, self.printed.moved if fault.step else started
        return step < fault.step or (step == fault.step and time.monotonic() < since + fault.delay)

    def _await_end(self, team: Hosts | Launched, struck: Struck | None, pids: set[int]) -> None:
        """Until all have ended, one that stands still with a little help."""
        awaits = struck is not None
        while team.statuses() is None:
            pids |= set(team.pids().values())
            if awaits and struck is not None and self._have_ended(struck):
                awaits = False
                faults.help_to_end(struck.fault, team)
                self.printed.moved = time.monotonic()
            if self._is_still():
                self.wrong.append(f"hangs: processes {sorted(team.pids())} have not ended")
                self._ask_where(team)
                break
            time.sleep(_POLL_SECONDS)
        deadline = time.monotonic() + _ENDING_SECONDS  # those of a launcher that was killed take a moment
        while awaits and struck is not None and not self._have_ended(struck) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def _ask_where(self, team: Hosts | Launched) -> None:
        """Has those that hang print where they stand (PYTHONFAULTHANDLER), and end."""
        for pid in team.pids().values():
            faults.send(pid, signal.SIGABRT)
        time.sleep(_ENDING_SECONDS)

    def _have_ended(self, struck: Struck) -> bool:
        """Whether those that must end by themselves have; how long that took."""
        if any(map(is_alive, struck.awaited)):
            return False
        self._facts["seconds"] = round(time.monotonic() - struck.time, 2)
        return True

    def _is_still(self) -> bool:
        """Whether nothing has been heard of the run for too long."""
        limit = QUIET_LIMIT if self.printed.step else START_LIMIT
        return time.monotonic() - self.printed.moved > limit
