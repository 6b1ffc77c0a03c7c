"""What befalls a run: which fault, when, whom; and how it is done and undone."""

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from benchmarks.netlab import Lab

MEANING = {
    "kill": "one is killed",
    "kill_all": "all are killed",
    "freeze": "one stands still (SIGSTOP), for good",
    "thaw": "one stands still until the others have left",
    "cut": "one host's link is cut, for good",
    "blink": "one host's link is cut for a second",
    "terminate": "one is sent SIGTERM",
    "disk_full": "the disk is full",
    "torn": "all are killed, the newest checkpoint is damaged",
    "flip": "one bit of one's weights is flipped",
}
ON_HOSTS = ("thaw", "cut", "blink", "disk_full", "flip")  # as they need links or disks of their own, or another start
STRUCK_DEAD = ("kill_all", "torn")
SIGNALS = {
    "kill": signal.SIGKILL,
    "terminate": signal.SIGTERM,
    "freeze": signal.SIGSTOP,
    "thaw": signal.SIGSTOP,
    "flip": signal.SIGUSR1,  # see train.py
}
DAMAGES = ("truncated", "one bit flipped", "deleted", "a page of zeros")
DISK_MIB, BLINK_SECONDS, LAUNCHED_SHARE = 512, 1.0, 0.3


class Fault(NamedTuple):
    """One run's.

    Attributes:
      run: its number.
      kind: of MEANING.
      way: how the processes are started, "hosts" or "launch".
      victim: process.
      step: after whose line it strikes; 0: after the start.
      delay: seconds after that.
      chance: in [0, 1), for what else a kind leaves open.
    """

    run: int
    kind: str
    way: str
    victim: int
    step: int
    delay: float
    chance: float


class Team(Protocol):
    """The processes of a start, as a fault needs to know them."""

    def pids(self) -> dict[int, int]:
        """Of the processes that there are now, by their numbers."""
        ...

    def kill(self) -> None:
        """All at once, with whoever started them."""
        ...


class Disk:
    """A small file system of its own in memory, from `with` to its end."""

    def __init__(self, folder: Path):
        self._folder, self._filler = folder, folder / "filler"

    def __enter__(self) -> "Disk":
        self._folder.mkdir(parents=True, exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "none", str(self._folder)]
        subprocess.run(mount, check=True, capture_output=True)
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "-l", str(self._folder)], check=True, capture_output=True)

    def fill(self, left: int) -> None:
        """Up to so many bytes."""
        state = os.statvfs(self._folder)
        with self._filler.open("wb") as file, contextlib.suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, max(state.f_bavail * state.f_frsize - left, 1))

    def empty(self) -> None:
        self._filler.unlink(missing_ok=True)


class Scene(NamedTuple):
    """Where it happens."""

    team: Team
    workdir: Path
    lab: Lab | None
    disk: Disk | None


def draw(run: int, seed: int, kinds: Sequence[str], processes: int, timeline: Sequence[float], by_hosts: bool) -> Fault:
    """The fault of a run: of every len(kinds) runs each has one kind, at a moment of the undisturbed run.

    Args:
      run: its number, from 0.
      seed: of all runs.
      kinds: to draw from.
      processes: how many there are.
      timeline: seconds from the start of the undisturbed run to each step's line, and to its end.
      by_hosts: whether processes can be put on hosts of their own.
    """
    kind = random.Random(f"{seed} {run // len(kinds)}").sample(kinds, len(kinds))[run % len(kinds)]
    source = random.Random(f"{seed} {run} {kind}")
    victim, moment, chance = source.randrange(processes), source.uniform(0, timeline[-1]), source.random()
    launched = not by_hosts or (kind not in ON_HOSTS and source.random() < LAUNCHED_SHARE)
    step = sum(moment >= passed for passed in timeline[:-1])
    delay = moment - (timeline[step - 1] if step else 0.0)
    return Fault(run, kind, "launch" if launched else "hosts", victim, step, delay, chance)


def strike(fault: Fault, scene: Scene) -> str:
    """Does it; says what was done, where the kind leaves that open."""
    if fault.kind in STRUCK_DEAD:
        scene.team.kill()
    elif fault.kind in ("cut", "blink"):
        assert scene.lab is not None
        scene.lab.cut(fault.victim)
        if fault.kind == "blink":
            time.sleep(BLINK_SECONDS)
            scene.lab.mend(fault.victim)
    elif fault.kind == "disk_full":
        assert scene.disk is not None
        left = 2**21 if fault.chance * 4 % 2 < 1 else 0
        scene.disk.fill(left)
        return f"{left >> 20} MiB left for {disk_folder(fault, Path()).name or 'the whole folder'}"
    else:
        send(scene.team.pids().get(fault.victim), SIGNALS[fault.kind])
    return ""


def undo(fault: Fault, scene: Scene) -> str:
    """What whoever starts all again has to do before, or does to make it worse; says what, as above."""
    if fault.kind == "cut":
        assert scene.lab is not None
        scene.lab.mend(fault.victim)
    elif fault.kind == "disk_full":
        assert scene.disk is not None
        scene.disk.empty()
    elif fault.kind == "torn":
        return tear(scene.workdir, random.Random(fault.chance))
    return ""


def help_to_end(fault: Fault, team: Team) -> None:
    """What becomes of one that stands still when the others have left: it goes on, or is killed."""
    if fault.kind == "thaw":
        send(team.pids().get(fault.victim), signal.SIGCONT)
    elif fault.kind == "freeze" and fault.way == "hosts":
        team.kill()


def tear(workdir: Path, source: random.Random) -> str:
    """Damages a file of the newest checkpoint."""
    checkpoints = [path for path in workdir.glob("checkpoints/*") if path.name.isdecimal()]
    if not checkpoints:
        return "no checkpoint yet"
    newest = max(checkpoints, key=lambda path: int(path.name))
    path = source.choice(sorted(path for path in newest.rglob("*") if path.is_file() and path.stat().st_size))
    how, content = source.choice(DAMAGES), bytearray(path.read_bytes())
    place = source.randrange(len(content))
    if how == "deleted":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(content[:place])
    else:
        page = content[place : place + 4096]
        content[place : place + 4096] = bytes([page[0] ^ 1, *page[1:]] if how == "one bit flipped" else len(page))
        path.write_bytes(content)
    return f"{path.relative_to(newest.parent)} {how}"


def disk_folder(fault: Fault, workdir: Path) -> Path:
    """What lies on the small disk: the whole run, or its checkpoints."""
    return workdir / "checkpoints" if fault.chance < 0.5 else workdir


def send(pid: int | None, number: signal.Signals) -> None:
    """To a process, if there still is one."""
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
