"""A prepared folder gives back every example, or says in one line what is wrong with it."""

import importlib.util
import json
import pickle
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds

from jaxtern.data.dataset import Split
from jaxtern.data.feed import load_split
from jaxtern.data.records import open_folder, require_apart
from jaxtern.data.sources import load_dataset


def test_prepared_folder_gives_every_example_back(stamps: tuple):
    folder, images, labels = stamps
    dataset = load_dataset(str(folder), None)
    assert (dataset.train.size, dataset.test.size, dataset.num_classes) == (19, 6, 3)
    assert dataset.train.image_shape == (None, None, 1)
    for split, first in ((dataset.train, 0), (dataset.test, 19)):
        loaded = load_split(split, threads=2)
        np.testing.assert_array_equal(loaded.images, images[first : first + split.size])
        np.testing.assert_array_equal(loaded.labels, labels[first : first + split.size])
        assert (loaded.images.dtype, loaded.labels.dtype) == (np.uint8, np.int32)


def test_record_holds_the_bytes_that_were_written(photos: Path, make_photo: Callable):
    """Features that training does not know, such as `boxes`, are left out."""
    train = open_folder(photos).train
    record = train.read(5)
    assert record.image == make_photo(5, 55, 80)
    assert record.label == 2
    assert train.describe(5) == f"{photos}: train example 5 (train/5.jpg)"


def test_records_can_be_read_in_another_process(photos: Path):
    train = open_folder(photos).train
    again = pickle.loads(pickle.dumps(train))
    assert [again.read(n).image for n in (0, 22)] == [train.read(n).image for n in (0, 22)]


def test_raw_pixels_are_read_as_they_are(write_folder: Callable, tmp_path: Path):
    images = np.random.default_rng(0).integers(0, 256, (5, 4, 6, 3), np.uint8)
    feature = tfds.features.Tensor(shape=(4, 6, 3), dtype=np.uint8)
    examples = [(image, n % 2, ()) for n, image in enumerate(images)]
    folder = write_folder(tmp_path / "raw", {"train": examples, "test": examples[:2]}, feature)
    dataset = open_folder(folder)
    assert dataset.train.image_shape == (4, 6, 3)
    np.testing.assert_array_equal(load_split(dataset.train, 1).images, images)


def test_split_to_evaluate_on_is_test_then_validation_or_the_one_asked_for(photos: Path, stamps: tuple):
    assert open_folder(photos).test.size == 7
    assert open_folder(stamps[0]).test.size == 6
    assert open_folder(stamps[0], test_split="train").test.size == 19


def test_parts_of_a_split_are_what_tfds_makes_of_them(stamps: tuple):
    folder, images, _ = stamps
    dataset = open_folder(folder, "train[:12]", "train[12:]")
    np.testing.assert_array_equal(load_split(dataset.train, 1).images, images[:12])
    np.testing.assert_array_equal(load_split(dataset.test, 1).images, images[12:19])


def test_dataset_of_more_shards_than_files_may_be_open_raises_the_limit_or_says_so(
    write_folder: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    examples = [(np.zeros((2, 2, 1), np.uint8), 0, ()) for _ in range(40)]
    image = tfds.features.Tensor(shape=(2, 2, 1), dtype=np.uint8)
    folder = write_folder(tmp_path / "made", {"train": examples, "test": examples[:1]}, image, shards=40)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    set_limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: set_limits.append(limits))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, hard))
    assert open_folder(folder).train.size == 40
    assert set_limits == [(40 + 40 + 128, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 150))
    with pytest.raises(ValueError, match="80 shards need as many open files, of which 150 are allowed"):
        open_folder(folder)


def forget(folder: Path, pattern: str) -> None:
    for path in folder.glob(pattern):
        path.unlink()


def cut(folder: Path) -> None:
    path = next(folder.glob("*train*00001-of*"))
    path.write_bytes(path.read_bytes()[:-1000])


def swap(folder: Path) -> None:
    """A shard of another split, and so of another length."""
    shutil.copy(next(folder.glob("*validation*00001-of*")), next(folder.glob("*train*00001-of*")))


HARMS = {
    "no description": (lambda folder: forget(folder, "dataset_info.json"), "preparation was not finished"),
    "nothing": (lambda folder: forget(folder, "*"), "holds no dataset"),
    "shard missing": (lambda folder: forget(folder, "*train*00001-of*"), "00001-of-00002: this shard is missing"),
    "shard cut short": (cut, "00001-of-00002: this shard is cut short or damaged"),
    "shard of another": (swap, "holds 3 examples, its dataset says 11"),
    "description damaged": (lambda f: (f / "dataset_info.json").write_text("{"), "description cannot be read"),
    "features missing": (lambda f: (f / "features.json").write_text("{}"), "description cannot be read"),
}


@pytest.mark.parametrize("harm", HARMS)
def test_folder_that_is_not_whole_is_refused(photos: Path, tmp_path: Path, harm: str):
    damage, words = HARMS[harm]
    shutil.copytree(photos, tmp_path / "copy")
    damage(tmp_path / "copy")
    with pytest.raises((ValueError, OSError), match="copy") as caught:
        load_dataset(str(tmp_path / "copy"), None)
    assert words in str(caught.value)
    assert str(tmp_path / "copy") in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("./nowhere", None), "'./nowhere': no such folder"),
        (("{photos}", None, "train", "test"), "has no split 'test'; available: train, validation; set test_split"),
        (("{photos}", None, "train[90]"), "train_split='train[90]'"),
        (("{photos}", None, "training"), "has no split 'training'"),
        (("{photos}", None, "train[:0]"), "has no split 'train[:0]'"),
        (("{photos}", "/data"), "data_dir='/data'"),
        (("cifar1000", None), "TFDS knows none of that name"),
        (("cifar10", "{photos}"), "is not yet prepared under"),
        (("digits", None, "train", "validation"), "test_split='validation'"),
        (("digits", None, "train[:9]"), "train_split='train[:9]'"),
        (("cifar10_corrupted/fog_1", "{photos}"), "is not yet prepared under"),
        (("./cifar10/fog", None), "'./cifar10/fog': no such folder"),
    ],
)
def test_dataset_that_cannot_be_opened_is_refused(photos: Path, arguments: tuple, words: str):
    if "not yet" in words and importlib.util.find_spec("tensorflow"):
        pytest.skip("TensorFlow is there, and TFDS would go to the network")
    filled: Any = [a.format(photos=photos) if a else a for a in arguments]
    with pytest.raises((ValueError, OSError)) as caught:
        load_dataset(*filled)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("train", "test", "share"),
    [
        ("train", "train[80%:]", True),
        ("train[:50%]", "train[40%:60%]", True),
        ("train", "train", True),
        ("train[:80%]", "train[80%:]", False),
        ("train[50%:]", "train[:20%]", False),
        ("train", "validation", False),
    ],
)
def test_test_splits_within_the_training_split_are_refused(photos: Path, train: str, test: str, share: bool):
    """A run refuses them; reading such splits, as prediction does, stays free."""
    dataset = load_dataset(str(photos), None, train, test)
    names = {
        key: {split.key(index) for index in range(split.size)}
        for key, split in {"train": dataset.train, "test": dataset.test}.items()
    }
    assert bool(names["train"] & names["test"]) is share
    if not share:
        require_apart(dataset)
        return
    loaded = dataset._replace(test=Split(np.zeros((1, 2, 2, 3), np.uint8), np.zeros(1, np.int32), dataset.test))
    for each in (dataset, loaded):
        with pytest.raises(ValueError, match="share examples") as caught:
            require_apart(each)
        assert f"train_split={train!r} and test_split={test!r}" in str(caught.value)


def test_label_outside_the_classes_names_its_example(write_folder: Callable, tmp_path: Path):
    folder = tmp_path / "made"
    examples = [(np.zeros((2, 2, 1), np.uint8), n, ()) for n in range(3)]
    image = tfds.features.Tensor(shape=(2, 2, 1), dtype=np.uint8)
    write_folder(folder, {"train": examples, "test": examples}, image, num_classes=3)
    features = folder / "features.json"
    assert '"numClasses": "3"' in features.read_text()
    features.write_text(features.read_text().replace('"numClasses": "3"', '"numClasses": "2"'))
    (folder / "label.labels.txt").unlink(missing_ok=True)
    with pytest.raises(ValueError, match=r"train example 2 \(train/2.jpg\): label 2 is not from 0 to 1"):
        load_split(open_folder(folder).train, 1)


def test_features_that_are_no_labelled_images_are_refused(photos: Path, tmp_path: Path):
    shutil.copytree(photos, tmp_path / "names")
    features = tfds.features.FeaturesDict({"file_name": tfds.features.Text()})
    (tmp_path / "names" / "features.json").write_text(json.dumps(features.to_json()))
    with pytest.raises(ValueError, match="must have features image and label, with classes; available: file_name"):
        open_folder(tmp_path / "names")
    many = tfds.features.Sequence(tfds.features.ClassLabel(num_classes=2))
    features = tfds.features.FeaturesDict({"image": tfds.features.Image(), "label": many})
    (tmp_path / "names" / "features.json").write_text(json.dumps(features.to_json()))
    with pytest.raises(ValueError, match=r"features image and label, with classes; available: (label|image), "):
        open_folder(tmp_path / "names")


def test_images_that_are_floats_are_refused(write_folder: Callable, photos: Path, tmp_path: Path):
    feature = tfds.features.Tensor(shape=(4, 6, 3), dtype=np.float32)
    examples = [(np.full((4, 6, 3), n / 2, np.float32), n, ()) for n in range(2)]
    folder = write_folder(tmp_path / "floats", {"train": examples, "test": examples}, feature)
    rule = "feature image must be an Image of integers, or uint8 Tensor"
    with pytest.raises(ValueError, match=rule):
        open_folder(folder)
    shutil.copytree(photos, tmp_path / "images")
    image = tfds.features.Image(shape=(None, None, 1), dtype=np.float32)
    features = tfds.features.FeaturesDict({"image": image, "label": tfds.features.ClassLabel(num_classes=2)})
    (tmp_path / "images" / "features.json").write_text(json.dumps(features.to_json()))
    with pytest.raises(ValueError, match=rule):
        open_folder(tmp_path / "images")


def test_image_of_another_shape_is_named_where_whole_images_are_taken(photos: Path):
    with pytest.raises(ValueError, match=r"train example 1 .*shape \(43, 88, 3\): must be \(40, 90, 3\), the first's"):
        load_split(open_folder(photos).train, 1)
