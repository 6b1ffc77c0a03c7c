"""Processes that join jax.distributed over gloo on this machine, and those that cannot."""

import signal
import socket
import subprocess
import time
from collections.abc import Callable

import jax
import pytest

from jaxtern import cluster

Open = Callable[..., subprocess.Popen]
EndOf = Callable[[subprocess.Popen], tuple[int, list[str], list[str]]]
SCRIPT = "join_process.py"


def _flags(port: int, process: int, count: int, timeout: float = 120) -> list[str]:
    where = f"--coordinator=127.0.0.1:{port}"
    return [where, f"--process_id={process}", f"--num_processes={count}", f"--start_timeout={timeout}"]


def test_join_alone_leaves_jax_distributed_alone(open_script: Open, end_of: EndOf):
    assert end_of(open_script(SCRIPT)) == (0, ["0 1 None 1 False"], [])


@pytest.mark.slow
def test_join_of_three_by_flags_makes_them_one_cluster(open_script: Open, end_of: EndOf, free_port: int):
    # The others wait for process 0, on which they knock in vain until it listens.
    ends = [open_script(SCRIPT, *_flags(free_port, process, 3)) for process in (2, 1)]
    ends.append(open_script(SCRIPT, *_flags(free_port, 0, 3)))
    for process, ended in zip((2, 1, 0), ends, strict=True):
        status, out, err = end_of(ended)
        assert (status, err) == (0, [])
        assert out == [f"{process} 3 127.0.0.1:{free_port} 6 True"]


@pytest.mark.slow
def test_join_without_process_0_ends_in_one_line(open_script: Open, end_of: EndOf, free_port: int):
    as_in_torch = f"--coordinator=tcp://127.0.0.1:{free_port}", "--process_id=1", "--num_processes=2"
    status, out, (line,) = end_of(open_script(SCRIPT, *as_in_torch, "--start_timeout=2"))
    assert (status, out) == (1, [])
    assert line.startswith(f"error: process 0 of 2 did not come to 127.0.0.1:{free_port} in 2 s (")


@pytest.mark.slow
def test_join_with_one_missing_names_it_in_all_that_are_there(open_script: Open, end_of: EndOf, free_port: int):
    processes = [
        open_script(SCRIPT, *_flags(free_port, 2, 4)),
        open_script(SCRIPT, *_flags(free_port, 0, 4, timeout=15)),
    ]
    err: list[str] = []
    for process in processes:
        status, out, err = end_of(process)
        assert (status, out) == (1, [])
        assert err[-1] == f"error: processes 1, 3 of 4 did not come to 127.0.0.1:{free_port} in 15 s"
        assert all("waiting for" in line for line in err[:-1])
    assert any("waiting for processes 1, 3 of 4" in line for line in err[:-1])


@pytest.mark.few("number")
@pytest.mark.parametrize(
    ("second", "rule"),
    [
        ((1, 3), "num_processes=3 in process 1, 2 in process 0: must be the same in all"),
        ((0, 2), "another program listens there, or another process with process_id=0"),
    ],
    ids=["number", "index"],
)
def test_join_of_two_that_disagree_ends_at_once(
    open_script: Open, end_of: EndOf, free_port: int, second: tuple[int, int], rule: str
):
    first, other = open_script(SCRIPT, *_flags(free_port, 0, 2)), None
    if second[0] == 0:
        _wait_for_listener(free_port)
    other = open_script(SCRIPT, *_flags(free_port, *second))
    status, _, err = end_of(other)
    assert rule in err[-1]
    assert len(err) == 1
    if second[0] == 0:
        assert status == 1  # a port may be free again
    else:
        assert status == 2
        assert end_of(first)[0] == 2


@pytest.mark.slow
def test_join_is_not_troubled_by_strangers(open_script: Open, end_of: EndOf, free_port: int):
    first = open_script(SCRIPT, *_flags(free_port, 0, 2))
    _wait_for_listener(free_port)
    with socket.create_connection(("127.0.0.1", free_port)) as silent:
        for noise in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"x" * 10_000,
            b'{"jaxtern": 2}\n',
            b'{"jaxtern": 2, "process_id": []}\n',
        ):
            with socket.create_connection(("127.0.0.1", free_port)) as stranger:
                stranger.sendall(noise)
        second = open_script(SCRIPT, *_flags(free_port, 1, 2))
        assert [end_of(process)[0] for process in (first, second)] == [0, 0]
        silent.close()


def test_process_0_that_listens_at_all_addresses_is_reached_by_ipv4(open_script: Open, end_of: EndOf, free_port: int):
    everywhere = {"JAX_COORDINATOR_BIND_ADDRESS": f"[::]:{free_port}"}
    processes = [open_script(SCRIPT, *_flags(free_port, each, 2), **everywhere) for each in range(2)]
    for process, started in enumerate(processes):
        status, out, err = end_of(started)
        assert (status, err) == (0, [])
        assert out == [f"{process} 2 127.0.0.1:{free_port} 3 True"]


def test_join_on_an_address_of_another_machine_is_refused(open_script: Open, end_of: EndOf):
    status, _, (line,) = end_of(
        open_script(SCRIPT, "--coordinator=192.0.2.77:2222", "--process_id=0", "--num_processes=2")
    )
    assert status == 2
    assert line.startswith("error: coordinator=192.0.2.77:2222: ")
    assert "process 0, which this is, must run on that host" in line


def _slurm(process: int, count: int, port: int) -> dict[str, str]:
    """What srun sets, as far as JAX reads it."""
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": str(count)}
    return step | {"SLURM_PROCID": str(process), "SLURM_LOCALID": str(process), "JAX_COORDINATOR_PORT": str(port)}


def _open_mpi(process: int, count: int, port: int) -> dict[str, str]:
    """What mpirun of version 4 sets, likewise."""
    where = {"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://127.0.0.1:34911", "JAX_COORDINATOR_PORT": str(port)}
    own = {"OMPI_COMM_WORLD_RANK": str(process), "OMPI_COMM_WORLD_LOCAL_RANK": str(process)}
    return where | own | {"OMPI_COMM_WORLD_SIZE": str(count)}


@pytest.mark.parametrize("launcher", [_slurm, pytest.param(_open_mpi, marks=pytest.mark.slow)])
def test_join_of_two_that_jax_finds(open_script: Open, end_of: EndOf, free_port: int, launcher: Callable):
    for process, ended in enumerate([open_script(SCRIPT, **launcher(each, 2, free_port)) for each in range(2)]):
        assert end_of(ended) == (0, [f"{process} 2 None 3 True"], [])  # nothing of gloo


@pytest.mark.slow
@pytest.mark.parametrize("process", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_join_of_one_of_two_that_jax_finds_ends_in_one_line(
    open_script: Open, end_of: EndOf, free_port: int, process: int
):
    ended = open_script(SCRIPT, "--start_timeout=3", **_slurm(process, 2, free_port))
    assert end_of(ended) == (1, [], ["error: not all processes have joined jax.distributed (SLURM) in 3 s"])


def test_join_in_kubernetes_without_its_package_is_refused(open_script: Open, end_of: EndOf):
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0", "PYTHONWARNINGS": "ignore"}
    status, _, (line,) = end_of(open_script(SCRIPT, **pod))
    assert (status, line.partition("cannot start")[0]) == (2, "error: Kubernetes: jax.distributed ")


@pytest.mark.slow
def test_failing_after_joining_ends_at_once_and_sigterm_ends_the_other(
    open_script: Open, end_of: EndOf, free_port: int
):
    first, second = (open_script(SCRIPT, *_flags(free_port, process, 2), "--fail=1") for process in (0, 1))
    start = time.monotonic()
    assert first.stdout is not None
    assert "True" in first.stdout.readline()
    assert end_of(second)[0] == 3
    assert time.monotonic() - start < 90  # where JAX alone would wait 100 s for process 0, then abort
    first.send_signal(signal.SIGTERM)
    assert end_of(first)[0] == -signal.SIGTERM


def _wait_for_listener(port: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    pytest.fail("nobody listens")


def test_a_name_that_others_cannot_reach_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "vm")
    monkeypatch.setattr(socket, "gethostbyname", {"vm": "127.0.1.1"}.__getitem__)
    with pytest.raises(cluster.StartError) as caught, cluster.explaining_addresses():
        raise jax.errors.JaxRuntimeError("Gloo context initialization failed\nand more")
    assert str(caught.value) == (
        "processes cannot connect; the name of this host, vm, is 127.0.1.1 here, which other hosts cannot reach:"
        " put its own address into /etc/hosts"
    )
