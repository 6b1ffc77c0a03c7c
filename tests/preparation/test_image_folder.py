"""Images in one folder a class, wherever they lie."""

import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jaxtern.preparation.detection import Reading
from jaxtern.preparation.pipeline import prepare
from jaxtern.preparation.plan import Options

CLASSES = ("ant", "bee", "cow")


def put(make, kind: str, path: Path, files: dict[str, bytes]) -> Path:
    return {"folder": make.folder, "zip": make.zip, "tar": make.tar}[kind](path.with_suffix(f".{kind}"), files)


@pytest.mark.parametrize("wrapping", ["", "data/", "a/b/"])
@pytest.mark.parametrize("kind", ["folder", "zip", "tar"])
def test_folders_of_classes_come_back_once_byte_for_byte(
    tmp_path: Path, make, read_back: Callable, read_class_names: Callable, class_folders, kind: str, wrapping: str
):
    files = {wrapping + name: content for name, content in class_folders.items()}
    junk = {f"{wrapping}.DS_Store": b"x", f"{wrapping}train/ant/._0.jpg": b"x", "__MACOSX/train/ant/0.jpg": b"x"}
    source = put(make, kind, tmp_path / "source", files | junk | {f"{wrapping}train/ant/readme.txt": b"x"})
    report = prepare(source, tmp_path / "out")
    assert read_class_names(tmp_path / "out") == list(CLASSES)
    examples = read_back(tmp_path / "out")
    assert set(examples) == {"train", "test"}
    found = {name: (split, e.label, e.image) for split, inside in examples.items() for name, e in inside.items()}
    parts = {name: name.removeprefix(wrapping).split("/") for name in files}
    assert found == {name: (parts[name][0], CLASSES.index(parts[name][1]), files[name]) for name in files}
    cells = [line.split() for line in str(report).splitlines()[1:3]]
    assert [(*row[:5], *row[6:]) for row in cells] == [  # without the size
        ("train", "1", "15", "3", "5", "0", "0"),
        ("test", "1", "6", "3", "2", "0", "0"),
    ]
    assert report.remarks == ("left out, as their names are not those of images: 1",)


@pytest.mark.parametrize(
    ("train", "other", "split"),
    [
        ("train", "validation", "validation"),
        ("train", "val", "validation"),
        ("TrainData", "ValidationData", "validation"),
        ("Training", "Test", "test"),
        ("training_set", "test_set", "test"),
    ],
)
def test_folders_of_splits_go_by_many_names(tmp_path: Path, make, read_back, train: str, other: str, split: str):
    source = make.folder(
        tmp_path / "source", {f"{folder}/{c}/1.png": make.png(1) for folder in (train, other) for c in CLASSES}
    )
    prepare(source, tmp_path / "out")
    assert {name: len(examples) for name, examples in read_back(tmp_path / "out").items()} == {"train": 3, split: 3}


@pytest.mark.parametrize("top", ["", "train/"])
def test_images_without_splits_are_split_by_class_always_alike(tmp_path: Path, make, read_back: Callable, top: str):
    image = make.jpeg(0)
    counts = {"ant": 40, "bee": 20, "cow": 2}
    source = make.folder(tmp_path / "source", {f"{top}{c}/{i}.jpg": image for c, n in counts.items() for i in range(n)})
    seen = []
    for out, seed in (("a", 0), ("b", 0), ("c", 1)):
        prepare(source, tmp_path / out, Reading(seed=seed, validation_fraction=0.25), Options(name="x"))
        examples = read_back(tmp_path / out)
        assert set(examples["train"]) | set(examples["validation"]) == {
            f"{top}{c}/{i}.jpg" for c, n in counts.items() for i in range(n)
        }
        assert not set(examples["train"]) & set(examples["validation"])
        assert np.bincount([e.label for e in examples["validation"].values()]).tolist() == [10, 5, 1]
        seen.append(set(examples["validation"]))
    assert seen[0] == seen[1] != seen[2]


def test_a_tenth_is_for_validation_unless_told(tmp_path: Path, make, read_back: Callable):
    image = make.jpeg(0)
    source = make.folder(tmp_path / "source", {f"{c}/{i}.jpg": image for c in CLASSES for i in range(20)})
    prepare(source, tmp_path / "out")
    assert {name: len(e) for name, e in read_back(tmp_path / "out").items()} == {"train": 54, "validation": 6}
    report = prepare(source, tmp_path / "all", Reading(validation_fraction=0))
    assert len(report.remarks) == 1
    assert str(report).splitlines()[-1].startswith("no split to evaluate on: training needs test or validation; ")
    assert "--config.data.train_split='train[:90%]' --config.data.test_split='train[90%:]'" in str(report)
    assert {name: len(e) for name, e in read_back(tmp_path / "all").items()} == {"train": 60}


def test_examples_are_shuffled_over_shards_by_the_seed(tmp_path: Path, make, read_back: Callable):
    image = make.jpeg(0)
    source = make.folder(tmp_path / "source", {f"{c}/{i:02d}.jpg": image for c in CLASSES for i in range(40)})
    orders = []
    for out, seed in (("a", 0), ("b", 1)):
        prepare(source, tmp_path / out, Reading(validation_fraction=0), Options(name="x", shards=4, seed=seed))
        names = list(read_back(tmp_path / out)["train"])
        orders.append(names)
        assert len(list((tmp_path / out).glob("x-train.array_record-0000?-of-00004"))) == 4
        for start in range(0, 120, 30):  # each shard has some of each class: missing one has a chance of 1e-6
            assert {name[:3] for name in names[start : start + 30]} == set(CLASSES)
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])


@pytest.mark.parametrize("kind", ["folder", "zip", "tar"])
def test_names_of_any_signs_are_read(tmp_path: Path, make, read_back: Callable, kind: str):
    names = ["a b/ß 1.png", "ü/日本.png", "ü/#%&{}.png"]
    if kind == "folder":  # where names are bytes
        names.append(os.fsdecode(b"a b/caf\xe9.png"))
    source = put(make, kind, tmp_path / "source", {name: make.png(i) for i, name in enumerate(names)})
    prepare(source, tmp_path / "out", Reading(validation_fraction=0))
    examples = read_back(tmp_path / "out")["train"]
    assert {name: e.image for name, e in examples.items()} == {
        name.encode(errors="replace").decode(): make.png(i) for i, name in enumerate(names)
    }


BAD = {
    "nothing": ({}, ["holds no images"]),
    "no image": ({"a/1.txt": b"x"}, ["holds no images"]),
    "loose image": ({"a/1.png": b"", "b/1.png": b"", "3.png": b""}, ["image 3.png in no folder of a class"]),
    "one class": ({"a/1.png": b"", "a/2.png": b""}, ["has images of one class alone: a"]),
    "empty class": (
        {"a/1.png": b"", "a/2.png": b"", "b/1.png": b"", "b/2.png": b"", "c/1.txt": b""},
        ["holds no images of class c"],
    ),
    "empty class of all splits": (
        {"train/a/1.png": b"", "train/b/1.png": b"", "train/c/1.txt": b"", "test/a/1.png": b"", "test/b/1.png": b""},
        ["holds no images of class c"],
    ),
    "empty split": ({"train/a/1.png": b"", "train/b/1.png": b"", "test/x.txt": b""}, ["test holds no images"]),
    "empty split folder": ({"train/a/1.png": b"", "train/b/1.png": b"", "test/a/x.txt": b""}, ["test holds no images"]),
    "one split twice": (
        {f"{split}/{c}/1.png": b"" for split in ("train", "val", "validation") for c in "ab"},
        ["val and validation are both the split validation"],
    ),
    "a folder beside": (
        {f"{split}/{c}/1.png": b"" for split in ("train", "extra") for c in "ab"},
        ["extra lies beside"],
    ),
    "splits without training": (
        {f"{split}/{c}/1.png": b"" for split in ("test", "valid") for c in "ab"},
        ["holds test, valid, but no folder of training images"],
    ),
    "images of one split, no training": (
        {f"{split}/{c}/{name}": b"" for split, name in (("train", "x.txt"), ("val", "1.png")) for c in "ab"},
        ["the folder train holds no images"],
    ),
    "one split, no training": ({f"val/{c}/1.png": b"" for c in "ab"}, ["holds val, but no folder of training images"]),
    "class of two lines": (
        {f"{c}/1.png": b"" for c in ("a\nb", "c ", "d")},
        ["classes 'a\\nb', 'c ' must be printable"],
    ),
    "class of other bytes": ({f"{c}/1.png": b"" for c in ("caf\udce9", "d")}, ["class 'caf\\udce9' must be printable"]),
    "too few to split": (
        {"a/1.png": b"", "b/1.png": b"", "b/2.png": b""},
        ["class a has too few images to split: 1; --validation_fraction=0 "],
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_folders_that_are_not_as_they_must_be_are_refused(tmp_path: Path, make, case: str):
    files, words = BAD[case]
    (tmp_path / "source").mkdir()
    source = make.folder(tmp_path / "source", files)
    with pytest.raises(ValueError, match=r"source|class") as caught:
        prepare(source, tmp_path / "out")
    for word in words:
        assert word in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_tar_cut_short_is_refused(tmp_path: Path, make, class_folders):
    source = make.tar(tmp_path / "source.tar", class_folders)
    source.write_bytes(source.read_bytes()[:1500])
    with pytest.raises(ValueError, match=r"source\.tar: is damaged or cut short"):
        prepare(source, tmp_path / "out")


@pytest.mark.parametrize(("kind", "word"), [(tarfile.SYMTYPE, "a/2.png"), (tarfile.LNKTYPE, "b/2.png")])
def test_a_tar_with_links_is_refused_as_they_may_be_images(tmp_path: Path, make, class_folders, kind: bytes, word: str):
    source = make.tar(tmp_path / "source.tar", class_folders)
    with tarfile.open(source, "a") as archive:
        link = tarfile.TarInfo("a/link.png")
        link.type, link.linkname = kind, word
        archive.addfile(link)
    with pytest.raises(ValueError, match=r"source\.tar: a/link\.png is a link: pack it with -h and --hard-dereference"):
        prepare(source, tmp_path / "out")


def test_a_zip_cut_short_is_refused(tmp_path: Path, make, class_folders):
    source = make.zip(tmp_path / "source.zip", class_folders)
    source.write_bytes(source.read_bytes()[:-40])
    with pytest.raises(ValueError, match="cut short"):
        prepare(source, tmp_path / "out")


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_image_of_a_zip_is_named_and_the_others_are_read(tmp_path: Path, class_folders, method: int):
    source = tmp_path / "source.zip"
    with zipfile.ZipFile(source, "w", method) as archive:
        for name, content in class_folders.items():
            archive.writestr(name, content)
        damaged = archive.infolist()[4]
    content = bytearray(source.read_bytes())
    start = damaged.header_offset + 30 + len(damaged.filename)
    content[start + 20 : start + 60] = bytes(range(40))
    source.write_bytes(content)
    report = prepare(source, tmp_path / "out", max_bad=1)
    ((name, why),) = report.splits["train"][0].left_out
    assert name == damaged.filename
    assert why.startswith("cannot be read from the zip: ")


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_split_without_a_class_is_prepared_and_told(tmp_path: Path, make, read_back: Callable, split: str):
    files = {f"{each}/{c}/{i}.png": make.png(i) for each in ("train", "test") for c in "abc" for i in range(2)}
    files = {name: content for name, content in files.items() if not name.startswith(f"{split}/b/")}
    source = make.folder(tmp_path / "source", files | {f"{split}/b/none.txt": b""})
    report = prepare(source, tmp_path / "out")
    assert f"warning: split {split} has no images of class b" in report.remarks
    assert {example.label for example in read_back(tmp_path / "out")[split].values()} == {0, 2}


@pytest.mark.parametrize("mode", ["gz", "bz2", "xz"])
def test_a_compressed_tar_is_read_like_a_plain_one(tmp_path: Path, make, read_back: Callable, class_folders, mode: str):
    plain = make.tar(tmp_path / "source.tar", class_folders)
    packed = make.tar(tmp_path / f"source.tar.{mode}", class_folders, f"w:{mode}")
    for source, out in ((plain, "a"), (packed, "b")):
        prepare(source, tmp_path / out, options=Options(name="x"))
    assert read_back(tmp_path / "a") == read_back(tmp_path / "b")
    prepare(packed, tmp_path / "a", options=Options(name="x"))  # the same plan, wherever it is unpacked


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_the_folder_that_was_packed_may_be_named_in_the_archive(tmp_path: Path, read_back, class_folders, kind: str):
    """As `tar -cf source.tar -C FOLDER .` does it."""
    for name, content in class_folders.items():
        (tmp_path / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "files" / name).write_bytes(content)
    if kind == "tar":
        with tarfile.open(tmp_path / "source.tar", "w") as archive:
            archive.add(tmp_path / "files", ".")
    else:
        with zipfile.ZipFile(tmp_path / "source.zip", "w") as archive:
            for path in (tmp_path / "files", *(tmp_path / "files").rglob("*")):
                archive.write(path, path.relative_to(tmp_path / "files"))
    prepare(tmp_path / f"source.{kind}", tmp_path / "out")
    assert {name for examples in read_back(tmp_path / "out").values() for name in examples} == set(class_folders)


def test_a_compressed_tar_cut_short_is_refused(tmp_path: Path, make, class_folders):
    source = make.tar(tmp_path / "source.tar.gz", class_folders, "w:gz")
    source.write_bytes(source.read_bytes()[: source.stat().st_size // 2])
    with pytest.raises(ValueError, match=r"source\.tar\.gz'?: .*(damaged|unpacked)"):
        prepare(source, tmp_path / "out")


@pytest.mark.parametrize("lossless", [True, False])
def test_images_of_any_format_are_taken(tmp_path: Path, make, read_back: Callable, lossless: bool):
    """As PNG where all are lossless by their names, else as JPEG."""
    kinds = {"gif": "GIF", "TIFF": "TIFF", "bmp": "BMP", "png": "PNG"} | ({} if lossless else {"webp": "WEBP"})
    files = {
        f"{name}/{suffix}.{suffix}": make.file(Image.fromarray(make.pixels(1)), kind)
        for name in "ab"
        for suffix, kind in kinds.items()
    }
    report = prepare(make.folder(tmp_path / "source", files), tmp_path / "out", Reading(validation_fraction=0))
    assert not any("left out" in remark for remark in report.remarks)
    examples = read_back(tmp_path / "out", decode=True)["train"]
    assert set(examples) == set(files)
    for name, example in examples.items():
        error = np.abs(example.image.astype(int) - make.pixels(1)).mean()
        assert error < (15 if "gif" in name or not lossless else 1e-9), name


def test_a_fraction_for_a_source_with_splits_is_refused(tmp_path: Path, make, class_folders):
    source = make.folder(tmp_path / "source", class_folders)
    with pytest.raises(ValueError, match=r"validation_fraction=0\.2: the source has splits: train, test"):
        prepare(source, tmp_path / "out", Reading(validation_fraction=0.2))
