"""What flags and the environment say of a process, well and badly."""

import re
from typing import Any

import pytest

from jaxtern.cluster import Cluster, find_cluster
from jaxtern.hosts.settings import ALONE, detects, for_process


def _find(*flags: Any, **environment: str) -> Cluster | None:
    return find_cluster(*(flags or (None, None, None)), environment)


def test_settings_are_none_where_nothing_is_said():
    assert _find() is None
    assert detects({}) is None


def test_settings_of_one_process_need_no_coordinator():
    assert _find(None, None, 1) == _find(None, 0, 1) == _find(JAXTERN_NUM_PROCESSES="1") == ALONE


def test_settings_take_flags_before_the_launcher():
    launcher = for_process("b:2", 2, 3)
    assert _find("a:1", 1, 4, **launcher) == Cluster(1, 4, "a:1")
    assert _find(**launcher) == Cluster(2, 3, "b:2")
    assert _find("tcp://a:1", 1, 4) == Cluster(1, 4, "a:1")


@pytest.mark.parametrize(
    ("flags", "rule"),
    [
        (("a:1", None, None), "--coordinator=a:1: --num_processes must be given too"),
        ((None, 3, None), "--process_id=3: --num_processes must be given too"),
        ((None, None, 2), "--num_processes=2: --process_id must be given too"),
        ((None, 1, 2), "--num_processes=2: --coordinator must be given too"),
        (("a:1", 2, 2), "--process_id=2: must be from 0 to 1, as --num_processes=2"),
        (("a:1", -1, 2), "--process_id=-1: must be from 0 to 1"),
        ((None, 1, 1), "--process_id=1: must be from 0 to 0"),
        (("a:1", 0, 0), "--num_processes=0: must be 1 or more"),
        (("a", 0, 2), "--coordinator='a': must be HOST:PORT"),
        (("a:", 0, 2), "--coordinator='a:': must be HOST:PORT with a port from 1 to 65535"),
        (("a:0", 0, 2), "with a port from 1 to 65535"),
        (("a:65536", 0, 2), "with a port from 1 to 65535"),
        ((":22", 0, 2), "must be HOST:PORT"),
        (("http://a:22", 0, 2), "must be HOST:PORT"),
        (("::1:22", 0, 2), "an IPv6 address stands in brackets"),
    ],
)
def test_settings_that_do_not_fit_are_named(flags: tuple, rule: str):
    with pytest.raises(ValueError, match=re.escape(rule)):
        _find(*flags)


def test_settings_of_the_environment_are_named_as_they_are_there():
    with pytest.raises(ValueError, match="JAXTERN_PROCESS_ID='one': must be a whole number"):
        _find(JAXTERN_PROCESS_ID="one")
    with pytest.raises(ValueError, match="JAXTERN_PROCESS_ID=1: JAXTERN_NUM_PROCESSES must be given too"):
        _find(JAXTERN_PROCESS_ID="1")


@pytest.mark.parametrize(
    ("environment", "launcher"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.1:1"}, "Open MPI"),
        ({"OMPI_COMM_WORLD_SIZE": "1"}, None),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0"}, "Kubernetes"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, None),
        ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "2"}, None),  # a batch script, not a step
    ],
)
def test_launchers_that_jax_knows_are_found(environment: dict[str, str], launcher: str | None):
    assert detects(environment) == launcher


@pytest.mark.parametrize(("tasks", "launcher"), [("2", "SLURM"), ("1", None)])
def test_slurm_is_a_cluster_where_it_has_several_tasks(tasks: str, launcher: str | None):
    step = {"SLURM_JOB_ID": "1", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    assert detects(step | {"SLURM_NTASKS": tasks}) == launcher


def _open_mpi(rank: int, local_rank: int, local_size: int = 2, **more: str) -> dict[str, str]:
    """What mpirun of version 5 sets in one of two processes."""
    own = {"RANK": rank, "LOCAL_RANK": local_rank, "LOCAL_SIZE": local_size, "SIZE": 2}
    job = {"PMIX_NAMESPACE": "prterun-a-5948@1"}
    return {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in own.items()} | job | more


def test_open_mpi_on_one_host_needs_no_more():
    first, second = (_find(**_open_mpi(rank, rank)) for rank in (0, 1))
    assert first is not None
    assert first == Cluster(0, 2, first.coordinator, (0,))
    assert second == Cluster(1, 2, first.coordinator, (1,))
    host, _, port = str(first.coordinator).partition(":")
    assert host == "127.0.0.1"
    assert 61440 <= int(port) < 65536
    other = _find(**_open_mpi(0, 0, PMIX_NAMESPACE="prterun-a-5949@1"))
    assert other is not None
    assert other.coordinator != first.coordinator
    assert _find(**_open_mpi(1, 1, JAX_COORDINATOR_PORT="2222")) == Cluster(1, 2, "127.0.0.1:2222", (1,))


def test_open_mpi_gives_each_a_gpu_where_they_share_a_host_and_jax_is_told_of_none():
    assert _find("a:1", None, None, **_open_mpi(1, 0, 1)) == Cluster(1, 2, "a:1")
    assert _find("a:1", None, None, **_open_mpi(1, 1, JAX_LOCAL_DEVICE_IDS="0")) == Cluster(1, 2, "a:1")
    assert _find("a:1", None, None, **_open_mpi(1, 1)) == Cluster(1, 2, "a:1", (1,))


TORCHRUN = {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
ON_ONE_HOST = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
AGENT = {"TORCHELASTIC_USE_AGENT_STORE": "True"}


def test_torchrun_s_variables_are_taken():
    assert _find(**TORCHRUN) == Cluster(2, 4, "a:29500")
    assert _find(**TORCHRUN | {"MASTER_ADDR": "fd00::1"}) == Cluster(2, 4, "[fd00::1]:29500")
    assert _find(**TORCHRUN, **ON_ONE_HOST) == Cluster(2, 4, "a:29500", (1,))
    assert _find(**TORCHRUN, **ON_ONE_HOST, JAX_LOCAL_DEVICE_IDS="0") == Cluster(2, 4, "a:29500")
    assert _find(**TORCHRUN, **ON_ONE_HOST | {"LOCAL_WORLD_SIZE": "1"}) == Cluster(2, 4, "a:29500")


def test_torchrun_that_listens_at_its_port_leaves_another_on_which_all_agree():
    found, other, named = (
        _find(**TORCHRUN | AGENT | more) for more in ({}, {"RANK": "0"}, {"JAX_COORDINATOR_PORT": "7"})
    )
    assert found is not None
    assert other is not None
    assert found.coordinator == other.coordinator
    host, _, port = str(found.coordinator).partition(":")
    assert (host, 61440 <= int(port) < 65536) == ("a", True)
    assert named == Cluster(2, 4, "a:7")


def test_torchrun_of_one_process_and_other_programs_variables_say_nothing():
    assert _find(**TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1"}) is None
    assert _find(WORLD_SIZE="4", MASTER_ADDR="a", MASTER_PORT="1") is None
    assert _find(RANK="gold") is None


def test_torchrun_comes_before_open_mpi():
    assert _find(**TORCHRUN, **_open_mpi(1, 1)) == Cluster(2, 4, "a:29500")


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"MASTER_ADDR": ""}, "MASTER_ADDR: must be set too, as RANK and WORLD_SIZE are"),
        ({"MASTER_PORT": ""}, "MASTER_PORT: must be set too, as RANK and WORLD_SIZE are"),
        ({"MASTER_PORT": "http"}, "MASTER_ADDR:MASTER_PORT='a:http': must be HOST:PORT"),
        ({"RANK": "4"}, "RANK=4: must be below WORLD_SIZE=4"),
        ({"RANK": "one"}, "RANK='one': must be a whole number"),
        (ON_ONE_HOST | {"LOCAL_RANK": "x"}, "LOCAL_RANK='x': must be a whole number"),
    ],
)
def test_torchrun_that_does_not_fit_is_refused(wrong: dict[str, str], rule: str):
    with pytest.raises(ValueError, match=re.escape(rule)):
        _find(**TORCHRUN | wrong)


def test_open_mpi_on_several_hosts_needs_a_coordinator_and_no_more():
    environment = _open_mpi(1, 0, 1)
    assert _find(**environment) is None
    with pytest.raises(ValueError, match=r"OMPI_COMM_WORLD_SIZE=2: .* give --coordinator"):
        detects(environment)
    assert _find("a:1", None, None, **environment) == Cluster(1, 2, "a:1")
    assert _find("a:1", None, None, OMPI_COMM_WORLD_SIZE="1") == ALONE


def test_open_mpi_comes_after_all_that_is_said_to_jaxtern():
    environment = _open_mpi(1, 1)
    assert _find("a:1", 2, 3, **environment) == Cluster(2, 3, "a:1")
    assert _find(None, None, 1, **environment) == ALONE
    assert _find(**environment, **for_process("b:2", 2, 3)) == Cluster(2, 3, "b:2")


@pytest.mark.parametrize(
    ("coordinator", "wrong", "rule"),
    [
        ("a", {}, "--coordinator='a': must be HOST:PORT"),
        (None, {"JAX_COORDINATOR_PORT": "x"}, "JAX_COORDINATOR_PORT='127.0.0.1:x': must be HOST:PORT with a port"),
        (None, {"OMPI_COMM_WORLD_RANK": "one"}, "OMPI_COMM_WORLD_RANK='one': must be a whole number"),
        (None, {"OMPI_COMM_WORLD_RANK": "2"}, "OMPI_COMM_WORLD_RANK=2: must be below OMPI_COMM_WORLD_SIZE=2"),
    ],
)
def test_open_mpi_that_does_not_fit_is_refused(coordinator: str | None, wrong: dict[str, str], rule: str):
    with pytest.raises(ValueError, match=re.escape(rule)):
        _find(coordinator, None, None, **(_open_mpi(1, 1) | wrong))
