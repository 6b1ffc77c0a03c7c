"""Real processes train one run: the bits of virtual workers, one folder, one end."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jaxtern.training.checkpoints import Checkpoints
from jaxtern.training.digests import digest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 300  # seconds, on a machine that does other things too
SMALL = {"num_steps": 6, "checkpoint_every": 3, "evaluate_every": 3, "log_every": 1, "num_workers": 4, "batch_size": 16}
LAYOUTS = {  # processes, devices of each, fields
    "a worker a process": (4, 1, {}),
    "delayed": (2, 1, {"delayed": True}),
    "hosts of two devices": (2, 2, {"num_workers": 2, "exchange": "scatter"}),
}


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen]]:
    """Starts a run in `<tmp_path>/<name>`, in so many processes of so many devices; SIGTERM ends what is left."""
    started: list[subprocess.Popen] = []

    def start(name: str, processes: int = 1, devices: int = 1, **fields: object) -> subprocess.Popen:
        config = [f"--config.{field}={value}" for field, value in (SMALL | fields).items()]
        launch = [sys.executable, "-m", "jaxtern.launch", "-n", str(processes), "--"]
        alone = [sys.executable, "-m", "jaxtern.train"]
        own = {"PYTHONPATH": str(ROOT), "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
        command = [*(launch if processes > 1 else alone), *config, f"--workdir={tmp_path / name}"]
        process = subprocess.Popen(
            command, env=os.environ | own, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.terminate()
        process.communicate(timeout=PATIENCE)


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def digests(workdir: Path) -> dict[int, str]:
    """Of all that each checkpoint holds."""
    checkpoints = Checkpoints(workdir)
    return {step: digest(checkpoints.restore_as_saved(step)) for step in checkpoints.steps()}


def records(workdir: Path, *names: str) -> list[dict]:
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [{name: line[name] for name in ("step", *names) if name in line} for line in lines]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_processes_train_to_the_bits_of_one_process(train: Callable, tmp_path: Path, layout: str):
    processes, devices, fields = LAYOUTS[layout]
    status, out, err = finish(train("many", processes, devices, **fields))
    assert status == 0, out + err
    same = {"devices_per_worker": 2, "num_devices": 4} if devices > 1 else {}
    status, _, err = finish(train("one", 1, 2 * devices, **fields | same))
    assert status == 0, err
    assert digests(tmp_path / "many") == digests(tmp_path / "one")
    exact = "accuracy", "test/precision_at_1", "test/recall_at_5", "test/num_examples"
    assert records(tmp_path / "many", *exact) == records(tmp_path / "one", *exact)
    for name in ("loss", "test/loss"):  # added in another order
        many, one = ([line.get(name, 0) for line in records(tmp_path / run, name)] for run in ("many", "one"))
        assert many == pytest.approx(one, rel=1e-6)
    assert (tmp_path / "many" / "curves.png").is_file()


def test_signal_to_one_process_stops_all_at_one_step_and_the_run_goes_on_in_another(train: Callable, tmp_path: Path):
    fields = {"num_steps": 300, "checkpoint_every": 1000, "evaluate_every": 0, "num_workers": 2}
    launcher = train("run", 2, **fields)
    lines: list[str] = []
    for line in launcher.stdout:
        lines.append(line)
        if "step 10:" in line:
            break
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    reading = threading.Thread(target=lambda: lines.extend(launcher.stdout))
    reading.start()
    os.kill(int(children[1]), signal.SIGTERM)
    status = launcher.wait(PATIENCE)
    reading.join()
    assert status == 128 + signal.SIGTERM, lines
    stops = [line.split("at step ") for line in lines if "stopped by" in line]
    assert sorted(who for who, _ in stops) == ["[0] stopped by a signal to another process ", "[1] stopped by SIGTERM "]
    assert len({rest for _, rest in stops}) == 1
    step = int(stops[0][1].split(";")[0])
    assert 10 < step < 300
    assert list(digests(tmp_path / "run")) == [0, step]
    assert finish(train("run", 1, **fields))[0] == 0  # in one process, with the same workers
    assert finish(train("straight", 1, **fields))[0] == 0
    assert digests(tmp_path / "run")[300] == digests(tmp_path / "straight")[300]
    assert records(tmp_path / "run", "loss") == records(tmp_path / "straight", "loss")


def test_workers_that_do_not_divide_among_processes_are_refused(train: Callable):
    status, _, err = finish(train("run", 2, num_workers=3, batch_size=15))
    assert status == 2
    assert "error: num_workers=3: must be a multiple of the 2 processes\n" in err


def test_processes_with_another_config_are_refused_with_the_difference(train: Callable, tmp_path: Path, free_port: int):
    where = {"JAXTERN_COORDINATOR": f"127.0.0.1:{free_port}", "JAXTERN_NUM_PROCESSES": "2"}
    environment = dict(os.environ)
    processes = []
    for number in range(2):
        os.environ |= where | {"JAXTERN_PROCESS_ID": str(number)}
        processes.append(train("run", learning_rate=0.01 * (number + 1)))
    os.environ.clear()
    os.environ |= environment
    for process in processes:
        status, _, err = finish(process)
        (line,) = (line for line in err.splitlines() if line.startswith("error:"))
        assert status == 2
        assert "do not train the same: config learning_rate is 0.02 there and 0.01 here" in line
    assert not (tmp_path / "run").exists()
