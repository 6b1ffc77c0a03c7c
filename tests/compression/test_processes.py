"""Real processes, over gloo on this machine: the same bits as virtual workers, by every exchange and method."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
import pytest

import jaxtern

WORKER = Path(__file__).with_name("worker_process.py")
EXACT = ("gather", "sum", "scatter")
NAMES = [*EXACT, "two_way", *(f"{name} pieces" for name in (*EXACT, "two_way"))]
METHODS = ["float16", "top_k", "dgc", "low_rank", "sign", "sign two-way"]


@pytest.fixture(scope="module")
def worker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("worker_process", WORKER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run(num_processes: int, names: list[str]) -> list[dict]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
    compiled = {"JAX_DISABLE_MOST_OPTIMIZATIONS": str(jax.config.values["jax_disable_most_optimizations"])}  # as here
    environment = os.environ | compiled | {"PYTHONPATH": str(Path(__file__).parents[2])}
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), coordinator, str(num_processes), str(process), *names],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for process in range(num_processes)
    ]
    try:
        outputs = [process.communicate(timeout=600) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


@pytest.mark.parametrize(
    ("num_processes", "names"),
    [
        (2, ["two_way pieces", "sign two-way"]),
        pytest.param(3, [*NAMES, *METHODS], marks=pytest.mark.slow),
        pytest.param(4, ["scatter", "two_way", "float16"], marks=pytest.mark.slow),  # these swap words in pairs
    ],
    ids=["2", "3", "4"],
)
def test_processes_give_the_same_bits_as_virtual_workers(
    workers: Callable, worker: ModuleType, num_processes: int, names: list[str]
):
    found = _run(num_processes, names)
    placed = workers(f"mesh:1 unrolled:{num_processes}")

    def expect(name: str, make: Callable[[int], dict[str, np.ndarray]]) -> str:
        """The digest of the virtual workers' mean."""
        gradients = [make(each) for each in range(num_processes)]
        stacked = {key: np.stack([tree[key] for tree in gradients]) for key in gradients[0]}
        transformation = jaxtern.compressed_mean(placed.names, **worker.options(name), virtual_workers=num_processes)
        mean = placed.over(lambda trees, _: worker.twice(transformation, trees, trees[0]))(stacked, None)
        return worker.digest(jax.tree.map(lambda x: x[0], mean))

    expected = {name: expect(name, worker.local_gradients) for name in names}
    expected |= {f"{name} hierarchical": expect(name, worker.whole_gradients) for name in EXACT}
    assert [each["digests"] for each in found] == [expected] * num_processes
    latencies, bandwidths = zip(*(each["network"] for each in found), strict=True)
    assert len(set(latencies)) == 1
    assert 0 < latencies[0] < 1
    np.testing.assert_allclose(bandwidths, 1e9 / num_processes, rtol=1e-6)  # of the slowest
