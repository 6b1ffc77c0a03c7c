"""python -m jaxtern.plan as a user types it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from absl import flags
from absl.testing import flagsaver

from jaxtern import plan

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2]), "JAX_PLATFORMS": "cpu"}
GIVEN = ("--parameters=61M", "--hosts=8", "--rate=1gbit", "--step_seconds=250ms", "--nocodec")


def test_plan_prints_tables_that_fit_and_one_sentence(run_door: Callable, tmp_path: Path):
    done = run_door("plan", *GIVEN, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert all(len(line) <= 100 for line in lines)
    steps = {line.split()[0]: line for line in lines if re.match(r"(float|gather|sum|scatter|two_way) ", line)}
    # 2 * 7/8 * 4 * 61e6 bytes over 125e6 a second, and 14 messages of 100 us
    assert re.fullmatch(r"float +250 ms +0 +3\.42 s +3\.67 s +1\.00", steps["float"])
    assert len(steps) == 5
    counts = [int(line.split()[0].replace(",", "")) for line in lines if re.match(r" +[\d,]+ ", line)]
    assert counts == [2**k for k in range(11)]
    starts = [
        "codec: ",
        "take scatter: ",
        "  two_way, which is unbiased but not exact, takes ",
        "  with an exchange in ",
    ]
    assert [line for line, start in zip(lines[-4:], starts, strict=True) if not line.startswith(start)] == []


@pytest.mark.parametrize(("given", "count"), [("4.1M", 4_100_000), ("16.1k", 16_100), ("0.5k", 500)])
def test_numbers_of_parameters_may_have_a_point(given: str, count: int):
    with flagsaver.flagsaver():
        flags.FLAGS(["plan", f"--parameters={given}", "--step_seconds=1ms"])
        assert plan.read_parameters().layout.sizes == (count,)


@pytest.mark.slow
def test_plan_of_a_recipe_measures_step_and_codec(run_door: Callable, tmp_path: Path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "network.json").write_text('{"latency": 0.001, "bandwidth": 1e6}')
    done = run_door("plan", f"--network={run}", "--latency=2ms", "--config.mean.float_last_layer=true",
                    "--config.local.fragments=2", "--config.local.delay=3", "--devices_per_host=2",
                    cwd=tmp_path)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    counts, links, *rows = done.stdout.splitlines()
    compressed, floats = (int(each.replace(",", "")) for each in re.findall(r"([\d,]+) (?:elements|float)", counts))
    assert compressed + floats == 131_080
    assert floats > 0
    assert links.startswith("2 hosts of 2 devices, 0.008 Gbit/s, 2.00 ms a message; a step without exchange takes ")
    assert "which hides the wire" not in links  # without local steps, their delay is of no effect
    steps = [re.split(r"  +", row) for row in rows if re.match(r"(float|gather|sum|scatter|two_way)[ ,]", row)]
    assert len(steps) == 10
    assert all(codec.endswith("s") for name, _, codec, *_ in steps if not name.startswith("float"))  # and is not 0
    exact = [row for row in steps if row[0].startswith(("gather", "sum", "scatter"))]
    best = max(float(row[-1]) for row in exact)  # of several, as the column is rounded
    assert any(f"take {row[0]}: " in done.stdout for row in exact if float(row[-1]) == best)
    assert "where compression takes no time: take " in rows[-1]


@pytest.mark.parametrize(("number", "name"), [(1, "out"), (2, "err")])
def test_a_command_runs_though_a_stream_is_closed(tmp_path: Path, number: int, name: str):
    """The null device has taken the stream's number, which else the next file would get."""
    code = f"""
import os, sys
from jaxtern import command_line
with command_line.loading("door"):
    null = os.stat(os.devnull)
    assert os.path.samestat(os.fstat({number}), null)
    print("told", file=sys.std{name})
"""
    command = ["sh", "-c", f'exec "$0" -c "$1" {number}>&-', sys.executable, code]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("arguments", [["--help"], ["--parameters=1m", "--step_seconds=1ms", "--nocodec"]])
def test_a_command_ends_quietly_once_nobody_reads_it(tmp_path: Path, arguments: list[str]):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "jaxtern.plan", *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"loading JAX\n")


def test_plan_explains_itself(run_command: Callable, tmp_path: Path):
    done = run_command("plan", "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for words in ("python -m jaxtern.plan", "--parameters", "--[no]codec", "--config=RECIPE"):
        assert words in done.stdout
