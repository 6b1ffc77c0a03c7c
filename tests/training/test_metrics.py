"""Where numbers go: metrics.jsonl reads as if never interrupted, TensorBoard gets the same."""

import json
import resource
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event

from jaxtern.training import LOSSES, WRITERS
from jaxtern.training.run import loop
from jaxtern.training.run.metrics import MetricWriter, read_metrics
from jaxtern.training.saved.trees import digest


def read_summaries(folder: Path) -> list[tuple[int, Any]]:
    """(step, value) of all summaries; a record is its length, a checksum, the event, a checksum."""
    summaries = []
    for path in sorted(folder.glob("events.*")):
        raw, place = path.read_bytes(), 0
        while place < len(raw):
            (length,) = struct.unpack_from("<Q", raw, place)
            event = Event.FromString(raw[place + 12 : place + 12 + length])
            summaries += [(event.step, value) for value in event.summary.value]
            place += 16 + length
    return summaries


def read_events(folder: Path) -> list[tuple[int, str, float]]:
    """(step, tag, value) of all scalars."""
    found = read_summaries(folder)
    return [(step, value.tag, value.simple_value) for step, value in found if value.HasField("simple_value")]


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


@pytest.mark.few("True")
@pytest.mark.parametrize("log_compression", [False, True])
def test_metrics_of_a_run_are_those_of_tensorboard(prepare: Callable, tmp_path: Path, log_compression: bool):
    run = prepare(num_steps=4, log_every=2, evaluate_every=2, statistics=log_compression)
    loop.train(run)
    names = {"loss", "accuracy", "learning_rate", "examples_per_second"}
    names |= {"sent_bits_per_element", "sent_bytes_per_step", "steps_per_second", "loss/cross_entropy"}
    names |= {"gradient_norm", "weight_norm", "coded_bits_per_element"}
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
        assert record["examples_per_second"] == pytest.approx(8 * record["steps_per_second"])
        assert record["steps_per_second"] > 0
        assert record["sent_bits_per_element"] == run.wires[1].bits_per_element
        assert record["sent_bytes_per_step"] == run.wires[1].bytes


def test_metrics_tell_the_parts_of_a_loss_and_the_norms(
    prepare: Callable, tmp_path: Path, capsys: pytest.CaptureFixture
):
    run = prepare(num_steps=1, weight_decay=0.5, evaluate_every=0)
    squares = [np.sum(np.square(leaf, dtype=np.float64)) for leaf in jax.tree.leaves(jax.device_get(run.state.params))]
    kernels = [np.sum(np.square(layer["kernel"], dtype=np.float64)) for layer in run.state.params.values()]
    loop.train(run)
    record, tested = read_metrics(tmp_path / "run")
    assert record["loss/weight_decay"] == pytest.approx(0.25 * sum(kernels), rel=1e-5)
    assert record["loss"] == pytest.approx(record["loss/cross_entropy"] + record["loss/weight_decay"], rel=1e-6)
    assert record["weight_norm"] == pytest.approx(np.sqrt(sum(squares)), rel=0.05)  # it is that after the step
    after = jax.tree.leaves(jax.device_get(run.state.params))
    norm = np.sqrt(sum(np.sum(np.square(leaf, dtype=np.float64)) for leaf in after))
    assert record["weight_norm"] == pytest.approx(norm, rel=1e-5)
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step")]
    parts = f"(cross entropy {record['loss/cross_entropy']:.4f}, weight decay {record['loss/weight_decay']:.4f})"
    assert said[0].startswith(f"step 1: loss {record['loss']:.4f} {parts}, accuracy ")
    assert said[1].startswith(f"step 1: test loss {tested['test/loss']:.4f} (cross entropy), precision@1 ")


def test_metrics_have_the_norm_of_the_mean_gradient(take_steps: Callable):
    fields = {"method": "float", "optimizer": "sgd", "learning_rate": 1.0, "num_workers": 2, "batch_size": 16}
    run = take_steps(1, **fields)
    moved = jax.tree.map(np.subtract, run.states[0].params, run.states[1].params)
    norm = np.sqrt(sum(np.sum(np.square(leaf, dtype=np.float64)) for leaf in jax.tree.leaves(moved)))
    assert run.metrics[0]["gradient_norm"] == pytest.approx(norm, rel=1e-4)


def test_tensorboard_has_the_recipe_and_the_first_inputs(prepare: Callable, tmp_path: Path):
    run = prepare(num_steps=1, evaluate_every=0, batch_size=8)
    loop.train(run)
    found = {value.tag: value for step, value in read_summaries(tmp_path / "run" / "tensorboard") if step == 0}
    image = found["inputs"].image
    assert (image.height, image.width) == (2 * 8, 4 * 8)
    (text,) = found["recipe/text_summary"].tensor.string_val
    assert b"    run.num_steps = 1\n" in text
    assert "_hparams_/session_start_info" in found
    assert b"optimizer.learning_rate" in found["_hparams_/experiment"].metadata.plugin_data.content


def test_tensorboard_has_a_channel_of_inputs_that_have_neither_one_nor_three(prepare: Callable, tmp_path: Path):
    made = {"data": "synthetic", "synthetic_shape": (6, 6, 5), "synthetic_examples": 32}
    loop.train(prepare(num_steps=1, evaluate_every=0, batch_size=8, **made))
    (image,) = (v.image for _, v in read_summaries(tmp_path / "run" / "tensorboard") if v.tag == "inputs")
    assert (image.height, image.width) == (2 * 6, 4 * 6)


@pytest.mark.slow
def test_histograms_are_of_weights_and_mean_gradients_where_they_are_due(prepare: Callable, tmp_path: Path):
    """They change no bit."""
    fields = {"num_steps": 4, "steps_per_call": 2, "evaluate_every": 0, "log_every": 4, "num_workers": 2}
    plain = prepare(tmp_path / "plain", **fields)
    loop.train(plain)
    run = prepare(**fields, histograms_every=2)
    loop.train(run)
    assert digest(jax.device_get(run.state)) == digest(jax.device_get(plain.state))
    summaries = read_summaries(tmp_path / "run" / "tensorboard")
    found = {(step, value.tag): value.histo for step, value in summaries if value.HasField("histo")}
    assert {step for step, _ in found} == {2, 4}
    assert {tag for _, tag in found} >= {"weights/fc1/kernel", "gradients/fc2/bias"}
    kernel = np.asarray(run.state.params["fc2"]["kernel"])
    histogram = found[4, "weights/fc2/kernel"]
    assert (histogram.min, histogram.max, histogram.num) == (kernel.min(), kernel.max(), kernel.size)
    counts, limits = np.histogram(kernel.astype(np.float64), bins=64)
    np.testing.assert_allclose(histogram.bucket_limit, limits[1:], rtol=1e-5, atol=1e-7)
    assert np.abs(np.cumsum(histogram.bucket) - np.cumsum(counts)).max() <= 2  # rounding at the limits
    record = next(r for r in read_metrics(tmp_path / "run") if r["step"] == 4 and "zeros/weights/fc2/bias" in r)
    bias = np.asarray(run.state.params["fc2"]["bias"])
    assert record["zeros/weights/fc2/bias"] == pytest.approx(np.mean(bias == 0))
    assert 0 <= record["zeros/gradients/fc2/kernel"] < 1


def test_own_loss_and_own_writer_serve_a_run(prepare: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen = []

    def open_own(workdir: Path, recipe: dict) -> Callable:
        assert (workdir, recipe["model"]["loss"]) == (tmp_path / "run", "mine")
        return lambda step, scalars: seen.append({"step": step, **scalars})

    def mine(logits: jax.Array, targets: jax.Array) -> dict[str, jax.Array]:
        right = jax.nn.one_hot(targets, 10)
        return {"loss": ((logits - right) ** 2).mean(axis=-1), "surprise": logits.max(axis=-1)}

    monkeypatch.setitem(WRITERS, "mine", open_own)
    monkeypatch.setitem(LOSSES, "mine", mine)
    run = prepare(num_steps=2, log_every=1, loss="mine", num_workers=2, accumulation=2, batch_size=8)
    result = loop.train(run)
    assert seen == read_metrics(tmp_path / "run")
    assert [record["step"] for record in seen] == [1, 2, 2]
    for record in seen[:2]:
        assert record["loss"] == record["loss/mine"] < 1  # a cross-entropy is above 2
        assert "metrics/surprise" in record
    assert seen[2]["test/loss"] == result.loss < 1
    assert seen[2]["test/metrics/surprise"] == result.own["metrics/surprise"]
