"""A real SLURM on this machine, within a sandbox: a controller and some nodes, whose GPUs are mere numbers.

    with Slurm(folder, nodes=2) as slurm:
        job = slurm.submit("sleep 1")
        slurm.wait(job, seconds=60)

Needs root, and slurmctld, slurmd, SLURM's commands and munge, such as those of Debian.
"""

import contextlib
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.netlab import sandbox
from benchmarks.netlab.sandbox import Sandbox

_TOOLS = "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "munged"
_CONFIG = """
ClusterName=lab
SlurmctldHost=n1(127.0.0.1)
SlurmUser=root
AuthInfo=socket=/shared/munge.socket
StateSaveLocation=/shared/state
SlurmdSpoolDir=/shared/spool.%n
SlurmctldPidFile=/shared/slurmctld.pid
SlurmdPidFile=/shared/slurmd.%n.pid
SlurmctldLogFile=/shared/slurmctld.log
SlurmdLogFile=/shared/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
KillWait=30
SchedulerParameters=sched_interval=1,batch_sched_delay=0
PartitionName=all Nodes=ALL Default=YES State=UP
"""
_END_SECONDS = 0.2


def why_not() -> str | None:
    """What is missing for a SLURM on this machine, or None."""
    missing = [tool for tool in _TOOLS if not shutil.which(tool)]
    return f"needs {', '.join(missing)} of SLURM and munge" if missing else sandbox.why_not()


class Slurm:
    """A SLURM of nodes n1, n2, ... with one CPU and one GPU each; `/shared` is `folder/shared`.

    Args:
      folder: empty.
      nodes: how many.
      environment: of all processes; None for this one's, without what another SLURM has set.
    """

    def __init__(self, folder: Path, nodes: int, environment: Mapping[str, str] | None = None):
        inherited = os.environ if environment is None else environment
        own = {name: value for name, value in inherited.items() if not name.startswith(("SLURM_", "JAXTERN_"))}
        hosts = {f"10.0.0.{each}": f"n{each}" for each in range(1, nodes + 1)}
        self.sandbox = Sandbox(folder, hosts, own | {"SLURM_CONF": "/shared/slurm.conf"})
        self._nodes = list(hosts.values())

    def __enter__(self) -> "Slurm":
        with contextlib.ExitStack() as stack:
            shared = stack.enter_context(self.sandbox).shared
            nodes = [
                f"NodeName={name} NodeHostname=n1 NodeAddr={address} Port={18000 + index} CPUs=1 Gres=gpu:1\n"
                for index, (address, name) in enumerate(self.sandbox.hosts.items())
            ]
            (shared / "slurm.conf").write_text(_CONFIG + "".join(nodes))
            (shared / "gres.conf").write_text("Name=gpu File=/dev/null\n")
            (shared / "munge.key").write_bytes(os.urandom(1024))
            (shared / "munge.key").chmod(0o600)
            names = " ".join(self._nodes)
            self.sandbox.run(f"""
                mkdir state && umask 022 && chown root . && chmod 755 .
                exec 3>&1 >/shared/daemons.log 2>&1  # these would hold the pipe open
                munged --force --key-file=munge.key --socket=/shared/munge.socket --pid-file=/shared/munged.pid \\
                  --log-file=/shared/munged.log --seed-file=/shared/munged.seed 3>&-
                slurmctld -c 3>&-
                for name in {names}; do slurmd -N $name 3>&-; done
                for second in $(seq 30); do
                  [ "$(sinfo --noheader --Node --states=idle | wc -l)" = {len(self._nodes)} ] && exit 0
                  sleep 1
                done
                (sinfo; tail /shared/*.log) >&3 2>&1; exit 1
            """)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def submit(self, script: str, name: str = "job.sh") -> int:
        """Submits a batch script, which runs in `/shared` and prints to `/shared/JOB.log`; the job's number."""
        (self.sandbox.shared / name).write_text(script)
        return int(self.sandbox.run(f"sbatch --parsable --output=%j.log {name}"))

    def log(self, job: int) -> str:
        """What a job has printed."""
        path = self.sandbox.shared / f"{job}.log"
        return path.read_text() if path.exists() else ""

    def facts(self, job: int) -> dict[str, str]:
        """What the controller says of a job, by name."""
        shown = self.sandbox.run(f"scontrol show job {job}")
        return dict(re.findall(r"(\S+?)=(\S*)", shown))

    def wait(self, job: int, seconds: float) -> dict[str, str]:
        """Waits for a job's end; what the controller then says of it.

        Raises:
          TimeoutError: if it takes longer.
        """
        deadline = time.monotonic() + seconds
        while (facts := self.facts(job))["JobState"] in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"job {job} is {facts['JobState']} after {seconds:g} s:\n{self.log(job)}")
            time.sleep(_END_SECONDS)
        return facts

    def tasks(self) -> dict[int, int]:
        """This machine's numbers of the processes that `srun` has started, by rank."""
        return dict(self._find_tasks())

    def _find_tasks(self) -> Iterator[tuple[int, int]]:
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                variables = (folder / "environ").read_bytes()
                rank = re.search(rb"(?:^|\0)SLURM_PROCID=(\d+)", variables)
                is_own = os.readlink(folder / "root") == str(self.sandbox.folder / "root")  # noqa: PTH115
                is_first = b"slurmstepd" in Path(f"/proc/{_parent_of(folder)}/cmdline").read_bytes()
                if rank and is_own and is_first:
                    yield int(rank[1]), int(folder.name)

    def kill(self, rank: int, number: signal.Signals = signal.SIGKILL) -> bool:
        """Sends a signal to a task; whether there was one of that rank."""
        process = self.tasks().get(rank)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)
                return True
        return False


def _parent_of(folder: Path) -> int:
    return int(re.findall(r"^PPid:\s*(\d+)", (folder / "status").read_text(), re.MULTILINE)[0])
