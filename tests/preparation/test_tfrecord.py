"""Shards of tf.Example records as the originals write them."""

import io
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tensorflow_datasets.proto import tf_example_pb2, tf_feature_pb2

from jaxtern.preparation.detection import Reading
from jaxtern.preparation.pipeline import prepare
from jaxtern.preparation.plan import Options
from jaxtern.preparation.tfrecord import open_tfrecords

NAMES = ("ant", "bee", "cow")


def feature(values: object) -> tf_feature_pb2.Feature:
    values = values if isinstance(values, list) else [values]
    if values and isinstance(values[0], int):
        return tf_feature_pb2.Feature(int64_list=tf_feature_pb2.Int64List(value=values))
    if values and isinstance(values[0], float):
        return tf_feature_pb2.Feature(float_list=tf_feature_pb2.FloatList(value=values))
    encoded = [value.encode() if isinstance(value, str) else value for value in values]
    return tf_feature_pb2.Feature(bytes_list=tf_feature_pb2.BytesList(value=encoded))


def write_records(path: Path, examples: list[dict]) -> None:
    """The format, written from its description: length, its checksum, the record, its checksum."""
    with path.open("wb") as file:
        for example in examples:
            features = {f"image/{key}": feature(value) for key, value in example.items()}
            record = tf_example_pb2.Example(features=tf_feature_pb2.Features(feature=features)).SerializeToString()
            file.write(struct.pack("<QI", len(record), 0) + record + bytes(4))


def make_example(make, number: int, first: int = 0, **more: object) -> dict:
    label = number % 3
    fixed = {"encoded": make.jpeg(number), "class/label": label + first, "filename": f"{number}.JPEG", "format": "JPEG"}
    return fixed | {"class/text": NAMES[label]} | more


@pytest.mark.parametrize(
    "files",
    [
        {"train": ["train-00000-of-00002", "train-00001-of-00002"], "validation": ["validation-00000-of-00001"]},
        {"train": ["toy_train.tfrecord"], "test": ["toy_test.tfrecord"]},
        {"train": ["x-train.tfrecord-00000-of-00001"], "validation": ["x-val.tfrecord-00000-of-00001"]},
    ],
)
@pytest.mark.parametrize("offset", [0, -1])
def test_records_come_back_once(tmp_path: Path, make, read_back, read_class_names, files: dict, offset: int):
    source = tmp_path / "records"
    source.mkdir()
    (source / "labels.txt").write_text("not a record")
    expected, number = {}, 0
    for split, names in files.items():
        expected[split] = {}
        for name in names:
            examples = [make_example(make, number + i, -offset) for i in range(6)]
            write_records(source / name, examples)
            for row, example in enumerate(examples):
                expected[split][f"{name}/{row:05d} {example['filename']}"] = example
            number += 6
    prepare(source, tmp_path / "out", Reading(label_offset=offset))
    found = read_back(tmp_path / "out")
    assert read_class_names(tmp_path / "out") == list(NAMES)
    assert {split: {name: (e.label, e.image) for name, e in inside.items()} for split, inside in found.items()} == {
        split: {name: (e["class/label"] + offset, e["encoded"]) for name, e in inside.items()}
        for split, inside in expected.items()
    }


def test_records_without_names_and_with_png(tmp_path: Path, make, read_back, read_class_names):
    source = tmp_path / "records"
    source.mkdir()
    for name in ("train.tfrecord", "test.tfrecord"):
        examples = [{"encoded": make.png(i, channels=1), "class/label": i % 2, "format": "png"} for i in range(4)]
        write_records(source / name, examples)
    prepare(source, tmp_path / "out")
    assert read_class_names(tmp_path / "out") == ["0", "1"]
    examples = read_back(tmp_path / "out", decode=True)
    np.testing.assert_array_equal(examples["train"]["train.tfrecord/00002"].image, make.pixels(2, channels=1))


def make_raw(make, number: int, depth: int = 3, **more: object) -> dict:
    """As TernGrad's raw_pixel has it."""
    pixels = make.pixels(number, channels=depth)
    sides = dict(zip(("height", "width", "channels"), pixels.shape, strict=True))
    return make_example(make, number, encoded=pixels.tobytes(), format="RAW", **(sides | more))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("raw_pixels", [False, True])
def test_records_of_raw_pixels_come_back_without_loss(tmp_path: Path, make, read_back, channels: int, raw_pixels: bool):
    source = tmp_path / "records"
    source.mkdir()
    for split in ("train", "validation"):
        write_records(source / f"{split}-00000-of-00001", [make_raw(make, i, channels) for i in range(6)])
    prepare(source, tmp_path / "out", options=Options(raw_pixels=raw_pixels))
    examples = read_back(tmp_path / "out", decode=True)["train"]
    for i in range(6):
        image = examples[f"train-00000-of-00001/{i:05d} {i}.JPEG"].image
        np.testing.assert_array_equal(image, make.pixels(i, channels=channels))


@pytest.mark.parametrize("wrong", [{"height": 13}, {"channels": 1}, {"width": 8, "channels": 6}, {"height": []}])
def test_records_of_raw_pixels_of_another_length_are_refused(tmp_path: Path, make, wrong: dict):
    source = tmp_path / "records"
    source.mkdir()
    write_records(source / "train.tfrecord", [make_raw(make, 0), make_raw(make, 1), make_raw(make, 2, **wrong)])
    with pytest.raises(
        ValueError, match=r"train\.tfrecord: record 2: .* RAW and has 576 bytes, but its height"
    ) as caught:
        prepare(source, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_records_boxes_come_back(tmp_path: Path, make, read_back: Callable):
    source = tmp_path / "records"
    source.mkdir()
    edges = {"xmin": [0.25, 0.5], "ymin": [0.0, 0.5], "xmax": [0.75, 0.5], "ymax": [0.5, 1.0]}
    boxes = {f"object/bbox/{edge}": values for edge, values in edges.items()}
    examples = [make_example(make, i, **(boxes if i == 1 else {}), **{"class/synset": f"n{i % 3}"}) for i in range(3)]
    for split in ("train", "validation"):
        write_records(source / f"{split}-00000-of-00001", examples)
    report = prepare(source, tmp_path / "out")
    found = {name: e.boxes for name, e in read_back(tmp_path / "out")["train"].items()}
    assert found["train-00000-of-00001/00001 1.JPEG"] == [[0.0, 0.25, 0.5, 0.75]]
    assert sum(map(len, found.values())) == 1
    assert report.remarks == ("2 boxes without area dropped",)


def test_records_that_are_not_as_they_must_be_are_refused(tmp_path: Path, make):
    def refuse(examples: list[dict], words: str, offset: int = 0, cut: int | None = None) -> None:
        source = tmp_path / "records"
        source.mkdir(exist_ok=True)
        write_records(source / "train.tfrecord", examples)
        content = (source / "train.tfrecord").read_bytes()
        (source / "train.tfrecord").write_bytes(content[:cut])
        with pytest.raises(ValueError, match=words):
            prepare(source, tmp_path / "out", Reading(label_offset=offset))

    good = [make_example(make, i) for i in range(3)]
    refuse(good, r"train\.tfrecord: is cut short", cut=-1)
    refuse(good, r"train\.tfrecord: is cut short", cut=7)
    refuse(good, "label 0, less than 0 with label_offset=-1", offset=-1)
    refuse([make_example(make, i, 1) for i in range(3)], "no label 0; where labels start at 1, set --label_offset=-1")
    refuse([*good, good[0] | {"class/label": 10**12}], "has label 1000000000000, but only 4 images")
    refuse([good[0], good[1] | {"class/label": 3}], "has label 3, but only 2 images")
    refuse([*good, {"encoded": b"x"}], "record 3 has no image/class/label")
    refuse([], "hold no records")
    (tmp_path / "records" / "train.tfrecord").write_bytes(struct.pack("<QI", 3, 0) + b"\xff\xff\xff" + bytes(4))
    with pytest.raises(ValueError, match=r"record 0 is no tf\.Example"):
        prepare(tmp_path / "records", tmp_path / "out")


def test_a_record_without_image_is_left_out_and_named(tmp_path: Path, make, caplog: pytest.LogCaptureFixture):
    source = tmp_path / "records"
    source.mkdir()
    write_records(source / "train.tfrecord", [*(make_example(make, i) for i in range(3)), {"class/label": 0}])
    report = prepare(source, tmp_path / "out", max_bad=1)
    assert report.splits[0].left_out == 1
    assert "train.tfrecord/00003: left out: its record has no image/encoded" in caplog.text


def test_the_search_for_labels_is_seen_on_a_terminal(tmp_path: Path, make, monkeypatch: pytest.MonkeyPatch):
    source = tmp_path / "records"
    source.mkdir()
    for split in ("train", "test"):
        write_records(source / f"{split}.tfrecord", [make_example(make, i) for i in range(6)])
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    open_tfrecords(source, label_offset=0)
    last = terminal.getvalue().split("\r")[-1]
    assert re.match(r"looking for labels: 100%\|.*\| ([\d.]+k)/\1 ", last)
