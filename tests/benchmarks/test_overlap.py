"""A step for many GPUs, compiled without one: its collectives begin while gradients are still computed."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parents[2]
FORWARD, PRODUCTS = 6, 17  # products of matrices in the forward pass, and in all


def _compiler() -> Path:
    """ptxas of the wheels; skips the test where they, XLA's plug-in or a JAX that the kernels need are not there."""
    wheels = importlib.util.find_spec("nvidia")
    folders = map(Path, wheels.submodule_search_locations or () if wheels else ())
    found = [path for folder in folders if (path := folder / "cu13" / "bin" / "ptxas").exists()]
    if importlib.util.find_spec("jax_cuda13_plugin") is None or not found:
        pytest.skip("XLA's plug-in for GPUs and nvidia-cuda-nvcc are not installed")
    if tuple(map(int, jax.__version__.split(".")[:2])) < (0, 11):
        pytest.skip("the kernels need a newer JAX")
    return found[0]


def _collectives(*options: str) -> list[dict]:
    command = [sys.executable, "-m", "benchmarks.kernels.overlap", "--json", f"--ptxas={_compiler()}", *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, check=False, cwd=ROOT, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.newest
@pytest.mark.slow
def test_on_a_host_of_8_gpus_the_first_layer_of_the_backward_pass_is_on_its_way_before_the_others_are_computed():
    found = _collectives("--gpus=8")
    assert {each["axes"] for each in found} == {"gpu"}
    # Where nothing is left to compute, XLA may make one synchronous.
    assert all(each["is_async"] for each in found if each["followed_by"])
    assert sum(not each["is_async"] for each in found) <= 1
    assert (found[0]["kind"], found[0]["waits_for"]) == ("all-reduce", FORWARD + 1)
    assert found[0]["followed_by"] >= 4
    # Scales, words there and back of each layer: a layer waits for no gradients but those of the layers behind it.
    waits = sorted(each["waits_for"] for each in found if each["kind"] == "all-reduce")
    assert waits == [7, 9, 11, 13, 15, PRODUCTS]


@pytest.mark.newest
@pytest.mark.slow
def test_of_2_hosts_floats_go_between_the_gpus_of_one_and_words_between_hosts_before_the_backward_pass_ends():
    found = _collectives("--hosts=2", "--gpus=8")
    of_gpus, of_hosts = ([each for each in found if each["axes"] == axis] for axis in ("gpu", "host"))
    assert len(of_gpus) + len(of_hosts) == len(found)
    assert all(each["is_async"] for each in of_gpus)
    first = of_hosts[0]
    assert first["is_async"]
    assert first["waits_for"] == FORWARD + 1
    assert sum(each["followed_by"] > 0 for each in of_hosts) >= 4
