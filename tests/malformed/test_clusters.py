"""Clusters that are none: addresses, JAXTERN_* and the flags of a cluster."""

# ruff: noqa: RUF001 - tables
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ADDRESSES = {
    "an address without port": "a",
    "an address without host": ":1",
    "a port of nothing": "a:",
    "port zero": "a:0",
    "a port too high": "a:65536",
    "a port of a thousand digits": "a:" + "1" * 1000,
    "a negative port": "a:-1",
    "a port that is a word": "a:http",
    "a port in other digits": "a:２２",
    "a port that is raised": "a:²",
    "an address of the web": "http://a:1",
    "an address with a user": "me@a:1",
    "an address with a space": "a b:1",
    "an address with a line feed": "a\n:1",
    "an address with an escape": "\x1b[2J:1",
    "an address of six without brackets": "::1:2222",
    "an address of six in half a bracket": "[::1:2222",
    "an address of five thousand letters": "x" * 5000 + ":1",
    "an address of a label of seventy letters": "x" * 70 + ".org:1",
    "an address of points": "..:1",
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
    "a rank alone": (["--process_id=1"], "--num_processes must be given"),
    "a world of nothing": (["--num_processes=0"], "--num_processes=0"),
    "a coordinator of another kind": (
        ["--coordinator=udp://a:1", "--process_id=0", "--num_processes=2"],
        "must be HOST:PORT",
    ),
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


@pytest.mark.parametrize("case", ADDRESSES)
def test_train_refuses_an_address(train: Callable, case: str):
    variables = {"COORDINATOR": ADDRESSES[case], "PROCESS_ID": "1", "NUM_PROCESSES": "2"}
    train(**{f"JAXTERN_{name}": value for name, value in variables.items()}, names=("JAXTERN_COORDINATOR",))


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
