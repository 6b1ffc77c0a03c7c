"""The laboratory: honest rates, counters that count, hosts on their own, and nothing left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.netlab

ROOT = Path(__file__).parents[2]
TRANSFER = Path(__file__).parent / "transfer.py"
ENVIRONMENT = {"PYTHONPATH": str(ROOT)}
HEADERS = 1514 / 1448  # of a full packet: what a token bucket charges for what TCP carries

PSUM = """
import os
import jax
host, hosts = int(os.environ["NETLAB_HOST"]), int(os.environ["NETLAB_HOSTS"])
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.config.update("jax_num_cpu_devices", 1)
jax.distributed.initialize(os.environ["NETLAB_COORDINATOR"], hosts, host)
mesh = jax.make_mesh((hosts,), ("data",))
spec = jax.sharding.PartitionSpec("data")
add = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "data"), mesh=mesh, in_specs=spec, out_specs=jax.P()))
own = jax.make_array_from_process_local_data(jax.NamedSharding(mesh, spec), jax.numpy.full(1, host + 1.0))
print("sum", float(add(own)[0]))
"""

ROUND_TRIP = """
import contextlib, socket, sys, time
seconds = []
for attempt in range(10):
    start = time.perf_counter()
    with contextlib.suppress(ConnectionRefusedError):  # after one round trip
        socket.create_connection((sys.argv[1], 9), timeout=2)
    seconds.append(time.perf_counter() - start)
print(min(seconds))
"""

REACH = """
import errno, socket, sys
with socket.socket() as listening:
    listening.settimeout(2)
    try:
        listening.connect((sys.argv[1], 9))
    except OSError as error:
        print(errno.errorcode.get(error.errno, error))
"""


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def leftovers(netlab: ModuleType, pid: int) -> list[str]:
    """Names of namespaces and files, and processes, of laboratories that this process owned."""
    folders = [Path("/run/netns"), Path("/etc/netns")]
    names = [path.name for folder in folders if folder.is_dir() for path in folder.iterdir()]
    return [name for name in names if name.startswith(f"{netlab.PREFIX}{pid}-")]


def is_running(marker: str) -> bool:
    """Whether a process with this word on its command line lives."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False


def until(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "took too long"
        time.sleep(0.02)


def transfer(lab, size: int, sender: int) -> tuple[float, list[list[int]]]:
    """Seconds, and what the interface of each host counted."""
    results = lab.run([[sys.executable, str(TRANSFER), str(size), str(sender)]] * 2, timeout=30, env=ENVIRONMENT)
    assert [result.returncode for result in results] == [0, 0], results
    fields = [result.output.split() for result in results]
    return max(float(field[0]) for field in fields), [[int(each) for each in field[1:]] for field in fields]


@pytest.mark.parametrize(("rate", "size"), [("100mbit", 5_000_000), ("1gbit", 50_000_000)])
def test_rate_is_reached_and_not_beaten_both_ways_and_when_shaped_again(netlab: ModuleType, rate: str, size: int):
    with netlab.Lab(hosts=2) as lab:
        lab.shape("5mbit")
        lab.shape(rate)
        for sender in (0, 1):
            seconds, counted = transfer(lab, size, sender)
            least = 8 * (size - netlab.burst_bytes(rate)) / netlab.parse_rate(rate)
            assert least <= seconds < 1.15 * HEADERS * least
            for sent, received in ((counted[sender][0], counted[1 - sender][1]), (counted[1 - sender][1],) * 2):
                assert size <= sent <= 1.06 * size
                assert abs(sent - received) < 1000
            assert counted[sender][2] > size / 2**16


def test_a_short_transfer_feels_the_rate_too(netlab: ModuleType):
    with netlab.Lab(hosts=2, rate="10mbit") as lab:
        seconds, _ = transfer(lab, 200_000, 0)
    assert seconds > 8 * (200_000 - netlab.burst_bytes("10mbit")) / 10e6


def test_a_packet_takes_the_latency_and_the_rate_is_reached_all_the_same(netlab: ModuleType):
    with netlab.Lab(2, "100mbit", "20ms") as lab:
        round_trip = lab.run([python("import time; time.sleep(2)"), python(ROUND_TRIP, netlab.address(0))], timeout=30)[
            1
        ]
        seconds, _ = transfer(lab, 40_000_000, 0)
    assert 0.040 <= float(round_trip.output) < 0.0445
    assert 0.8 <= 8 * 40_000_000 / seconds / 100e6 <= 1.0  # slow start and a queue that overflows once cost the rest


def test_without_a_rate_links_are_fast(netlab: ModuleType):
    with netlab.Lab(hosts=2, rate="1mbit") as lab:
        lab.shape(None)
        seconds, _ = transfer(lab, 1_000_000, 0)
    assert seconds < 1.0


def test_hosts_reach_one_another_and_nothing_else_and_have_names(netlab: ModuleType):
    with netlab.Lab(hosts=3) as lab, netlab.Lab(hosts=1) as other:
        own = python("import socket; print(socket.gethostbyname(socket.gethostname()))")
        assert [result.output.strip() for result in lab.run([own] * 3)] == ["10.77.0.1", "10.77.0.2", "10.77.0.3"]
        reached = [lab.run([python(REACH, to)] * 3)[2].output.strip() for to in ("10.77.0.1", "10.77.0.2", "192.0.2.1")]
        assert reached == ["ECONNREFUSED", "ECONNREFUSED", "ENETUNREACH"]
        assert other.run([python(REACH, "10.77.0.2")])[0].output.strip() in ("EHOSTUNREACH", "timed out")


def test_a_link_that_is_cut_loses_everything_until_it_is_mended(netlab: ModuleType):
    with netlab.Lab(hosts=2) as lab:
        reached = []
        for change in (None, lab.cut, lab.mend):
            if change:
                change(1)
            reached.append(lab.run([python(REACH, "10.77.0.2"), python(REACH, "10.77.0.2")])[0].output.strip())
    assert reached[0] == reached[2] == "ECONNREFUSED"
    assert reached[1] in ("EHOSTUNREACH", "timed out")


def test_first_failure_and_timeout_end_the_others(netlab: ModuleType):
    marker = f"sleeper-{os.getpid()}"
    with netlab.Lab(hosts=2) as lab:
        sleep = python("import time; print('here', flush=True); time.sleep(60)", marker)
        failed, ended = lab.run([python("raise SystemExit(3)"), sleep], timeout=30)
        assert (failed.returncode, failed.ended, ended.ended) == (3, False, True)
        with pytest.raises(TimeoutError, match=r"not done after 0.5 s(?s:.*)host 1: here"):
            lab.run([sleep, sleep], timeout=0.5)
        assert not is_running(marker)


def test_nothing_is_left_after_an_exception(netlab: ModuleType):
    marker = f"sleeper-{os.getpid()}-exception"

    def fail() -> None:
        with netlab.Lab(hosts=2, rate="1gbit") as lab:
            lab.popen(1, ["setsid", *python("import time; time.sleep(60)", marker)])
            until(lambda: is_running(marker))
            assert len(leftovers(netlab, os.getpid())) == 5  # namespaces of hosts and bridge, folders of hosts
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert leftovers(netlab, os.getpid()) == []
    assert not is_running(marker)


def _start_door(marker: str) -> subprocess.Popen:
    sleep = python("import time; time.sleep(60)", marker)
    command = [sys.executable, "-m", "benchmarks.netlab", "--hosts", "2", "--rate", "1gbit", "--", *sleep]
    door = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    # The marker stands on the door's own command line too: wait for the hosts' folders.
    until(lambda: any(path.name.split("-")[2] == str(door.pid) for path in Path("/run/netns").glob("*-1")))
    time.sleep(0.5)
    return door


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_nothing_is_left_after_a_signal(netlab: ModuleType, number: int, status: int):
    marker = f"sleeper-{os.getpid()}-signal-{number}"
    door = _start_door(marker)
    door.send_signal(number)
    _, errors = door.communicate(timeout=20)
    assert (door.returncode, errors) == (status, "")
    assert leftovers(netlab, door.pid) == []
    assert not is_running(marker)


def test_the_next_laboratory_removes_what_a_killed_one_left(netlab: ModuleType):
    marker = f"sleeper-{os.getpid()}-killed"
    door = _start_door(marker)
    door.kill()
    door.communicate()
    assert leftovers(netlab, door.pid)
    assert is_running(marker)
    with netlab.Lab(hosts=1):
        assert leftovers(netlab, door.pid) == []
        assert not is_running(marker)
        assert netlab.clean() == 0  # this one lives


def test_the_door_prints_hosts_numbers_and_ends_with_the_first_failure():
    code = "import os, sys; print(os.environ['NETLAB_HOSTS']); sys.exit(7 * int(os.environ['NETLAB_HOST']))"
    command = [sys.executable, "-m", "benchmarks.netlab", "--", *python(code)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 7
    assert "1: 2\n" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hosts", "0", "--", "true"], "--hosts=0: must be an integer from 1 to 250"),
        (["--rate", "fast", "--", "true"], "--rate='fast': must be a number and bit"),
        (["--latency", "20", "--", "true"], "--latency='20': must be a number and us, ms or s"),
        ([], "COMMAND: must be given, after --"),
        (["--", "no-such-command"], None),
    ],
)
def test_mistakes_are_told_in_a_line(arguments: list[str], message: str | None):
    command = [sys.executable, "-m", "benchmarks.netlab", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert "Traceback" not in done.stderr + done.stdout
    assert done.returncode == 2 if message else done.returncode != 0
    assert message is None or message in done.stderr.splitlines()[-1]


def test_what_is_missing_is_told_in_a_line(netlab: ModuleType, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    assert netlab.why_not() == "needs ip and tc of iproute2"
    with pytest.raises(netlab.LabError, match="needs ip and tc"), netlab.Lab():
        pass
    monkeypatch.undo()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "root" in netlab.why_not()


def test_jax_adds_over_gloo_between_two_hosts(netlab: ModuleType):
    with netlab.Lab(hosts=2, rate="1gbit") as lab:
        results = lab.run([python(PSUM)] * 2, timeout=50, env={"JAX_PLATFORMS": "cpu"})
    assert ["sum 3.0" in result.output for result in results] == [True, True], results
