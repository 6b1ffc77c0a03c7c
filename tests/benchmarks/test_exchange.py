"""`python -m benchmarks.exchange`: bytes as predicted, the same bits on all hosts, mistakes in a line."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from benchmarks.exchange import shapes
from benchmarks.netlab import Counters, team, worker

ROOT = Path(__file__).parents[2]


def run(*arguments: str, module: str = "exchange", timeout: float = 60) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.mark.netlab
@pytest.mark.parametrize("rate", ["100mbit", "1gbit"])  # below, packets are cut, and each of them has headers
def test_bytes_at_the_interfaces_are_those_predicted(netlab: ModuleType, tmp_path: Path, rate: str):
    del netlab
    bits = {"100mbit": 1e8, "1gbit": 1e9}[rate]
    file, figure = tmp_path / "exchange.json", tmp_path / "exchange.png"
    names = ["gather", "low_rank 4", "sign two_way", "bfloat16", "float"]
    what = ("--hosts", "2", "--rates", rate, "--elements", "2**18", "--exchanges", *names)
    done = run(*what, "--repeats", "5", "--json", str(file))
    assert done.returncode == 0, done
    rows = {row["exchange"]: row for row in json.loads(file.read_text())["rows"]}
    assert list(rows) == ["float", "gather", "bfloat16", "low_rank 4", "sign two_way"]
    for row in rows.values():
        assert abs(row["payload_over_predicted"] - 1) < 0.03 + 1000 / row["predicted_bytes"]  # gloo's own messages
        assert row["same_bits"]
        assert row["min"] <= row["milliseconds"] <= row["max"]
        assert row["limit"] == pytest.approx(1e3 * 8 * row["busiest_bytes"] / bits)
    assert rows["gather"]["sent_bytes"] < rows["float"]["sent_bytes"] / 15
    assert set(rows["gather"]["stages"]) == {"scales", "encode", "wire", "decode"}
    assert rows["gather"]["speed_over_float"] == rows["float"]["milliseconds"] / rows["gather"]["milliseconds"]
    table = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(rows)
    assert len({line.count("|") for line in table}) == 1
    drawn = run(str(file), "--plot", str(figure), module="exchange.plot")
    assert [line.split("|")[4].strip() for line in drawn.stdout.splitlines()[2:]] == [f"`{name}`" for name in rows]
    assert figure.stat().st_size > 10_000


@pytest.mark.netlab
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hosts", "1"], "--hosts: '1': must be an integer from 2 to 64"),
        (["--rates", "fast"], "rate='fast': must be a number and bit"),
        (["--repeats", "1"], "--repeats: '1': must be an integer, 5 or more"),
        (["--elements", "few"], "'few': must be an integer, or a power"),
        (["--exchanges", "pigeon"], "invalid choice: 'pigeon'"),
        (["--torch", "/nonexistent"], "--torch=/nonexistent: must be a Python with torch and NumPy"),
        (["--json", "/nonexistent/file.json"], "/nonexistent/file.json: cannot be written"),
    ],
)
def test_mistakes_are_told_in_a_line(arguments: list[str], message: str):
    done = run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]


def test_gradients_have_the_elements_that_were_asked_for():
    assert shapes.shapes_of(str(2**20)) == ((1024, 1024),)
    assert shapes.shapes_of(str(2**23)) == ((1024, 1024),) * 8
    assert shapes.shapes_of("600") == ((24, 25),)
    assert shapes.count_elements(shapes.shapes_of("alexnet")) == 61_100_840


def test_an_estimate_is_plausible_if_it_is_unbiased_up_to_chance():
    assert shapes.is_plausible(0.99, 1.0, 2**20)
    assert shapes.is_plausible(1.2, 1.0, 100)
    assert not shapes.is_plausible(0.5, 1.0, 2**20)
    assert not shapes.is_plausible(1.0, float("nan"), 2**20)


def test_a_biased_estimate_is_plausible_if_it_points_the_way():
    assert shapes.is_plausible(0.01, 1.0, 2**20, is_biased=True)
    assert not shapes.is_plausible(-0.01, 1.0, 2**20, is_biased=True)
    assert not shapes.is_plausible(0.01, float("inf"), 2**20, is_biased=True)


def test_bytes_and_seconds_leave_out_barriers_and_the_first_repeat(monkeypatch: pytest.MonkeyPatch):
    sent, order = [0], []

    def send(size: int, name: str) -> None:
        sent[0] += size
        order.append(name)

    monkeypatch.setattr(worker, "interface_bytes", lambda: Counters(sent[0], 2 * sent[0], sent[0] // 10))
    found = worker.measure(lambda: send(1000, "run"), lambda: send(7, "refill"), lambda: send(10, "barrier"), 3)
    assert found["sent"] == (1000, 1000, 1000)
    assert found["received"] == (2000, 2000, 2000)
    assert found["payload"] == (1000 - 66 * 100,) * 3
    assert len(found["seconds"]) == 3
    assert order[-5:] == ["refill", "barrier", "barrier", "run", "barrier"]


def test_digest_is_of_bits():
    zeros = np.zeros(3, np.float32)
    assert worker.digest([zeros]) == worker.digest([zeros.copy()]) != worker.digest([-zeros])


def test_a_repeat_lasts_until_the_slowest_host_and_torch_is_without_its_backward():
    answers = [
        {
            "seconds": [1.0, 4.0, 2.0],
            "alone": [0.5, 0.5, 0.5],
            "sent": [10, 10, 90],
            "received": [1, 1, 1],
            "payload": [7, 8, 9],
        },
        {
            "seconds": [3.0, 1.0, 2.0],
            "alone": [0.5, 1.0, 0.1],
            "sent": [20, 20, 20],
            "received": [30, 30, 30],
            "payload": [3, 4, 5],
        },
    ]
    combined = team.combine([{**answer, "peak_bytes": 5} for answer in answers])
    assert (combined["milliseconds"], combined["min"], combined["max"]) == (2500.0, 1500.0, 3500.0)
    assert (combined["sent_bytes"], combined["busiest_bytes"]) == (20, 30)
