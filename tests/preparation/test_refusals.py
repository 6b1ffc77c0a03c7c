"""What a preparation does not begin, or does not touch: other plans, sources, folders and values than it can take."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxtern.preparation import workers
from jaxtern.preparation.detection import Reading
from jaxtern.preparation.pipeline import prepare
from jaxtern.preparation.plan import Options

CLASSES = ("ant", "bee")
OPTIONS = Options(name="toy", shards=6)  # those of the dataset `straight`


class Killed(Exception):
    pass


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shards": 3}, r"shards is \{'train': 6, 'test': 6\} there and \{'train': 3, 'test': 3\} here"),
        ({"seed": 1}, "seed is 0 there and 1 here"),
        ({"quality": 90}, "quality is 95 there and 90 here"),
        ({"resize_shortest": 12}, "resize_shortest is None there and 12 here"),
        ({"name": "other"}, "name is toy there and other here"),
    ],
)
def test_another_plan_is_refused_and_changes_nothing(source: Path, straight: Path, snapshot, change: dict, words: str):
    before = snapshot(straight)
    with pytest.raises(ValueError, match=f"holds another preparation .*{words}"):
        prepare(source, straight, options=dataclasses.replace(OPTIONS, **change))
    assert snapshot(straight) == before


@pytest.mark.parametrize("change", ["a new file", "a size"])
def test_another_source_is_refused(make, source: Path, straight: Path, change: str):
    changed = next((source / "train" / "ant").iterdir())
    if change == "a size":
        changed.write_bytes(changed.read_bytes() + b" ")
    else:
        make.folder(source, {"train/ant/new.jpg": make.jpeg(1)})
    with pytest.raises(ValueError, match="the source's list of images and labels is not the same"):
        prepare(source, straight, options=OPTIONS)


def test_a_folder_of_something_else_is_refused(tmp_path: Path, source: Path, snapshot: Callable):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match=r"holds something else \(thesis\.tex"):
        prepare(source, tmp_path / "out")
    with pytest.raises(ValueError, match="is no folder"):
        prepare(source, tmp_path / "file")
    with pytest.raises(ValueError, match="lies in SOURCE"):
        prepare(source, source / "out")
    assert list(snapshot(tmp_path / "out")) == ["thesis.tex"]


def test_two_at_once_are_refused(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch):
    messages = []

    def write_shard(*_):
        with pytest.raises(ValueError, match="another process is preparing there") as caught:
            prepare(source, tmp_path / "out", options=OPTIONS)
        messages.append(str(caught.value))
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(workers, "write_shard", write_shard)
        with pytest.raises(Killed):
            prepare(source, tmp_path / "out", options=OPTIONS)
    assert len(messages) == 1
    prepare(source, tmp_path / "out", options=OPTIONS)


def test_a_source_of_nothing_but_damage_is_refused(tmp_path: Path, make):
    source = make.folder(tmp_path / "source", {f"{s}/{c}/1.jpg": b"x" for s in ("train", "test") for c in CLASSES})
    with pytest.raises(ValueError, match=r"none of its images can be decoded; .*/1\.jpg is no image"):
        prepare(source, tmp_path / "out", max_bad=9)
    for c in CLASSES:
        (source / "train" / c / "1.jpg").write_bytes(make.jpeg(1))
    with pytest.raises(ValueError, match="no image of split test can be decoded"):
        prepare(source, tmp_path / "out", max_bad=9)


def test_more_shards_than_images_are_refused(tmp_path: Path, source: Path):
    with pytest.raises(ValueError, match="shards=13: split test has only 12 images"):
        prepare(source, tmp_path / "out", options=Options(shards=13))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("shards", 0, "shards=0: must be 1 or more"),
        ("quality", 101, "quality=101: must be from 1 to 100"),
        ("resize_shortest", 0, "resize_shortest=0: must be 1 or more"),
        ("seed", -1, "seed=-1: must be from 0"),
        ("name", "My Data", "name='My Data': must be small letters"),
    ],
)
def test_options_out_of_range_are_refused(field: str, value: object, words: str):
    with pytest.raises(ValueError, match=words):
        Options(**{field: value})


def test_numbers_out_of_range_are_refused(tmp_path: Path, source: Path):
    for name, value in (("workers", 0), ("max_bad", -1)):
        with pytest.raises(ValueError, match=f"{name}={value}: must be"):
            prepare(source, tmp_path / "out", **{name: value})
    for value in (-0.1, 1.0):
        with pytest.raises(ValueError, match=f"validation_fraction={value}: must be from 0 to less than 1"):
            Reading(validation_fraction=value)
    with pytest.raises(ValueError, match="format='hdf5': must be one of idx, cifar, imagenet, images"):
        Reading(format="hdf5")
