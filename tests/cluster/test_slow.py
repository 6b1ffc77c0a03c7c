"""Hosts that take unequally long, as where one reads its data from a slower disk, train all the same."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EndOf = Callable[..., tuple[int, list[str], list[str]]]


@pytest.mark.slow
@pytest.mark.parametrize("slow", ["data", "start"])
def test_process_that_is_35_seconds_late_is_awaited(
    open_script: Callable[..., subprocess.Popen], end_of: EndOf, tmp_path: Path, slow: str
):
    """Each of 2 workers of a process has 2 devices, whose means go over groups of every other device."""
    fields = {
        "run.num_workers": 4, "run.num_steps": 2, "run.evaluate_every": 0,
        "mean.exchange": "scatter",
    }  # fmt: skip
    script = [sys.executable, str(Path(__file__).with_name("slow_process.py")), f"--slow={slow}"]
    arguments = [f"--config.{name}={value}" for name, value in fields.items()]
    launcher = open_script(
        "launcher.py", json.dumps({"num_processes": 2}), *script, *arguments, f"--workdir={tmp_path / 'run'}",
        JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES="4",
    )  # fmt: skip
    status, out, err = end_of(launcher, 300)
    assert status == 0, [out, err]
    assert any("test accuracy" in line for line in out)
