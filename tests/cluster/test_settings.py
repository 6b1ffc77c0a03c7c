"""What flags and the environment say of a process, well and badly."""

import json
import re
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

from jaxtern.cluster import Cluster, Evaluates, Unneeded, find_cluster
from jaxtern.hosts.settings import ALONE, detects, for_process
from jaxtern.hosts.tf_config import read_tf_config

THREE = {"chief": ["a:1"], "worker": ["b:2", "[::1]:3"]}


def _tf_config(cluster: Any, kind: Any = "worker", index: Any = 0) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


def _find(*flags: Any, **environment: str) -> Cluster | None:
    return find_cluster(*(flags or (None, None, None)), environment)


def _refusal(text: str) -> str:
    """The one line in which a TF_CONFIG is refused."""
    with pytest.raises(ValueError, match=r".") as caught:
        read_tf_config(text)
    line = str(caught.value)
    assert line.startswith("TF_CONFIG"), line
    assert line.isprintable(), line
    assert len(line) < 300
    return line


def test_settings_are_none_where_nothing_is_said():
    assert _find() is None
    assert _find(TF_CONFIG="") is None
    assert detects({}) is None


def test_settings_of_one_process_need_no_coordinator():
    assert _find(None, None, 1) == _find(None, 0, 1) == _find(JAXTERN_NUM_PROCESSES="1") == ALONE
    assert _find(TF_CONFIG=_tf_config({"chief": ["a:1"]}, "chief")) == ALONE


def test_settings_take_flags_before_the_launcher_before_tf_config():
    launcher, config = for_process("b:2", 2, 3), _tf_config(THREE)
    assert _find("a:1", 1, 4, TF_CONFIG=config, **launcher) == Cluster(1, 4, "a:1")
    assert _find(TF_CONFIG=config, **launcher) == Cluster(2, 3, "b:2")
    assert _find(TF_CONFIG=config) == Cluster(1, 3, "a:1")
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
    ("kind", "index", "expected"), [("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2), ("worker", "1", 2)]
)
def test_tf_config_counts_the_chief_before_the_workers(kind: str, index: Any, expected: int):
    reordered = {"worker": THREE["worker"], "ps": ["p:1"], "evaluator": ["e:1"], "chief": THREE["chief"]}
    assert read_tf_config(_tf_config(THREE, kind, index)) == Cluster(expected, 3, "a:1")
    assert read_tf_config(_tf_config(reordered, kind, index)) == Cluster(expected, 3, "a:1")


def test_tf_config_without_a_chief_begins_with_the_first_worker():
    assert read_tf_config(_tf_config({"worker": ["a:1", "b:2"]}, "worker", 1)) == Cluster(1, 2, "a:1")
    assert read_tf_config(_tf_config({"master": ["m:1"], "worker": ["a:1"]}, "master", 0)) == Cluster(0, 2, "m:1")


def test_tf_config_tells_servers_and_evaluators_that_they_do_not_train():
    with pytest.raises(Unneeded, match="parameter servers are not needed"):
        read_tf_config(_tf_config(THREE | {"ps": ["p:1"]}, "ps"))
    with pytest.raises(Evaluates):
        read_tf_config(_tf_config(THREE, "evaluator"))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("{", "TF_CONFIG='{': Expecting"),
        ("[]", "must be an object with 'cluster' and 'task'"),
        ("{}", "cluster=None: must be an object"),
        ('{"cluster": {}}', "task=None: must be an object"),
        ("[" * 100_000, "recursion"),
        (f'{{"cluster": {"9" * 5000}}}', "value has 5000 digits"),
        (_tf_config(THREE, "worker", 10**4000), "...: must be from 0 to 1"),
        ('{"cluster": {"chief": ["a:1"], "chief": ["b:1"]}, "task": {}}', "'chief' stands twice"),
        (_tf_config({}), "must have a 'chief' or a 'worker'"),
        (_tf_config({"ps": ["a:1"]}), "must have a 'chief' or a 'worker'"),
        (_tf_config({"chief": ["a:1", "b:1"]}), "cluster has 2 chiefs and masters"),
        (_tf_config({"chief": ["a:1"], "master": ["b:1"]}), "cluster has 2 chiefs and masters"),
        (_tf_config({"worker": ["a:1", "a:1"]}), "two processes have the address 'a:1'"),
        (_tf_config({"worker": ["a:1", "b"]}), "worker[1]='b': must be HOST:PORT"),
        (_tf_config({"worker": ["a:1", 7]}), "worker[1]=7: must be HOST:PORT"),
        (_tf_config({"worker": "a:1"}), "worker='a:1': must be a list"),
        (_tf_config({"workers": ["a:1"]}), "'workers' must be one of"),
        (_tf_config(THREE, "boss"), "type='boss': must be one of"),
        (_tf_config(THREE, "master"), "type='master': cluster has none of that type"),
        (_tf_config(THREE, "worker", 2), "index=2: must be from 0 to 1, as cluster has 2 workers"),
        (_tf_config(THREE, "worker", -1), "index=-1: must be from 0 to 1"),
        (_tf_config(THREE, "worker", None), "index=None: must be a whole number"),
        (_tf_config(THREE, "worker", True), "index=True: must be a whole number"),
    ],
)
def test_tf_config_that_does_not_fit_is_refused_with_the_rule(text: str, rule: str):
    assert rule in _refusal(text)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
NO_ADDRESS = ANYTHING.filter(lambda value: not isinstance(value, str)) | st.text(max_size=9).filter(
    lambda x: ":" not in x
)
BAD_CLUSTERS = st.one_of(
    ANYTHING,
    st.builds(lambda bad: {"chief": ["a:1"], "worker": ["b:1", bad]}, NO_ADDRESS),
    st.builds(lambda bad: {"worker": bad}, ANYTHING.filter(lambda value: value != [])),
    st.builds(lambda name: THREE | {name: ["c:1"]}, st.text(max_size=9)),
)
BAD_TASKS = st.one_of(
    ANYTHING,
    st.builds(
        lambda bad: {"type": "worker", "index": bad}, ANYTHING.filter(lambda value: value not in (0, 1, "0", "1"))
    ),
    st.builds(lambda bad: {"type": bad, "index": 0}, ANYTHING),
)
BAD_CONFIGS = st.one_of(
    st.text(max_size=30).filter(bool),
    ANYTHING.map(json.dumps),
    st.builds(lambda cluster: json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}}), BAD_CLUSTERS),
    st.builds(lambda task: json.dumps({"cluster": THREE, "task": task}), BAD_TASKS),
    st.builds(lambda end: _tf_config(THREE)[: -1 - end], st.integers(0, 60)),
)


@hypothesis.settings(max_examples=300)
@hypothesis.given(BAD_CONFIGS)
def test_tf_config_that_is_malformed_is_refused_in_one_line(text: str):
    _refusal(text)


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


def test_torchrun_comes_after_tf_config_and_before_open_mpi():
    assert _find(**TORCHRUN, TF_CONFIG=_tf_config(THREE)) == Cluster(1, 3, "a:1")
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
    assert _find(**environment, TF_CONFIG=_tf_config(THREE)) == Cluster(1, 3, "a:1")


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
