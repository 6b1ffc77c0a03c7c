"""Clusters that are none: TF_CONFIG, JAXTERN_* and the flags of a cluster."""

# ruff: noqa: E501, RUF001 - tables
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

TWO = ["a:1", "b:2"]


def config(cluster: Any, task: Any) -> str:
    return json.dumps({"cluster": cluster, "task": task})


def workers(addresses: Any, kind: Any = "worker", index: Any = 0) -> str:
    return config({"worker": addresses}, {"type": kind, "index": index})


TF_CONFIGS = {
    "a space": " ",
    "a word": "cluster",
    "null": "null",
    "a list": "[]",
    "a string": '"cluster"',
    "no number": "NaN",
    "an empty object": "{}",
    "half an object": '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "work',
    "no cluster": '{"task": {"type": "worker", "index": 0}}',
    "no task": '{"cluster": {"worker": ["a:1", "b:2"]}}',
    "single quotes": "{'cluster': {'worker': ['a:1']}}",
    "a comma too many": '{"cluster": {"worker": ["a:1",]}, "task": {"type": "worker", "index": 0}}',
    "two clusters": '{"cluster": {}, "cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}',
    "two objects": config({"worker": TWO}, {"type": "worker", "index": 0}) * 2,
    "ten thousand brackets": "[" * 10_000,
    "ten thousand clusters": '{"cluster":' * 10_000,
    "an escape sequence": "\x1b[2J",
    "bytes that are no text": b"\xff\xfe{}".decode("utf-8", "surrogateescape"),
    "fifty thousand letters": "x" * 50_000,
    "a cluster that is null": config(None, {"type": "worker", "index": 0}),
    "a cluster that is a list": config(TWO, {"type": "worker", "index": 0}),
    "a cluster of nobody": config({}, {"type": "worker", "index": 0}),
    "a cluster of other people": config({"boss": TWO}, {"type": "boss", "index": 0}),
    "a cluster of servers alone": config({"ps": TWO}, {"type": "worker", "index": 0}),
    "a kind in capitals": config({"Worker": TWO}, {"type": "Worker", "index": 0}),
    "a kind of ten thousand letters": config({"x" * 10_000: TWO}, {"type": "worker", "index": 0}),
    "two chiefs": config({"chief": TWO, "worker": ["c:3"]}, {"type": "worker", "index": 0}),
    "a chief and a master": config({"chief": ["a:1"], "master": ["b:2"]}, {"type": "chief", "index": 0}),
    "workers that are a string": workers("a:1,b:2"),
    "workers that are a number": workers(2),
    "workers that are an object": workers({"0": "a:1"}),
    "workers that are null": workers(None),
    "no workers": workers([]),
    "a worker that is null": workers(["a:1", None]),
    "a worker that is a number": workers(["a:1", 2222]),
    "a worker that is a list": workers([["a:1"], ["b:2"]]),
    "a worker that is empty": workers(["a:1", ""]),
    "a worker without port": workers(["a", "b"]),
    "a worker without host": workers([":1", ":2"]),
    "a port of nothing": workers(["a:", "b:"]),
    "port zero": workers(["a:0", "b:0"]),
    "a port too high": workers(["a:65536", "b:2"]),
    "a port of a thousand digits": workers(["a:" + "1" * 1000, "b:2"]),
    "a negative port": workers(["a:-1", "b:2"]),
    "a port that is a word": workers(["a:http", "b:2"]),
    "a port in other digits": workers(["a:２２", "b:2"]),
    "a port that is raised": workers(["a:²", "b:2"]),
    "an address of the web": workers(["http://a:1", "b:2"]),
    "an address with a user": workers(["me@a:1", "b:2"]),
    "an address with a space": workers(["a b:1", "b:2"]),
    "an address with a line feed": workers(["a\n:1", "b:2"]),
    "an address with a zero byte": workers(["a\0b:1", "b:2"]),
    "an address with an escape": workers(["\x1b[2J:1", "b:2"]),
    "an address with half a pair": workers(["a\ud800:1", "b:2"]),
    "an address of six without brackets": workers(["::1:2222", "b:2"]),
    "an address of six in half a bracket": workers(["[::1:2222", "b:2"]),
    "an address of five thousand letters": workers(["x" * 5000 + ":1", "b:2"]),
    "an address of a label of seventy letters": workers(["x" * 70 + ".org:1", "b:2"]),
    "an address of points": workers(["..:1", "b:2"]),
    "the same address twice": workers(["a:1", "a:1"]),
    "the chief's address twice": config({"chief": ["a:1"], "worker": ["a:1"]}, {"type": "worker", "index": 0}),
    "a task that is null": config({"worker": TWO}, None),
    "a task that is a string": config({"worker": TWO}, "worker"),
    "a task without type": config({"worker": TWO}, {"index": 0}),
    "a task without index": config({"worker": TWO}, {"type": "worker"}),
    "a type that is a list": workers(TWO, ["worker"]),
    "a type that is an object": workers(TWO, {"worker": 0}),
    "a type that is a number": workers(TWO, 1),
    "a type that is not there": workers(TWO, "chief"),
    "an index too high": workers(TWO, index=2),
    "an index below zero": workers(TWO, index=-1),
    "an index of half": workers(TWO, index=0.5),
    "an index of a float": workers(TWO, index=1.0),
    "an index that is true": workers(TWO, index=True),
    "an index that is null": workers(TWO, index=None),
    "an index that is a word": workers(TWO, index="one"),
    "an index that is a list": workers(TWO, index=[0]),
    "an index with a sign": workers(TWO, index="+1"),
    "an index in other digits": workers(TWO, index="１"),
    "an index of a thousand digits": workers(TWO).replace('"index": 0', f'"index": {"9" * 5000}'),
    "an index that is no number": workers(TWO).replace('"index": 0', '"index": NaN'),
}  # fmt: skip

ENVIRONMENTS = {
    "a coordinator alone": ({"COORDINATOR": "a:1"}, "NUM_PROCESSES must be given"),
    "an index alone": ({"PROCESS_ID": "0"}, "NUM_PROCESSES must be given"),
    "a number alone": ({"NUM_PROCESSES": "2"}, "must be given too"),
    "no processes": ({"NUM_PROCESSES": "0"}, "JAXTERN_NUM_PROCESSES=0"),
    "processes of no number": ({"NUM_PROCESSES": "two"}, "JAXTERN_NUM_PROCESSES='two'"),
    "processes of a billion digits": ({"NUM_PROCESSES": "9" * 5000}, "JAXTERN_NUM_PROCESSES"),
    "processes of a float": ({"NUM_PROCESSES": "2.0"}, "JAXTERN_NUM_PROCESSES='2.0'"),
    "an index out of range": (
        {"COORDINATOR": "a:1", "PROCESS_ID": "2", "NUM_PROCESSES": "2"}, "JAXTERN_PROCESS_ID=2: must be from 0 to 1",
    ),
    "an index below zero": ({"COORDINATOR": "a:1", "PROCESS_ID": "-1", "NUM_PROCESSES": "2"}, "JAXTERN_PROCESS_ID"),
    "a coordinator without port": ({"COORDINATOR": "a", "PROCESS_ID": "0", "NUM_PROCESSES": "2"}, "HOST:PORT"),
    "a coordinator that is empty": ({"COORDINATOR": "", "PROCESS_ID": "0", "NUM_PROCESSES": "2"}, "HOST:PORT"),
}  # fmt: skip

FLAGS = {
    "a coordinator alone": (["--coordinator=a:1"], "--num_processes must be given"),
    "a number alone": (["--num_processes=2"], "must be given too"),
    "an index out of range": (["--coordinator=a:1", "--num_processes=2", "--process_id=2"], "--process_id=2"),
    "no processes": (["--num_processes=0"], "--num_processes=0"),
    "processes below zero": (["--num_processes=-1"], "--num_processes=-1"),
    "processes of a word": (["--num_processes=all"], "num_processes"),
    "a time of nothing": (["--start_timeout=0"], "start_timeout=0"),
    "a time that is no number": (["--start_timeout=nan"], "start_timeout=nan"),
    "a time without end": (["--start_timeout=inf"], "start_timeout=inf"),
    "a rank alone": (["--rank=1"], "--num_processes must be given"),
    "a world of nothing": (["--world_size=0"], "--num_processes=0"),
    "a coordinator of another kind": (["--coordinator=udp://a:1", "--rank=0", "--world_size=2"], "must be HOST:PORT"),
    "a coordinator of six": (["--coordinator=::1:1", "--num_processes=2", "--process_id=0"], "in brackets"),
    "a coordinator that is a path": (["--coordinator=/a:1", "--num_processes=2", "--process_id=0"], "HOST:PORT"),
}
LAUNCH = {
    "no number": ([], "-n: must be given"),
    "no processes": (["-n", "0"], "num_processes=0"),
    "processes below zero": (["-n", "-3"], "num_processes=-3"),
    "processes without number": (["-n", "1000000000"], "num_processes=1000000000"),
    "restarts below zero": (["-n", "2", "--max_restarts=-1"], "max_restarts=-1"),
    "a grace below zero": (["-n", "2", "--grace_seconds=-1"], "grace_seconds=-1"),
    "a grace that is no number": (["-n", "2", "--grace_seconds=nan"], "grace_seconds=nan"),
}


@pytest.fixture
def train(refuses: Callable, tmp_path: Path) -> Callable[..., str]:
    def run(*arguments: str, **options: Any) -> str:
        return refuses("train", "--workdir=run", "--start_timeout=1", *arguments, cwd=tmp_path, **options)

    return run


@pytest.mark.parametrize("case", TF_CONFIGS)
def test_train_refuses_a_tf_config(train: Callable, case: str):
    train(TF_CONFIG=TF_CONFIGS[case].replace("\0", "\\u0000"), names=("TF_CONFIG",))


@pytest.mark.parametrize("case", ENVIRONMENTS)
def test_train_refuses_an_environment(train: Callable, case: str):
    variables, words = ENVIRONMENTS[case]
    train(**{f"JAXTERN_{name}": value for name, value in variables.items()}, names=(words,))


@pytest.mark.parametrize("case", FLAGS)
def test_train_refuses_flags_of_a_cluster(train: Callable, case: str):
    arguments, words = FLAGS[case]
    train(*arguments, names=(words,))


@pytest.mark.parametrize("case", LAUNCH)
def test_launch_refuses_numbers(refuses: Callable, tmp_path: Path, case: str):
    arguments, words = LAUNCH[case]
    refuses("launch", *arguments, "--", "--workdir=run", "--nothing", cwd=tmp_path, names=(words,))


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers(-9, 9) | st.text(max_size=9) | st.just("a:1"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["worker", "chief", "x"]), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@pytest.mark.slow
@hypothesis.settings(max_examples=60, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(cluster=JSON, task=JSON)
def test_train_refuses_any_json_that_is_no_cluster(train: Callable, cluster: Any, task: Any):
    train(TF_CONFIG=config(cluster, task), names=("TF_CONFIG",))


@pytest.mark.slow
@hypothesis.settings(max_examples=30, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(share=st.floats(0.02, 0.98))
def test_train_refuses_a_tf_config_that_is_cut_short(train: Callable, share: float):
    text = config({"chief": ["a:1"], "worker": TWO[1:]}, {"type": "worker", "index": 0})
    train(TF_CONFIG=text[: int(share * len(text))], names=("TF_CONFIG",))
