"""Small images of every kind, sources made of them, and a dataset's examples as TFDS reads them."""

import io
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from jaxtern.preparation.pipeline import prepare
from jaxtern.preparation.plan import Options

ROOT = Path(__file__).resolve().parents[2]


class Example(NamedTuple):
    label: int
    image: Any


def make_pixels(seed: int, height: int = 12, width: int = 16, channels: int = 3) -> np.ndarray:
    """A smooth picture, another for each seed."""
    waves = np.random.default_rng(seed).uniform(0.2, 2.0, (2, channels))
    y, x = np.mgrid[:height, :width] / max(height, width)
    grid = np.sin(y[..., None] * waves[0] * 6 + seed) + np.cos(x[..., None] * waves[1] * 6)
    return ((grid + 2) * 63).astype(np.uint8)


def make_jpeg(seed: int, height: int = 12, width: int = 16, channels: int = 3) -> bytes:
    space, sampling = ("GRAY", "Gray") if channels == 1 else ("RGB", "444")
    return simplejpeg.encode_jpeg(make_pixels(seed, height, width, channels), 95, space, sampling)


def make_file(image: Image.Image, kind: str, **options: Any) -> bytes:
    """The bytes of a file that Pillow writes."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def make_png(seed: int, height: int = 12, width: int = 16, channels: int = 3) -> bytes:
    pixels = make_pixels(seed, height, width, channels)
    return make_file(Image.fromarray(pixels[..., 0] if channels == 1 else pixels), "PNG")


def write_folder(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def write_tar(path: Path, files: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def write_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def read_back(out: Path, decode: bool = False) -> dict[str, dict[str, Example]]:
    """All examples by split and file name, which no two may share."""
    import tensorflow_datasets as tfds

    builder: Any = tfds.builder_from_directory(out)
    splits = {}
    for split in builder.info.splits:
        is_image = isinstance(builder.info.features["image"], tfds.features.Image)
        decoders = None if decode or not is_image else {"image": tfds.decode.SkipDecoding()}
        source = builder.as_data_source(split, decoders=decoders)
        examples = {
            e["file_name"].decode(): Example(int(e["label"]), e["image"])
            for e in (source[i] for i in range(len(source)))
        }
        assert len(examples) == len(source)
        splits[split] = examples
    return splits


def read_class_names(out: Path) -> list[str]:
    import tensorflow_datasets as tfds

    info: Any = tfds.builder_from_directory(out).info
    return info.features["label"].names


def run_command(*arguments: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "jaxtern.prepare", *map(str, arguments)],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
        text=True, capture_output=True, timeout=300, check=False,
    )  # fmt: skip


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Make(NamedTuple):
    """The functions above."""

    pixels: Callable = make_pixels
    jpeg: Callable = make_jpeg
    png: Callable = make_png
    file: Callable = make_file
    folder: Callable = write_folder
    tar: Callable = write_tar
    zip: Callable = write_zip


@pytest.fixture(scope="session")
def make() -> Make:
    return Make()


@pytest.fixture(scope="session", name="read_back")
def _read_back() -> Callable:
    return read_back


@pytest.fixture(scope="session", name="read_class_names")
def _read_class_names() -> Callable:
    return read_class_names


@pytest.fixture(scope="session", name="run_command")
def _run_command() -> Callable:
    return run_command


@pytest.fixture(scope="session", name="run_door")
def _run_door(run_door: Callable) -> Callable[..., subprocess.CompletedProcess]:
    """`run_command` in a process that need not import what takes seconds."""

    def run(*arguments: object) -> subprocess.CompletedProcess:
        answer = run_door("prepare", *arguments, cwd=ROOT)
        return subprocess.CompletedProcess(arguments, answer.status, answer.out, answer.err)

    return run


@pytest.fixture(scope="session", name="snapshot")
def _snapshot() -> Callable:
    return snapshot


@pytest.fixture
def class_folders() -> dict[str, bytes]:
    """Three classes in train and test, 5 and 2 images each, in every way to write the suffix."""
    suffixes = (".jpg", ".JPG", ".jpeg", ".JPEG", ".Jpg")
    return {
        f"{split}/{name}/{i}{suffixes[i]}": make_jpeg(100 * label + 10 * i + (split == "test"))
        for label, name in enumerate(("ant", "bee", "cow"))
        for split, count in (("train", 5), ("test", 2))
        for i in range(count)
    }


@pytest.fixture
def source(tmp_path: Path, make) -> Path:
    """60 images to train, of all sizes, and 12 to test, in six shards each."""
    return make.folder(
        tmp_path / "source",
        {
            f"{split}/{c}/{i:02d}.jpg": make.jpeg(i, 12 + i)
            for split, count in (("train", 30), ("test", 6))
            for c in ("ant", "bee")
            for i in range(count)
        },
    )


@pytest.fixture
def straight(tmp_path: Path, source: Path) -> Path:
    """The dataset, never interrupted."""
    prepare(source, tmp_path / "straight", options=Options(name="toy", shards=6))
    return tmp_path / "straight"
