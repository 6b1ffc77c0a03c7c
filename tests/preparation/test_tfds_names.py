"""Datasets by their names in TensorFlow Datasets, which are written by TensorFlow alone."""

import importlib.util
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds

from jaxtern.preparation import tfds_names
from jaxtern.preparation.tfds_names import is_tfds_name, prepare_by_name

TENSORFLOW = importlib.util.find_spec("tensorflow") is not None
ROOT = Path(__file__).resolve().parents[2]

# In a process of its own: TensorFlow warns, and registers what cannot be taken back. TFDS wants builders in modules.
BUILDERS = """
import numpy as np
import tensorflow_datasets as tfds

class TinyPictures(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("2.1.0")
    FEATURES = {"image": tfds.features.Image(shape=(4, 5, 3)), "label": tfds.features.ClassLabel(names=["a", "b"])}

    def _info(self):
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(self.FEATURES))

    def _split_generators(self, manager):
        return {"train": self._generate_examples(6), "test": self._generate_examples(4)}

    def _generate_examples(self, count):
        for i in range(count):
            yield i, {"image": np.full((4, 5, 3), 10 * i, np.uint8), "label": i % 2}

class TinyTexts(TinyPictures):
    FEATURES = {"text": tfds.features.Text()}
"""
BUILD = r"""
import sys
from pathlib import Path
import tensorflow_datasets as tfds
import tiny.builders
from jaxtern.preparation.tfds_names import is_tfds_name, prepare_by_name

out = Path(sys.argv[1])
assert is_tfds_name("tiny_pictures")
for _ in range(2):  # the second time it is there
    splits = prepare_by_name("tiny_pictures", out)
    assert [(s.name, s.images, s.classes, s.least) for s in splits] == [("train", 6, 2, 3), ("test", 4, 2, 2)], splits
names = sorted(path.name for path in out.iterdir())
assert "dataset_info.json" in names and "preparation.json" in names and ".preparation" not in names, names
assert "tiny_pictures-train.array_record-00000-of-00001" in names, names
source = tfds.builder_from_directory(out).as_data_source("train")
assert sorted((int(e["image"].max()), int(e["label"])) for e in source) == [(10 * i, i % 2) for i in range(6)]
for name, words in (("tiny_texts", "it has text (Text ())"), ("tiny_pictures:9.9.9", "cannot prepare it: ")):
    try:
        prepare_by_name(name, out.with_name(name[:6]))
    except ValueError as error:
        assert words in str(error) and "\n" not in str(error), error
    else:
        raise AssertionError(name)
    assert not (out.with_name(name[:6]) / "dataset_info.json").exists()
print("as it must be")
"""


@pytest.mark.skipif(not TENSORFLOW, reason="tensorflow is not installed")
def test_a_builders_dataset_is_written_and_moved_as_a_whole(tmp_path: Path, make):
    make.folder(tmp_path / "tiny", {"__init__.py": b"", "builders.py": BUILDERS.encode()})
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(tmp_path / "out")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])},
        cwd=tmp_path, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1:] == ["as it must be"], done.stderr


def test_names_are_known_without_tensorflow():
    assert is_tfds_name("cifar10")
    assert is_tfds_name("imagenet2012:5.*.*")
    assert is_tfds_name("imagenet2012_subset/1pct:5.0.0")
    for name in ("nowhere", "./cifar10", "data/cifar10", "cifar10.zip", "", "Cifar10"):
        assert not is_tfds_name(name)


class FakeBuilder:
    """As much of a builder as is used, which writes no data."""

    def __init__(self, features: dict, data_dir: Path):
        self.info, self.data_dir = types.SimpleNamespace(features=features), data_dir
        self.downloads = 0

    def download_and_prepare(self, **_):
        self.downloads += 1
        for folder in (self.data_dir, self.data_dir.with_name("older")):
            folder.mkdir(parents=True)
            (folder / "dataset_info.json").write_text(folder.name)


def fake_builder(monkeypatch: pytest.MonkeyPatch, features: dict, data_dir: Path) -> FakeBuilder:
    fake = FakeBuilder(features, data_dir)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(tfds, "builder", lambda *_, **__: fake)
    monkeypatch.setattr(tfds, "builder_from_directory", lambda _: None)
    monkeypatch.setattr(tfds_names, "_summarize", lambda _: [])
    return fake


IMAGE, LABEL = tfds.features.Image(shape=(4, 5, 3)), tfds.features.ClassLabel(num_classes=2)
UNFIT = {
    "no image": (
        {"text": tfds.features.Text(), "label": LABEL},
        r"text \(Text \(\)\), label \(ClassLabel \(\)\)",
    ),
    "many images": (
        {"image": tfds.features.Sequence(IMAGE), "label": LABEL},
        r"image \(Sequence \(None, 4, 5, 3\)\)",
    ),
    "labels are numbers": ({"image": IMAGE, "label": tfds.features.Scalar(np.int64)}, r"label \(Scalar \(\)\)"),
    "many labels": ({"image": IMAGE, "label": tfds.features.Sequence(LABEL)}, r"label \(Sequence \(None,\)\)"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_a_builder_without_labelled_images_is_refused_before_it_downloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
):
    features, words = UNFIT[case]
    fake = fake_builder(monkeypatch, features, tmp_path / "data")
    with pytest.raises(ValueError, match=f"SOURCE='toy'.*a label that is a class; it has .*{words}") as caught:
        prepare_by_name("toy", tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not fake.downloads


def test_a_builders_own_folder_is_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    work = tmp_path / "out" / ".preparation" / "tfds" / "toy"
    fake = fake_builder(monkeypatch, {"image": IMAGE, "label": LABEL}, work / "2.0.0")
    prepare_by_name("toy", tmp_path / "out")
    assert fake.downloads == 1
    assert (tmp_path / "out" / "dataset_info.json").read_text() == "2.0.0"


@pytest.mark.skipif(TENSORFLOW, reason="tensorflow is installed")
def test_a_name_without_tensorflow_is_refused_with_the_remedy(tmp_path: Path):
    with pytest.raises(ValueError, match=r"cifar10.*needs TensorFlow.*pip install 'jaxtern\[prepare\]'"):
        prepare_by_name("cifar10", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_door_refuses_options_for_a_name(tmp_path: Path, run_door: Callable):
    done = run_door("cifar10", tmp_path / "out", "--shards=3")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: --shards: TensorFlow Datasets decides itself how it prepares a dataset\n"
