"""Processes that leave in one line when one of them fails, dies, freezes or is cut off."""

import asyncio
import contextlib
import functools
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxtern.hosts import watch
from jaxtern.hosts.heartbeats import AwakeClock, Hub, Spoke, Verdict
from jaxtern.hosts.json_lines import PROTOCOL

Open = Callable[..., subprocess.Popen]
EndOf = Callable[[subprocess.Popen], tuple[int, list[str], list[str]]]
HOST = socket.gethostname()
SILENT = "has been silent for 3 s: it is frozen, or cut off from the network"
SOON = 30  # seconds, also on a busy machine; JAX itself would wait minutes
BEAT = 0.5  # seconds between two words, where 3 s of silence are too long: the last may be so old
KILLED = "ended without a word: it was killed, or its host went down"


@pytest.fixture
def start(open_script: Open, free_port: int) -> Callable[..., list[subprocess.Popen]]:
    """Processes that add numbers, and have begun to; told who they are by flags, or by the variables of SLURM."""

    def start(count: int, *options: str, slurm: bool = False) -> list[subprocess.Popen]:
        started = []
        for process in range(count):
            where = f"--coordinator=127.0.0.1:{free_port}", f"--num_processes={count}", f"--process_id={process}"
            step = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": str(count)}
            step |= {
                "SLURM_PROCID": str(process),
                "SLURM_LOCALID": str(process),
                "JAX_COORDINATOR_PORT": str(free_port),
            }
            own = options if slurm else (*where, *options)
            started.append(open_script("watch_process.py", *own, **(step if slurm else {})))
        for process in started:
            assert process.stdout is not None
            while "adds" not in (line := process.stdout.readline()):
                assert line, process.communicate()
        return started

    return start


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_killed_process_is_named_at_once_by_all_others(start: Callable, end_of: EndOf, victim: int):
    processes = start(3)
    since = time.monotonic()
    processes.pop(victim).kill()
    for process in processes:
        status, _, err = end_of(process)
        assert (status, err[-1]) == (1, f"error: process {victim} (host {HOST}) {KILLED}")
        assert len(err) == 1 or victim == 0  # whose end JAX tells too, in many lines
        assert not any("Traceback" in line for line in err)
    assert time.monotonic() - since < SOON


def test_a_killed_process_is_named_where_jax_found_the_cluster(start: Callable, end_of: EndOf):
    first, second = start(2, slurm=True)
    second.kill()
    status, _, err = end_of(first)
    assert (status, err) == (1, [f"error: process 1 (host {HOST}) {KILLED}"])


@pytest.mark.parametrize("victim", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_frozen_process_is_named_in_time_and_leaves_when_it_thaws(start: Callable, end_of: EndOf, victim: int):
    processes = start(3, "--peer_timeout=3")
    frozen = processes.pop(victim)
    frozen.send_signal(signal.SIGSTOP)
    since = time.monotonic()
    for process in processes:
        status, _, err = end_of(process)
        assert (status, err) == (1, [f"error: process {victim} (host {HOST}) {SILENT}"])
    assert 3 - BEAT <= time.monotonic() - since < SOON
    frozen.send_signal(signal.SIGCONT)
    status, _, err = end_of(frozen)
    assert status != 0
    assert f"error: process {victim} (host {HOST}), this one, was silent for so long that the others have left" in err


@pytest.mark.slow
def test_processes_that_stood_still_together_go_on(start: Callable, end_of: EndOf):
    processes = start(2, "--peer_timeout=1", "--steps=100")
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    time.sleep(2.5)
    for process in processes:
        process.send_signal(signal.SIGCONT)
    assert [end_of(process)[0] for process in processes] == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("who", "how", "status", "reason"),
    [
        (0, "usage", 2, "workdir='x': holds a run with another config"),
        pytest.param(2, "usage", 2, "workdir='x': holds a run with another config", marks=pytest.mark.slow),
        (1, "exception", 1, "RuntimeError: a bug"),
        pytest.param(0, "exit", 7, "it ended with status 7", marks=pytest.mark.slow),
        pytest.param(1, "words", 1, "a reason in words", marks=pytest.mark.slow),
    ],
)
def test_a_failure_of_one_is_told_by_all_others(
    start: Callable, end_of: EndOf, who: int, how: str, status: int, reason: str
):
    for process, started in enumerate(start(3, f"--who={who}", f"--how={how}")):
        ended, _, err = end_of(started)
        assert ended == status
        if process != who:
            assert err == [f"error: process {who} (host {HOST}) failed: {reason}"]
        elif how == "exception":
            assert err[0].startswith("Traceback")
            assert err[-1] == "RuntimeError: a bug"
        else:
            assert err == {"usage": [f"error: {reason}"], "words": [reason], "exit": []}[how]


@pytest.mark.parametrize("host", [None, "::", "0.0.0.0", "127.0.0.1"])
def test_watch_that_listens_at_all_addresses_is_reached_by_ipv4(host: str | None):
    with watch.listen(host) as listener:
        socket.create_connection(("127.0.0.1", listener.getsockname()[1]), timeout=5).close()


@pytest.mark.slow
@pytest.mark.parametrize("who", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_processes_may_end_one_after_the_other(start: Callable, end_of: EndOf, who: int):
    for process in start(2, "--peer_timeout=1", "--steps=20", f"--who={who}", "--how=late"):
        status, out, err = end_of(process)
        assert (status, out[-1], err) == (0, "done", [])


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_process_killed_after_another_has_ended_is_named(start: Callable, end_of: EndOf, victim: int):
    processes = start(2, "--steps=20", f"--who={victim}", "--how=late")
    killed = processes.pop(victim)
    assert processes[0].stdout.readline() == "done\n"
    time.sleep(0.5)  # it waits for the other at its exit
    killed.kill()
    status, _, err = end_of(processes[0])
    assert (status, err[-1]) == (1, f"error: process {victim} (host {HOST}) {KILLED}")


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.01, pytest.param(0.05, marks=pytest.mark.slow)])
def test_a_process_killed_while_all_end_is_named(start: Callable, end_of: EndOf, seconds: float):
    """JAX itself would abort the other, if this one is lost before it has left JAX's cluster."""
    killed, left = start(2, "--steps=20")
    assert killed.stdout.readline() == "done\n"
    time.sleep(seconds)
    killed.kill()
    status, _, err = end_of(left)
    named = f"error: process 0 (host {HOST}) {KILLED}"
    assert (status, named in err) in ((1, True), (0, False))
    assert not any("stack trace" in line for line in err)


@pytest.mark.slow
def test_a_process_that_thaws_at_its_end_fails_as_the_others_do(start: Callable, end_of: EndOf):
    frozen, left = start(2, "--steps=20", "--peer_timeout=1")
    assert frozen.stdout.readline() == "done\n"
    frozen.send_signal(signal.SIGSTOP)
    assert end_of(left)[0] == 1
    frozen.send_signal(signal.SIGCONT)
    status, _, err = end_of(frozen)
    assert (status, err[-1].partition(" (host")[0]) in ((1, "error: process 0"), (1, "error: process 1"))


@pytest.mark.slow
def test_processes_that_are_stopped_together_leave_without_alarm(start: Callable, end_of: EndOf):
    for process in start(2, "--steps=20", "--how=stop"):
        status, out, err = end_of(process)
        assert (status, out[-1], err) == (128 + signal.SIGTERM, "done", [])


@pytest.mark.slow
def test_a_starved_watch_raises_no_alarm(start: Callable, end_of: EndOf):
    for process in start(2, "--peer_timeout=8", "--steps=20", "--who=0", "--how=starve"):
        status, out, err = end_of(process)
        assert (status, out[-1], err) == (0, "done", [])


@pytest.mark.slow
def test_what_is_to_be_done_before_leaving_is_done(start: Callable, end_of: EndOf):
    first, second = start(2, "--how=hook")
    second.kill()
    status, out, err = end_of(first)
    assert (status, out[-1], len(err)) == (1, "hook ran", 1)


@pytest.mark.slow
def test_the_launcher_names_the_process_that_failed_first(open_script: Open, end_of: EndOf):
    script = [sys.executable, str(Path(__file__).with_name("watch_process.py")), "--who=0", "--how=usage"]
    status, out, err = end_of(open_script("launcher.py", json.dumps({"num_processes": 2}), *script))
    reason = "workdir='x': holds a run with another config"
    assert status == 2
    assert sorted(out) == ["[0] adds", "[1] adds"]  # and nothing of gloo
    assert f"[0] error: {reason}" in err
    assert f"[1] error: process 0 (host {HOST}) failed: {reason}" in err
    assert "launch: process 0 ended with status 2" in "\n".join(err)


def test_time_in_which_a_process_stood_still_hardly_counts():
    times = iter([0.0, 1.0, 2.5, 100.0, 101.0])
    clock, seen = AwakeClock(1.0, lambda: next(times)), []
    for _ in range(4):
        clock.tick()
        seen.append(clock.now)
    assert seen == [1.0, 2.5, 4.5, 5.5]


class Pair:
    """Process 0's side and that of process 1, in this process; what they judge."""

    def __init__(self, timeout: float = 60.0, num_processes: int = 2):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.judged: dict[int, Verdict] = {}
        self.hub = Hub(self.listener, "token", num_processes, timeout, "a")
        self.timeout, self.news = timeout, asyncio.Event()

    def _note(self, process: int, verdict: Verdict) -> None:
        self.judged[process] = verdict
        self.news.set()

    def spoke(self, process: int = 1, token: str = "token") -> Spoke:
        connection = socket.create_connection(("127.0.0.1", self.port))
        return Spoke(connection, token, process, self.timeout, "b", "a")

    async def run(self, meanwhile: Callable, *spokes: Spoke) -> None:
        """Both sides, until what happens meanwhile is over."""
        sides = enumerate((self.hub, *spokes))
        tasks = [asyncio.ensure_future(side.run(functools.partial(self._note, number))) for number, side in sides]
        try:
            await asyncio.wait_for(meanwhile(), 30)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _answer_to(port: int, line: bytes) -> bytes:
    """All that a process hears that says this."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.closing(writer), contextlib.suppress(ConnectionResetError):
        writer.write(line)
        return await reader.read()
    return b""


def test_strangers_are_turned_away_without_a_word():
    def hello(**said: object) -> bytes:
        return (
            json.dumps({"jaxtern": PROTOCOL, "token": "token", "process_id": 1, "host": "c", **said}).encode() + b"\n"
        )

    async def strange() -> None:
        noise = [
            b"GET / HTTP/1.1\r\n\r\n",
            b"x" * 200_000,
            b'{"jaxtern": 2}\n',
            hello(token="other"),
            hello(token=["token"]),
            hello(process_id=0),
            hello(process_id=2),
            hello(process_id=True),
            hello(),  # is there already
        ]
        await asyncio.sleep(0.2)
        for line in noise:
            assert await _answer_to(pair.port, line) == b"", line
        assert not pair.judged

    pair = Pair()
    asyncio.run(pair.run(strange, pair.spoke()))


def test_a_process_that_never_comes_to_the_watch_is_lost():
    async def wait() -> None:
        await pair.news.wait()
        assert pair.judged[0] == Verdict(1, 1, "process 1 has been silent for 0.5 s: " + SILENT.partition(": ")[2])

    pair = Pair(timeout=0.5)
    asyncio.run(pair.run(wait))


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_a_process_that_is_cut_off_after_its_goodbye_is_lost(lost: int, monkeypatch: pytest.MonkeyPatch):
    async def part() -> None:
        await asyncio.sleep(0.2)
        pair.hub.tell_end("bye")
        spoke.tell_end("bye")
        await asyncio.sleep(1)
        assert not pair.judged  # they live on, until JAX has seen all
        monkeypatch.setattr((pair.hub, spoke)[lost], "_send", lambda **_: None)
        await pair.news.wait()
        assert SILENT.partition(": ")[2] in pair.judged[1 - lost].reason
        assert pair.judged[1 - lost].process == lost

    pair = Pair(timeout=0.5)
    spoke = pair.spoke()
    asyncio.run(pair.run(part, spoke))


def test_the_first_cause_that_is_told_holds():
    async def fail() -> None:
        await asyncio.sleep(0.2)
        first.tell_failure("a cause", 3)
        while not first.failure_confirmed():
            await asyncio.sleep(0.01)
        second.tell_failure("another", 4)
        while not second.failure_confirmed():
            await asyncio.sleep(0.01)

    pair = Pair(num_processes=3)
    first, second = pair.spoke(1), pair.spoke(2)
    asyncio.run(pair.run(fail, first, second))
    assert pair.judged[0] == pair.judged[2] == Verdict(1, 3, "process 1 (host b) failed: a cause")
