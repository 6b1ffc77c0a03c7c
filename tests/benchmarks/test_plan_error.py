"""benchmarks.exchange.plan_error finds again the speed that a record was made with, and foretells the rest of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.exchange import plan_error
from benchmarks.exchange.shapes import count_elements, shapes_of
from jaxtern import Network
from jaxtern.compression.network.links import maximum
from jaxtern.compression.radix.buckets import BUCKET_SIZE
from jaxtern.planning.model import Placement, QuantizerSpeed, StepTime, predict_step

ROOT = Path(__file__).resolve().parents[2]

SPEED = QuantizerSpeed(0.0, 6e-11, 2e-10, 4e-11, 3.5e-11, 3e-11, 4e-10, 1.2e-10)
RATES = {"100mbit": 12.5e6, "1gbit": 125e6}


def predict(row: dict, speed: QuantizerSpeed, bucket_size: int | None) -> StepTime:
    """One of so many hosts on two cores."""
    network = Network(1e-4, RATES[row["rate"]] * plan_error.PAYLOAD)
    own = plan_error.scaled(speed, max(1.0, row["hosts"] / 2))
    return predict_step(plan_error.method(row, own, bucket_size), Placement(row["hosts"]), network, 0.0)


def make_row(hosts: int, rate: str, size: str, exchange: str) -> dict:
    """What the laboratory would write if the model were the truth, on two cores."""
    sizes, speed = tuple(count_elements((shape,)) for shape in shapes_of(size)), plan_error.scaled(SPEED, hosts / 2)
    network, n = Network(1e-4, RATES[rate] * plan_error.PAYLOAD), sum(sizes)
    row = {"hosts": hosts, "rate": rate, "size": size, "elements": n, "library": "jaxtern", "exchange": exchange}
    time, whole = predict(row, SPEED, None), predict(row, SPEED, BUCKET_SIZE)
    row["milliseconds"] = 1e3 * whole.total
    if exchange == "float":
        return row
    scales = network.seconds(maximum(len(sizes), hosts))
    shard = n * {"scatter": speed.sum_row, "two_way": speed.mean_row}.get(exchange, 0.0)
    rows = hosts if exchange == "gather" else 1
    seconds = {
        "scales": n * speed.scales + scales,
        "encode": n * speed.encode,
        "wire": time.wire - scales + shard,
        "decode": n * (speed.decode + rows * speed.decode_row),
    }
    return row | {"stages": {name: 1e3 * value for name, value in seconds.items()}}


@pytest.fixture
def record(tmp_path: Path) -> Path:
    rows = [
        make_row(hosts, rate, size, exchange)
        for hosts in (2, 4)
        for rate in RATES
        for size in ("1048576", "alexnet")
        for exchange in ("float", "gather", "sum", "scatter", "two_way")
    ]
    rows += [{"library": "torch", "exchange": "fp16", "milliseconds": 1.0}, {"library": "jaxtern", "error": "lost"}]
    rows += [{"library": "jaxtern", "exchange": "low_rank 1", "milliseconds": 1.0}]  # not of ternary words
    (tmp_path / "exchange.json").write_text(json.dumps({"rows": rows}))
    return tmp_path / "exchange.json"


def run(*arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "benchmarks.exchange.plan_error", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_plan_error_is_nothing_where_the_model_is_the_truth(record: Path):
    done = run(record)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(
        "fitted at 2 hosts, 1gbit, 61,100,840 elements; ns an element: flatten 0.000, scales 0.060"
    )
    rows = [line for line in lines if line.startswith(("| 2", "| 4"))]
    assert len(rows) == 40
    assert all(row.endswith(("| +0 |", "| -0 |")) for row in rows)
    assert sum(" * |" in row for row in rows) == 5
    assert lines[-1] == "35 foretold: median error 0 %, worst 0 %, within 20 %: 35"


@pytest.mark.slow
def test_plan_error_foretells_training_steps_from_those_without_a_mean(record: Path, tmp_path: Path):
    sizes = plan_error.sizes_of_model("lenet")
    assert sum(sizes) == 1_256_080
    place = {"hosts": 4, "rate": "1gbit", "model": "lenet", "elements": sum(sizes)}
    more = predict(place | {"exchange": "gather"}, SPEED, BUCKET_SIZE).total
    rows = [
        place | {"variant": "none", "exchange": "", "milliseconds": 30.0},
        place | {"variant": "ternary", "exchange": "gather", "milliseconds": 2 * (30.0 + 1e3 * more)},
        place | {"variant": "delayed", "exchange": "gather", "milliseconds": 1.0},
    ]
    (tmp_path / "training.json").write_text(json.dumps({"rows": rows}))
    done = run(record, "--training", tmp_path / "training.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "1 foretold: median error 50 %, worst 50 %, within 20 %: 0"


@pytest.mark.slow
def test_plan_error_says_what_is_missing(record: Path, tmp_path: Path):
    content = json.loads(record.read_text())
    content["rows"] = [row for row in content["rows"] if row.get("exchange") != "two_way"]
    record.write_text(json.dumps(content))
    done = run(record)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "plan_error: no rows of two_way in the configuration to be fitted\n"
    assert run(tmp_path / "nothing.json").returncode == 2
