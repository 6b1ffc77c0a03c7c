"""Where numbers go: metrics.jsonl reads as if never interrupted, TensorBoard gets the same."""

import json
import resource
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from jaxtern.training.run import loop
from jaxtern.training.run.metrics import MetricWriter, read_metrics


def read_events(folder: Path) -> list[tuple[int, str, float]]:
    """(step, tag, value) of all scalars; a record is its length, a checksum, the event, a checksum."""
    scalars = []
    for path in sorted(folder.glob("events.*")):
        raw, place = path.read_bytes(), 0
        while place < len(raw):
            (length,) = struct.unpack_from("<Q", raw, place)
            event = Event.FromString(raw[place + 12 : place + 12 + length])
            scalars += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
            place += 16 + length
    return scalars


def write(workdir: Path, first_step: int, *steps: int) -> None:
    writer = MetricWriter(workdir, first_step)
    for step in steps:
        writer.write(step, {"loss": 1 / step})
    writer.close()


def test_metrics_come_back_as_written(tmp_path: Path):
    write(tmp_path, 0, 1, 2, 3)
    assert read_metrics(tmp_path) == [{"step": step, "loss": 1 / step} for step in (1, 2, 3)]
    assert read_events(tmp_path / "tensorboard") == [(step, "loss", pytest.approx(1 / step)) for step in (1, 2, 3)]


def test_metrics_after_the_step_of_a_resumed_run_are_dropped(tmp_path: Path):
    write(tmp_path, 0, 1, 2, 3, 4)
    write(tmp_path, 2, 3)
    assert [record["step"] for record in read_metrics(tmp_path)] == [1, 2, 3]
    write(tmp_path, 0, 1)
    assert [record["step"] for record in read_metrics(tmp_path)] == [1]


LINES = {
    "cut short": [b'{"step": 4, "lo', b"{", b'{"step": 4, "loss": 0.2'],
    "not UTF-8": [b"\xff\xfe{}", b'{"step": 4, "\x80": 1}'],
    "no object": [b"5", b"null", b"[]", b'"step"', b"[" * 100_000, b"9" * 5000, bytes(100)],
    "no step": [b"{}", b'{"step": null}', b'{"step": "4"}', b'{"step": 4.0}', b'{"step": true}'],
    "no number": [b'{"step": 4, "loss": "low"}', b'{"step": 4, "loss": null}', b'{"step": 4, "loss": [1]}'],
}


@pytest.mark.parametrize("kind", LINES)
def test_metrics_that_are_no_records_as_after_a_kill_are_dropped(tmp_path: Path, kind: str):
    write(tmp_path, 0, 1, 2, 3)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b"\n".join(LINES[kind]))
    assert [record["step"] for record in read_metrics(tmp_path)] == [1, 2, 3]
    write(tmp_path, 3, 4)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4]


def test_metrics_of_a_new_folder_are_none(tmp_path: Path):
    assert read_metrics(tmp_path) == []


def test_metrics_that_cannot_be_written_are_an_error_and_no_wait(tmp_path: Path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = MetricWriter(tmp_path, 0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**15, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):  # noqa: PT012
            for step in range(10_000):  # events are longer than records, and so meet the limit first
                writer.write(step, {"loss": 1.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    writer.close()
    assert (tmp_path / "metrics.jsonl").stat().st_size < 2**15


@pytest.mark.parametrize("log_compression", [False, True])
def test_metrics_of_a_run_are_those_of_tensorboard(prepare: Callable, tmp_path: Path, log_compression: bool):
    run = prepare(num_steps=4, log_every=2, evaluate_every=2, statistics=log_compression)
    loop.train(run)
    names = {"loss", "accuracy", "learning_rate", "examples_per_second"}
    names |= {"sent_bits_per_element", "sent_bytes_per_step"}
    if log_compression:
        names |= {"compression/zero_fraction", "compression/error", "compression/cosine"}
    tests = {f"test/{name}" for name in ("loss", "precision_at_1", "recall_at_5", "num_examples")}
    records = read_metrics(tmp_path / "run")
    assert [(record["step"], set(record) - {"step"}) for record in records] == [
        (2, names),
        (2, tests),
        (4, names),
        (4, tests),
    ]
    expected = {(r["step"], name): value for r in records for name, value in r.items() if name != "step"}
    events = {(step, tag): value for step, tag, value in read_events(tmp_path / "run" / "tensorboard")}
    assert events == {key: pytest.approx(value, rel=1e-6) for key, value in expected.items()}
    for record in (records[0], records[2]):
        assert record["learning_rate"] == pytest.approx(0.01)
        assert record["examples_per_second"] > 0
        assert record["sent_bits_per_element"] == run.wires[1].bits_per_element
        assert record["sent_bytes_per_step"] == run.wires[1].bytes
