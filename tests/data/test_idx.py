"""MNIST's four idx files: read back as written, and refused in one line that names the file when they are not right."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from jaxtern.data.idx import load_mnist, read_idx

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def to_idx(array: np.ndarray) -> bytes:
    """The format, written from its description: two zeros, 8 for unsigned bytes, the dimensions, big-endian sizes."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def arrays(seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    sizes = (7, 7, 5, 5)
    shapes = [(n, 28, 28) if "images" in name else (n,) for n, name in zip(sizes, NAMES, strict=True)]
    limits = [256 if "images" in name else 10 for name in NAMES]
    return [generator.integers(0, limit, shape) for shape, limit in zip(shapes, limits, strict=True)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four whole files, two of them gzipped."""
    for name, array in zip(NAMES, arrays(), strict=True):
        if "labels" in name:
            (tmp_path / f"{name}.gz").write_bytes(gzip.compress(to_idx(array)))
        else:
            (tmp_path / name).write_bytes(to_idx(array))
    return tmp_path


def assert_refused(folder: Path, *words: str, error: type[Exception] = ValueError) -> None:
    with pytest.raises(error) as caught:
        load_mnist(folder)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_idx_files_read_back_as_written(folder: Path):
    dataset = load_mnist(folder)
    written = arrays()
    read = (dataset.train.images[..., 0], dataset.train.labels, dataset.test.images[..., 0], dataset.test.labels)
    for expected, array in zip(written, read, strict=True):
        np.testing.assert_array_equal(array, expected)
    assert dataset.train.images.dtype == np.uint8
    assert dataset.train.labels.dtype == np.int32
    assert dataset.train.image_shape == (28, 28, 1)
    assert (dataset.train.size, dataset.test.size, dataset.num_classes) == (7, 5, 10)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("shape", [(0,), (1,), (300,), (2, 3, 5), (1, 0, 4)])
def test_idx_of_any_shape_reads_back(tmp_path: Path, shape: tuple[int, ...], suffix: str):
    array = np.random.default_rng(1).integers(0, 256, shape)
    raw = to_idx(array)
    path = tmp_path / f"file{suffix}"
    path.write_bytes(gzip.compress(raw) if suffix else raw)
    np.testing.assert_array_equal(read_idx(path, len(shape)), array)


@pytest.mark.parametrize("cut", [1, 100, 28 * 28, -3, -15])
def test_idx_cut_short_is_refused(folder: Path, cut: int):
    path = folder / NAMES[0]
    raw = path.read_bytes()
    path.write_bytes(raw[:-cut])
    assert_refused(folder, str(path))


def test_idx_with_too_many_bytes_is_refused(folder: Path):
    path = folder / NAMES[2]
    path.write_bytes(path.read_bytes() + b"\0")
    assert_refused(folder, str(path), f"{5 * 784 + 1} bytes", f"{5 * 784}")


@pytest.mark.parametrize("damage", ["cut", "flipped", "no gzip", "empty"])
def test_idx_in_a_damaged_gzip_is_refused(folder: Path, damage: str):
    path = folder / f"{NAMES[1]}.gz"
    raw = bytearray(path.read_bytes())
    raw[12] ^= 0x55
    damaged = {"cut": path.read_bytes()[:-6], "flipped": bytes(raw), "no gzip": b"what is this?", "empty": b""}
    path.write_bytes(damaged[damage])
    assert_refused(folder, str(path))


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_idx_with_a_wrong_magic_number_is_refused(folder: Path, place: int):
    path = folder / NAMES[0]
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.write_bytes(raw)
    assert_refused(folder, str(path), "00000803", raw[:4].hex())


def test_idx_whose_header_disagrees_with_its_length_is_refused(folder: Path):
    path = folder / NAMES[0]
    raw = bytearray(path.read_bytes())
    raw[4:8] = struct.pack(">I", 8)
    path.write_bytes(raw)
    assert_refused(folder, str(path), str(8 * 784), str(7 * 784))


def test_idx_with_fewer_labels_than_images_is_refused(folder: Path):
    path = folder / f"{NAMES[1]}.gz"
    path.write_bytes(gzip.compress(to_idx(np.zeros(6))))
    assert_refused(folder, str(folder / NAMES[0]), str(path), "7 images", "6 labels")


def test_idx_with_an_eleventh_class_is_refused(folder: Path):
    path = folder / f"{NAMES[3]}.gz"
    path.write_bytes(gzip.compress(to_idx(np.full(5, 10))))
    assert_refused(folder, str(path), "0 to 9")


@pytest.mark.parametrize("name", NAMES)
def test_idx_missing_file_is_named(folder: Path, name: str):
    for path in folder.glob(f"{name}*"):
        path.unlink()
    assert_refused(folder, str(folder), name, error=FileNotFoundError)


def test_idx_missing_folder_is_named(tmp_path: Path):
    assert_refused(tmp_path / "nowhere", "data_dir", str(tmp_path / "nowhere"), error=FileNotFoundError)
