"""The launcher, with stand-ins for training."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxtern.hosts.processes import launch

Open = Callable[..., subprocess.Popen]
EndOf = Callable[[subprocess.Popen], tuple[int, list[str], list[str]]]
ROOT = Path(__file__).resolve().parents[2]
LONG = 120  # seconds that no test takes
# Says its number; at a signal saves for a while, longer where its process id is greater, then leaves like the trainer.
SAVING = """
import os, signal, sys, time
process, folder = int(os.environ["JAXTERN_PROCESS_ID"]), sys.argv[1]
def save(number, frame):
    signal.signal(number, signal.SIG_DFL)  # a second one acts at once
    time.sleep(.3 + process)
    open(f"{folder}/saved{process}", "w").close()
    sys.exit(128 + number)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, save)
print("pid", os.getpid(), flush=True)
time.sleep(120)
"""
# The same with a child that would outlive it, deaf to signals as workers that decode are.
WITH_CHILD = """
import os, signal, subprocess, sys, time
child = subprocess.Popen(["sh", "-c", "trap '' INT TERM; while :; do sleep 1; done"])
print("pid", child.pid, flush=True)
print("pid", os.getpid(), flush=True)
time.sleep(120)
"""


def _shell(script: str, num_processes: int, **options: object) -> int:
    return launch(["sh", "-c", script], num_processes, **options)


def _pids(process: subprocess.Popen, count: int) -> list[int]:
    """Of the processes that have said theirs."""
    assert process.stdout is not None
    return [int(process.stdout.readline().split()[-1]) for _ in range(count)]


def _wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 60
    while left := [pid for pid in pids if _lives(pid)]:
        assert time.monotonic() < deadline, f"{left} live on"
        time.sleep(0.05)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_launch_tells_each_who_it_is_and_prefixes_its_lines(capfd: pytest.CaptureFixture):
    script = "echo $JAXTERN_PROCESS_ID of $JAXTERN_NUM_PROCESSES at $JAXTERN_COORDINATOR; echo oops >&2; printf end"
    assert _shell(script, 3) == 0
    out, err = capfd.readouterr()
    (address,) = set(re.findall(r"127\.0\.0\.1:\d+", out))
    lines = [line for i in range(3) for line in (f"[{i}] {i} of 3 at {address}", f"[{i}] end")]
    assert sorted(out.splitlines()) == sorted(lines)
    assert sorted(err.splitlines()) == [f"[{i}] oops" for i in range(3)]


def test_launch_ends_all_with_the_status_of_the_first_to_fail(capfd: pytest.CaptureFixture):
    start = time.monotonic()
    assert _shell(f"[ $JAXTERN_PROCESS_ID = 1 ] && exit 7; exec sleep {LONG}", 3) == 7
    assert time.monotonic() - start < LONG / 2
    assert capfd.readouterr().err == "launch: process 1 ended with status 7; ending the others\n"


def test_launch_gives_a_signal_that_killed_as_shells_do():
    assert _shell("kill -KILL $$", 1) == 128 + signal.SIGKILL


def test_launch_waits_for_all_where_the_first_succeeds(tmp_path: Path):
    assert _shell(f"[ $JAXTERN_PROCESS_ID = 0 ] || {{ sleep 1; echo > {tmp_path}/done; }}", 2, grace_seconds=0.0) == 0
    assert (tmp_path / "done").exists()


def test_launch_kills_what_does_not_end_in_time():
    start = time.monotonic()
    script = f"trap '' TERM; [ $JAXTERN_PROCESS_ID = 1 ] && {{ sleep 1; exit 7; }}; sleep {LONG}; sleep {LONG}"
    assert _shell(script, 2, grace_seconds=0.5) == 7
    assert time.monotonic() - start < LONG / 2


def test_launch_starts_all_again_on_another_port_as_often_as_it_may(
    tmp_path: Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RUNS", str(tmp_path / "runs"))
    fails_twice = "echo $JAXTERN_COORDINATOR >> $RUNS; [ $(wc -l < $RUNS) -gt 2 ] || exit 1"
    assert _shell(fails_twice, 1, max_restarts=1) == 1
    assert _shell(fails_twice, 1, max_restarts=1) == 0
    addresses = (tmp_path / "runs").read_text().split()
    assert len(addresses) == 3
    assert "launch: starting all again, 1 of 1 times" in capfd.readouterr().err


@pytest.mark.parametrize("status", [2, 127])
def test_launch_does_not_repeat_what_was_asked_wrongly(tmp_path: Path, status: int):
    assert _shell(f"echo >> {tmp_path}/runs; exit {status}", 1, max_restarts=3) == status
    assert (tmp_path / "runs").read_text() == "\n"


def test_launch_of_a_missing_program_fails_like_a_shell(capfd: pytest.CaptureFixture):
    assert launch(["no-such-program"], 1, max_restarts=1) == 127
    assert "no-such-program: not found" in capfd.readouterr().err


def test_launch_leaves_a_signal_alone_that_is_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert launch([sys.executable, "-c", "import os, signal; os.kill(os.getppid(), signal.SIGINT)"], 1) == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.few("15")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_launch_passes_signals_on_and_waits_for_all_to_save(
    open_script: Open, end_of: EndOf, tmp_path: Path, number: signal.Signals
):
    options = json.dumps({"num_processes": 3, "max_restarts": 5})
    process = open_script("launcher.py", options, sys.executable, "-c", SAVING, tmp_path)
    pids = _pids(process, 3)
    process.send_signal(number)
    status, _, err = end_of(process)
    assert status == 128 + number, err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved0", "saved1", "saved2"]
    _wait_until_gone(pids)


def test_launch_passes_the_second_signal_on_too(open_script: Open, end_of: EndOf, tmp_path: Path):
    slow = SAVING.replace(".3 + process", "100")
    process = open_script("launcher.py", '{"num_processes": 2}', sys.executable, "-c", slow, tmp_path)
    pids = _pids(process, 2)
    process.send_signal(signal.SIGTERM)
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    assert end_of(process)[0] == 128 + signal.SIGTERM
    assert not list(tmp_path.iterdir())
    _wait_until_gone(pids)


def test_launch_that_is_killed_leaves_no_orphan(open_script: Open, tmp_path: Path):
    process = open_script("launcher.py", '{"num_processes": 3}', sys.executable, "-c", SAVING, tmp_path)
    pids = _pids(process, 3)
    assert all(map(_lives, pids))
    process.kill()
    _wait_until_gone(pids)
    assert not list(tmp_path.iterdir())


def test_launch_ends_what_its_processes_have_started(open_script: Open, end_of: EndOf):
    options = json.dumps({"num_processes": 1, "grace_seconds": 5})
    process = open_script("launcher.py", options, sys.executable, "-c", WITH_CHILD)
    pids = _pids(process, 2)
    process.send_signal(signal.SIGTERM)
    assert end_of(process)[0] == 128 + signal.SIGTERM
    _wait_until_gone(pids)


def test_launch_ends_all_where_nobody_reads_what_they_print(open_script: Open, tmp_path: Path):
    script = f"echo $$ >> {tmp_path}/pids; while :; do echo line; sleep .1; done"
    process = open_script("launcher.py", '{"num_processes": 2}', "sh", "-c", script)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=60) != 0
    _wait_until_gone([int(pid) for pid in (tmp_path / "pids").read_text().split()])
    process.stdout = None


@pytest.mark.parametrize("number", [None, signal.SIGINT])
def test_launch_has_all_save_where_nobody_reads_what_they_print(
    open_script: Open, tmp_path: Path, number: signal.Signals | None
):
    """As by Ctrl-C, of which the reader of a pipe dies, too."""
    talking = SAVING.replace("time.sleep(120)", "while True: print('line', flush=True); time.sleep(.1)")
    command = sys.executable, "-c", talking, tmp_path
    process = open_script("launcher.py", '{"num_processes": 2}', *command, PYTHONUNBUFFERED="")
    assert process.stdout is not None
    told = (line for line in process.stdout if "pid" in line)
    pids = [int(next(told).split()[-1]) for _ in range(2)]
    process.stdout.close()
    if number is not None:
        process.send_signal(number)
    assert process.wait(timeout=60) == 128 + (number or signal.SIGTERM)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved0", "saved1"]
    _wait_until_gone(pids)
    process.stdout = None


@pytest.mark.few("arguments[013]-*")
@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ([], 2, "error: -n: must be given"),
        (
            ["-n", "0", "--", "--config=digits"],
            2,
            "error: flag --num_processes=0: 0 is not an integer in the range [1, 4096]",
        ),
        (
            ["-n", "2", "--max_restarts=2", "--", "--config.colour=red"],
            2,
            "] error: Unknown command line flag 'config.colour'",
        ),
        (["-n", "2", "--config=digits"], 2, "Unknown command line flag 'config'; flags of the trainer come after --"),
    ],
)
def test_launch_door_tells_usage_errors_once_and_does_not_restart(arguments: list[str], status: int, said: str):
    command = [sys.executable, "-m", "jaxtern.launch", *arguments]
    ended = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False
    )
    assert ended.returncode == status
    assert said in ended.stderr
    assert "starting all again" not in ended.stderr
    assert "Traceback" not in ended.stderr
