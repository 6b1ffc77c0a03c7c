"""Real processes train one run: the bits of virtual workers, one folder, one end."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

PATIENCE = 300  # seconds, on a machine that does other things too
LAYOUTS = {  # processes, devices of each, fields
    "a worker a process": (4, 1, {}),
    "hosts of two devices": (2, 2, {"num_workers": 2, "exchange": "scatter"}),
    "local steps": (2, 1, {"local.steps": 2, "local.delay": 1}),
}


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def records(workdir: Path, *names: str) -> list[dict]:
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [{name: line[name] for name in ("step", *names) if name in line} for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_processes_train_to_the_bits_of_one_process(train: Callable, digests: Callable, tmp_path: Path, layout: str):
    processes, devices, fields = LAYOUTS[layout]
    threads = {"NPROC": "4"}  # of XLA, among which it splits sums; otherwise more devices have more of them
    status, out, err = finish(train("many", processes, devices, environment=threads, **fields))
    assert status == 0, out + err
    assert f"process 0 reports, this is process 1 of {processes}" in err
    exchanged = "weight changes every 2 steps by ternary" if layout == "local steps" else "gradients by ternary"
    assert exchanged in out
    same = {"devices_per_worker": 2, "num_devices": 4} if devices > 1 else {}
    status, _, err = finish(train("one", 1, 2 * devices, environment=threads, **fields | same))
    assert status == 0, err
    assert digests(tmp_path / "many") == digests(tmp_path / "one")
    exact = "accuracy", "test/precision_at_1", "test/recall_at_5", "test/num_examples"
    assert records(tmp_path / "many", *exact) == records(tmp_path / "one", *exact)
    for name in ("loss", "test/loss"):  # added in another order
        many, one = ([line.get(name, 0) for line in records(tmp_path / run, name)] for run in ("many", "one"))
        assert many == pytest.approx(one, rel=1e-6)
    assert (tmp_path / "many" / "curves.png").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("local", [{}, {"local.steps": 4, "local.fragments": 2}], ids=["every step", "local steps"])
def test_signal_to_one_process_stops_all_at_one_step_and_the_run_goes_on_in_another(
    train: Callable, digests: Callable, tmp_path: Path, local: dict[str, int]
):
    fields = {"num_steps": 160, "checkpoint_every": 1000, "evaluate_every": 0, "num_workers": 2} | local
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
    assert 10 < step < 160
    assert list(digests(tmp_path / "run")) == [0, step]
    assert finish(train("run", 1, **fields))[0] == 0  # in one process, with the same workers
    assert finish(train("straight", 1, **fields))[0] == 0
    assert digests(tmp_path / "run")[160] == digests(tmp_path / "straight")[160]
    losses, same = records(tmp_path / "run", "loss"), records(tmp_path / "straight", "loss")
    # of local steps each process means its own workers' first
    assert losses == ([pytest.approx(each, rel=1e-6) for each in same] if local else same)


@pytest.mark.slow
def test_workers_that_do_not_divide_among_processes_are_refused(train: Callable):
    status, _, err = finish(train("run", 2, num_workers=3, batch_size=15))
    assert status == 2
    assert "error: run.num_workers=3: must be a multiple of the 2 processes\n" in err
