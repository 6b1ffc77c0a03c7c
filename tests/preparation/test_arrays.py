"""Sources that hold pixels: the idx files of MNIST and its like, and CIFAR in all its versions."""

import gzip
import io
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from jaxtern.preparation.detection import Reading, detect_format
from jaxtern.preparation.pipeline import prepare

IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def to_idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def idx_arrays(classes: int = 10) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    train, test = (np.arange(n) * 7 % classes for n in (3 * classes, classes))
    return [
        generator.integers(0, 256, (len(train), 9, 7)), train, generator.integers(0, 256, (len(test), 9, 7)), test,
    ]  # fmt: skip


def write_idx(folder: Path, arrays: list[np.ndarray]) -> Path:
    folder.mkdir()
    for name, array in zip(IDX, arrays, strict=True):
        (folder / f"{name}.gz").write_bytes(gzip.compress(to_idx(array)))
    return folder


def decode_png(content: bytes) -> np.ndarray:
    assert content.startswith(b"\x89PNG")
    return np.asarray(Image.open(io.BytesIO(content)))


@pytest.mark.parametrize("classes", [10, 3])
def test_idx_files_come_back_without_loss(tmp_path: Path, read_back: Callable, classes: int):
    arrays = idx_arrays(classes)
    prepare(write_idx(tmp_path / "mnist", arrays), tmp_path / "out")
    examples = read_back(tmp_path / "out")
    for split, images, labels, stem in (("train", *arrays[:2], "train"), ("test", *arrays[2:], "t10k")):
        assert len(examples[split]) == len(labels)
        for row, (image, label) in enumerate(zip(images, labels, strict=True)):
            example = examples[split][f"{stem}-images-idx3-ubyte/{row:05d}"]
            np.testing.assert_array_equal(decode_png(example.image), image)
            assert example.label == label


def test_idx_features_tell_the_shape(tmp_path: Path):
    import tensorflow_datasets as tfds

    prepare(write_idx(tmp_path / "mnist", idx_arrays()), tmp_path / "out")
    features: Any = tfds.builder_from_directory(tmp_path / "out").info.features
    assert features["image"].shape == (9, 7, 1)
    assert features["label"].names == list("0123456789")


def test_idx_files_without_some_numbers_have_the_classes_that_occur(tmp_path: Path, read_back: Callable):
    """EMNIST's letters are 1 to 26."""
    import tensorflow_datasets as tfds

    arrays = idx_arrays(3)
    prepare(
        write_idx(tmp_path / "mnist", [part if part.ndim > 1 else 2 * part + 1 for part in arrays]), tmp_path / "out"
    )
    features: Any = tfds.builder_from_directory(tmp_path / "out").info.features
    assert features["label"].names == ["1", "3", "5"]
    labels = {name: example.label for name, example in read_back(tmp_path / "out")["train"].items()}
    assert [labels[name] for name in sorted(labels)] == arrays[1].tolist()


def test_idx_files_that_do_not_fit_are_refused(tmp_path: Path):
    arrays = idx_arrays()
    source = write_idx(tmp_path / "short", [*arrays[:3], arrays[3][:-1]])
    with pytest.raises(ValueError, match=r"t10k-images.* holds 10 images, but .*t10k-labels.* 9 labels"):
        prepare(source, tmp_path / "out")
    source = write_idx(tmp_path / "lacking", arrays)
    (source / f"{IDX[3]}.gz").unlink()
    with pytest.raises(FileNotFoundError, match="holds neither t10k-labels-idx1-ubyte nor "):
        prepare(source, tmp_path / "out")
    source = write_idx(tmp_path / "cut", arrays)
    path = source / f"{IDX[0]}.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"train-images.*damaged or cut short"):
        prepare(source, tmp_path / "out")


class Cifar(NamedTuple):
    """Made-up contents: pixels uint8[n, 3072] and labels by file, names of classes."""

    files: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]
    fine: list[str]
    coarse: list[str]


def make_cifar(hundred: bool) -> Cifar:
    generator = np.random.default_rng(0)
    classes = 100 if hundred else 10
    names = ["train", "test"] if hundred else [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    files = {
        name: (generator.integers(0, 256, (classes, 3072)).astype(np.uint8), order, order // 5)
        for name in names
        for order in [generator.permutation(classes)]
    }
    return Cifar(files, [f"fine{i:02d}" for i in range(classes)], [f"coarse{i:02d}" for i in range(20)])


def as_binary(cifar: Cifar, hundred: bool) -> dict[str, bytes]:
    files = {}
    for name, (pixels, fine, coarse) in cifar.files.items():
        labels = np.stack([coarse, fine], 1) if hundred else fine[:, None]
        files[f"{name}.bin"] = np.concatenate([labels.astype(np.uint8), pixels], 1).tobytes()
    if not hundred:
        return files | {"batches.meta.txt": "\n".join([*cifar.fine, ""]).encode()}
    return files | {
        "fine_label_names.txt": "\n".join(cifar.fine).encode(),
        "coarse_label_names.txt": "\n".join(cifar.coarse).encode(),
    }


CASES = [(False, False), (True, False), (True, True)]


@pytest.mark.parametrize("kind", ["archive", "tar", "folder", "folder in a folder"])
@pytest.mark.parametrize(("hundred", "coarse"), CASES)
def test_cifar_comes_back_without_loss(
    tmp_path: Path, make, read_back, read_class_names, hundred: bool, coarse: bool, kind: str
):
    cifar = make_cifar(hundred)
    files = {f"cifar/{name}": content for name, content in as_binary(cifar, hundred).items()}
    if kind.startswith("folder"):
        make.folder(tmp_path / "here", files)
        source = tmp_path / "here" / ("" if kind == "folder in a folder" else "cifar")
    else:
        suffix, mode = ("tar.gz", "w:gz") if kind == "archive" else ("tar", "w")
        source = make.tar(tmp_path / f"cifar.{suffix}", files, mode)
    prepare(source, tmp_path / "out", Reading(coarse_labels=coarse))
    assert read_class_names(tmp_path / "out") == (cifar.coarse if coarse else cifar.fine)
    examples = read_back(tmp_path / "out")
    assert len(examples["train"]) == (100 if hundred else 50)
    for name, (pixels, *labels) in cifar.files.items():
        for row in range(len(pixels)):
            example = examples["test" if name.startswith("test") else "train"][f"{name}.bin/{row:05d}"]
            assert example.label == labels[coarse][row]
            np.testing.assert_array_equal(decode_png(example.image), pixels[row].reshape(3, 32, 32).transpose(1, 2, 0))


@pytest.mark.parametrize("hundred", [False, True])
def test_cifar_in_pickles_is_refused_with_the_remedy(tmp_path: Path, make, hundred: bool):
    names = ("train", "test", "meta") if hundred else ("data_batch_1", "test_batch", "batches.meta")
    files = {f"cifar/{name}": b"" for name in names}
    for source in (make.folder(tmp_path / "cifar", files), make.tar(tmp_path / "cifar.tar.gz", files, "w:gz")):
        with pytest.raises(ValueError, match=r"is CIFAR in pickles.*: take the binary version"):
            prepare(source, tmp_path / "out")


def test_cifar_that_is_not_whole_is_refused(tmp_path: Path, make):
    files = as_binary(make_cifar(False), False)
    for name, change, words in (
        ("a", {"data_batch_2.bin": files["data_batch_2.bin"][:-1]}, "data_batch_2.bin must hold records of 3073 bytes"),
        ("b", {"batches.meta.txt": b"cat dog"}, "batches.meta.txt must have 10 class names, but has 2"),
        ("c", {"test_batch.bin": files["test_batch.bin"][:3072] * 0}, "test_batch.bin must hold records"),
    ):
        with pytest.raises(ValueError, match=words):
            prepare(make.folder(tmp_path / name, files | change), tmp_path / "out")
    lacking = make.folder(tmp_path / "d", files)
    (lacking / "data_batch_5.bin").unlink()
    with pytest.raises(ValueError, match=r"data_batch_5\.bin is missing"):
        prepare(lacking, tmp_path / "out")
    archive = make.tar(tmp_path / "f.tar.gz", {f"cifar/{name}": content for name, content in files.items()}, "w:gz")
    archive.write_bytes(archive.read_bytes()[:-3000])
    with pytest.raises(ValueError, match=r"f\.tar\.gz.*cut short"):
        prepare(archive, tmp_path / "out", Reading(format="cifar"))


def test_coarse_labels_of_cifar10_are_refused(tmp_path: Path, make):
    source = make.folder(tmp_path / "cifar", as_binary(make_cifar(False), False))
    with pytest.raises(ValueError, match="coarse_labels: CIFAR-10 has none"):
        prepare(source, tmp_path / "out", Reading(coarse_labels=True))


def test_formats_are_seen_from_what_lies_there(tmp_path: Path, make, class_folders):
    assert detect_format(write_idx(tmp_path / "idx", idx_arrays())) == "idx"
    assert detect_format(make.folder(tmp_path / "cifar", as_binary(make_cifar(True), True))) == "cifar"
    assert detect_format(make.folder(tmp_path / "images", class_folders)) == "images"
    assert detect_format(make.zip(tmp_path / "images.zip", class_folders)) == "images"
    assert detect_format(make.tar(tmp_path / "images.tar", class_folders)) == "images"
    tars = {"ILSVRC2012_img_train.tar": b"", "ILSVRC2012_img_val.tar": b""}
    assert detect_format(make.folder(tmp_path / "imagenet", tars)) == "imagenet"
    with pytest.raises(FileNotFoundError, match=r"nowhere.*no such file or folder"):
        prepare(tmp_path / "nowhere", tmp_path / "out")
    (tmp_path / "text.txt").write_text("text")
    with pytest.raises(ValueError, match=r"text\.txt.* is no folder, zip or tar"):
        prepare(tmp_path / "text.txt", tmp_path / "out")
    with pytest.raises(ValueError, match="is prepared already"):
        detect_format(make.folder(tmp_path / "done", {"dataset_info.json": b"{}"}))


def test_a_forced_format_is_kept_to(tmp_path: Path, make, class_folders):
    source = make.folder(tmp_path / "images", class_folders)
    for name, words in (
        ("idx", "holds neither"),
        ("cifar", "is no version of CIFAR"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=words):
            prepare(source, tmp_path / "out", Reading(format=name))
    with tarfile.open(tmp_path / "x.tar", "w"), pytest.raises(FileNotFoundError, match="holds neither train-images"):
        prepare(tmp_path / "x.tar", tmp_path / "out", Reading(format="idx"))


@pytest.mark.parametrize(
    "reading",
    [Reading(coarse_labels=True), Reading(labels=Path("x"))],
)
def test_what_another_format_takes_is_refused(tmp_path: Path, make, class_folders, reading: Reading):
    source = make.folder(tmp_path / "images", class_folders)
    with pytest.raises(ValueError, match=r"(coarse_labels|labels): is for --format=\w+, but .* images"):
        prepare(source, tmp_path / "out", reading)
