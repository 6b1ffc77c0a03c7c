"""ImageNet from its original tars, in small: tars in a tar, odd files, labels in three ways."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import simplejpeg
from PIL import Image

from jaxtern.preparation.detection import Reading
from jaxtern.preparation.files import list_tar, read_span
from jaxtern.preparation.pipeline import prepare
from jaxtern.preparation.plan import Options

SYNSETS = ("n01440764", "n02100000", "n03000000", "n15075141")
VALIDATION = [2, 0, 3, 1, 1, 0, 2, 3]  # classes in order of the files
DEVKIT_ORDER = (SYNSETS[3], SYNSETS[1], SYNSETS[0], SYNSETS[2])  # numbers 1 to 4


def make_images(make) -> dict[str, dict[str, bytes]]:
    """Files by synset, among them a CMYK JPEG and a PNG that is called JPEG."""
    images = {
        synset: {f"{synset}_{i}.JPEG": make.jpeg(10 * label + i) for i in range(4)}
        for label, synset in enumerate(SYNSETS)
    }
    cmyk = Image.fromarray(make.pixels(77)).convert("CMYK")
    images[SYNSETS[1]][f"{SYNSETS[1]}_1.JPEG"] = make.file(cmyk, "JPEG", quality=95)
    images[SYNSETS[2]][f"{SYNSETS[2]}_3.JPEG"] = make.png(78)
    return images


def write_devkit(make, path: Path, more: str = "") -> Path:
    table = np.array(
        [(number, synset) for number, synset in enumerate(DEVKIT_ORDER, start=1)] + [(5, "n99999999")],
        [("ILSVRC2012_ID", "O"), ("WNID", "O")],
    )
    meta = io.BytesIO()
    scipy.io.savemat(meta, {"synsets": table})
    numbers = "".join(f"{1 + DEVKIT_ORDER.index(SYNSETS[label])}\n" for label in VALIDATION)
    folder = "ILSVRC2012_devkit_t12/data"
    files = {
        f"{folder}/meta.mat": meta.getvalue(),
        f"{folder}/ILSVRC2012_validation_ground_truth.txt": (numbers + more).encode(),
    }
    return make.tar(path, files, "w:gz")


@pytest.fixture
def tars(tmp_path: Path, make) -> Path:
    """The folder of both tars; the inner tars lie in an order of their own."""
    folder = tmp_path / "imagenet"
    folder.mkdir()
    inner = {}
    for synset, files in reversed(make_images(make).items()):
        inner[f"{synset}.tar"] = make.tar(tmp_path / "inner.tar", files).read_bytes()
    make.tar(folder / "ILSVRC2012_img_train.tar", inner)
    files = {f"ILSVRC2012_val_{i:08d}.JPEG": make.jpeg(900 + i) for i in range(1, 9)}
    make.tar(folder / "ILSVRC2012_img_val.tar", dict(reversed(files.items())))
    return folder


def write_labels(folder: Path) -> Path:
    path = folder / "imagenet_2012_validation_synset_labels.txt"
    path.write_text("".join(f"{SYNSETS[label]}\n" for label in VALIDATION))
    return path


def check(make, examples: dict, names: list[str]) -> None:
    assert names == list(SYNSETS)
    files = {name: content for inside in make_images(make).values() for name, content in inside.items()}
    assert set(examples["train"]) == set(files)
    odd = {f"{SYNSETS[1]}_1.JPEG": 77, f"{SYNSETS[2]}_3.JPEG": 78}
    for name, example in examples["train"].items():
        assert SYNSETS[example.label] == name.split("_")[0]
        if name in odd:
            assert simplejpeg.decode_jpeg_header(example.image)[2] == "YCbCr"
            difference = simplejpeg.decode_jpeg(example.image).astype(int) - make.pixels(odd[name])
            assert np.abs(difference).mean() < 12  # 16 pixels wide, with colours at half of that
        else:
            assert example.image == files[name]
    assert {name: (e.label, e.image) for name, e in examples["validation"].items()} == {
        f"ILSVRC2012_val_{i:08d}.JPEG": (label, make.jpeg(900 + i)) for i, label in enumerate(VALIDATION, start=1)
    }


@pytest.mark.parametrize("way", ["labels", "labels beside", "devkit", "devkit beside"])
def test_imagenet_comes_back_with_its_labels(
    tmp_path: Path, make, tars: Path, read_back: Callable, read_class_names: Callable, way: str
):
    reading = Reading()
    if way == "labels":
        (tmp_path / "elsewhere").mkdir()
        reading = Reading(labels=write_labels(tmp_path / "elsewhere"))
    elif way == "labels beside":
        write_labels(tars)
    elif way == "devkit":
        reading = Reading(labels=write_devkit(make, tmp_path / "kit.tar.gz"))
    else:
        write_devkit(make, tars / "ILSVRC2012_devkit_t12.tar.gz")
    report = prepare(tars, tmp_path / "out", reading, Options(shards=2))
    check(make, read_back(tmp_path / "out"), read_class_names(tmp_path / "out"))
    splits = report.splits.values()
    totals = [(sum(s.images for s in shards), sum(len(s.repaired) for s in shards)) for shards in splits]
    assert totals == [(16, 2), (8, 0)]


def refuse(tars: Path, words: str, reading: Reading | None = None) -> None:
    with pytest.raises(ValueError, match=words):
        prepare(tars, tars.parent / "out", reading or Reading())
    assert not (tars.parent / "out").exists()


def test_imagenet_that_does_not_fit_together_is_refused(tmp_path: Path, make, tars: Path):
    refuse(tars, "labels is not set: give the classes of the validation images")
    refuse(tars, r"labels='.*nowhere': no such file", Reading(labels=tmp_path / "nowhere"))
    labels = tmp_path / "labels"
    labels.write_text("n01440764\n" * 7)
    refuse(tars, "labels: there are 7 for the 8 images", Reading(labels=labels))
    labels.write_text("n01440764\n" * 7 + "n77777777")
    refuse(tars, "synset n77777777 is none of the training images", Reading(labels=labels))
    labels.write_text("n01440764\n" * 8)
    refuse(tars, "split validation has no images of classes n02100000, n03000000, n15075141", Reading(labels=labels))
    labels.write_text("1\n" * 8)
    refuse(tars, "synset 1 is none of the training images", Reading(labels=labels))
    kit = make.tar(tmp_path / "kit.tar.gz", {"x/data/meta.mat": b"no matrix"}, "w:gz")
    refuse(tars, "is no devkit, or is damaged", Reading(labels=kit))
    kit = write_devkit(make, tmp_path / "more.tar.gz", more="7\nx\n")
    refuse(tars, "has numbers 7, x, which no synset has", Reading(labels=kit))


def test_imagenet_cut_short_is_refused(tars: Path):
    write_labels(tars)
    path = tars / "ILSVRC2012_img_train.tar"
    whole = path.read_bytes()
    for end in (3000, len(whole) // 2, 100):
        path.write_bytes(whole[:end])
        refuse(tars, r"img_train\.tar.*cut short")


def test_tar_within_a_tar_is_read_to_its_own_end_and_no_further(tmp_path: Path, make):
    """Also where it lacks the zeros that end a tar, so that the outer tar's next header follows its last file."""
    files = {name: {f"{name}{i}": make.jpeg(i) for i in range(2)} for name in "ab"}
    inner = {}
    for name, content in files.items():
        whole = make.tar(tmp_path / "inner.tar", content).read_bytes()
        size = sum(512 + -(-len(each) // 512) * 512 for each in content.values())
        assert not any(whole[size:])
        inner[f"{name}.tar"] = whole[:size]
    outer = make.tar(tmp_path / "outer.tar", inner)
    for tar, content in zip(list_tar(outer), files.values(), strict=True):
        assert {member.name: read_span(member.location) for member in list_tar(outer, tar)} == content
    first, second = list_tar(make.tar(tmp_path / "cut.tar", inner | {"a.tar": inner["a.tar"][:-512]}))
    with pytest.raises(ValueError, match=r"cut\.tar: a\.tar: is damaged or cut short"):
        list(list_tar(tmp_path / "cut.tar", first))
    assert len(list(list_tar(tmp_path / "cut.tar", second))) == 2
