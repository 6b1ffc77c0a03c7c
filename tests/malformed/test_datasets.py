"""Datasets that are none: idx files, text, prepared folders, and the sources of a preparation."""

# ruff: noqa: E501 - tables
import gzip
import io
import json
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import simplejpeg

OPTIONS = hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
GZIPPED = gzip.compress(bytes(1000))


def idx(*shape: int, content: bytes | None = None, magic: int = 0x800) -> bytes:
    size = int(np.prod(shape)) if content is None else 0
    return struct.pack(f">I{len(shape)}I", magic + len(shape), *shape) + (bytes(size) if content is None else content)


def jpeg(seed: int = 0, height: int = 12, width: int = 16) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return simplejpeg.encode_jpeg(pixels, 95, "RGB", "444")


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def class_folders() -> dict[str, bytes]:
    return {f"{s}/{c}/{i}.jpg": jpeg(i) for s in ("train", "test") for c in ("ant", "bee") for i in range(2)}


def tar_of(files: dict[str, bytes], **header: Any) -> bytes:
    """A tar, with these fields in the headers of all members."""
    parts = []
    for name, content in files.items():
        info = tarfile.TarInfo(name)
        info.size = len(content)
        for field, value in header.items():
            setattr(info, field, value)
        parts += [info.tobuf(tarfile.GNU_FORMAT), content, bytes(-len(content) % 512)]
    return b"".join(parts) + bytes(1024)


def zip_of(files: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return file.getvalue()


def flip(content: bytes, place: int, bits: int = 0xFF) -> bytes:
    changed = bytearray(content)
    changed[place % len(content)] ^= bits
    return bytes(changed)


MNIST = {
    IMAGES: idx(4, 8, 8), LABELS: idx(4),
    "t10k-images-idx3-ubyte": idx(2, 8, 8), "t10k-labels-idx1-ubyte": idx(2),
}  # fmt: skip
IDX = {  # files in place of MNIST's
    "nothing": {IMAGES: b""},
    "a magic alone": {IMAGES: idx(4, 8, 8)[:4]},
    "half a header": {IMAGES: idx(4, 8, 8)[:10]},
    "a header alone": {IMAGES: idx(4, 8, 8)[:16]},
    "a byte too few": {IMAGES: idx(4, 8, 8)[:-1]},
    "a byte too many": {IMAGES: idx(4, 8, 8) + b"\0"},
    "labels for images": {IMAGES: MNIST[LABELS]},
    "images for labels": {LABELS: MNIST[IMAGES]},
    "floats": {IMAGES: idx(4, 8, 8, magic=0xD00)},
    "signed bytes": {IMAGES: idx(4, 8, 8, magic=0x900)},
    "a little-endian header": {IMAGES: struct.pack("<4I", 0x803, 4, 8, 8) + bytes(256)},
    "four dimensions": {IMAGES: idx(4, 8, 8, 1)},
    "no images": {IMAGES: idx(0, 8, 8), LABELS: idx(0)},
    "images of no rows": {IMAGES: idx(4, 0, 8), "t10k-images-idx3-ubyte": idx(2, 0, 8)},
    "images of no pixels": {IMAGES: idx(4, 0, 0), "t10k-images-idx3-ubyte": idx(2, 0, 0)},
    "no test images": {"t10k-images-idx3-ubyte": idx(0, 8, 8), "t10k-labels-idx1-ubyte": idx(0)},
    "more images than there are": {IMAGES: idx(2**32 - 1, 2**32 - 1, 2**32 - 1, content=b"x")},
    "more images, gzipped": {IMAGES: None, IMAGES + ".gz": gzip.compress(idx(2**32 - 1, 2**32 - 1, 2**32 - 1, content=b"x"))},
    "a bomb": {IMAGES: None, IMAGES + ".gz": gzip.compress(idx(4, 8, 8)) + gzip.compress(bytes(1 << 30), 1)},
    "a label too high": {LABELS: idx(4, content=b"\0\1\2\12")},
    "a label of 255": {LABELS: idx(4, content=b"\xff\0\0\0")},
    "fewer labels": {LABELS: idx(3)},
    "test images of another size": {"t10k-images-idx3-ubyte": idx(2, 9, 8)},
    "gzip cut short": {IMAGES: None, IMAGES + ".gz": gzip.compress(MNIST[IMAGES])[:-9]},
    "gzip with another sum": {IMAGES: None, IMAGES + ".gz": flip(gzip.compress(MNIST[IMAGES]), -6)},
    "gzip with something behind": {IMAGES: None, IMAGES + ".gz": gzip.compress(MNIST[IMAGES]) + b"behind"},
    "gzip that is none": {IMAGES: None, IMAGES + ".gz": MNIST[IMAGES]},
    "plain that is gzipped": {IMAGES: gzip.compress(MNIST[IMAGES])},
    "a zip": {IMAGES: zip_of({IMAGES: MNIST[IMAGES]})},
    "a page": {IMAGES: b"<!DOCTYPE html><title>404</title>"},
    "a missing file": {LABELS: None},
}  # fmt: skip

TEXTS = {
    "nothing": b"",
    "a letter": b"a",
    "Latin": "Größe ".encode("latin-1") * 1000,
    "UTF-16": ("a" * 1000).encode("utf-16"),
    "half a letter": b"a" * 1000 + "ö".encode()[:1],
    "half of a pair": b"\xed\xa0\x80" * 1000,
    "a letter that is too long": b"\xc0\x80" * 1000,
    "a picture": jpeg(),
    "a zip": zip_of({"a.txt": b"a" * 1000}),
    "more than 256 letters": "".join(map(chr, range(1000, 1300))).encode() * 10,
}


@pytest.mark.parametrize("door", ["train", "prepare"])
@pytest.mark.parametrize("case", IDX)
def test_doors_refuse_idx_files(refuses: Callable, tmp_path: Path, case: str, door: str):
    files = {name: content for name, content in (MNIST | IDX[case]).items() if content is not None}
    write(tmp_path / "mnist", files)
    if door == "prepare":
        if case in ("a label too high", "a label of 255", "test images of another size"):
            pytest.skip("what a preparation takes, whose images may differ, and their classes be any numbers")
        refuses("prepare", "mnist", "out", "--workers=1", cwd=tmp_path)
    else:
        refuses(
            "train",
            "--config=mnist",
            "--config.data.dir=mnist",
            "--workdir=run",
            "--config.run.batch_size=4",
            cwd=tmp_path,
        )


@pytest.mark.slow
@OPTIONS
@hypothesis.given(place=st.integers(0, 15), bits=st.integers(1, 255))
def test_train_refuses_an_idx_file_with_another_header(refuses: Callable, tmp_path: Path, place: int, bits: int):
    write(tmp_path / "mnist", MNIST | {IMAGES: flip(MNIST[IMAGES], place, bits)})
    refuses("train", "--config=mnist", "--config.data.dir=mnist", "--workdir=run", cwd=tmp_path, names=[IMAGES])


@pytest.mark.parametrize("case", TEXTS)
def test_train_refuses_text(refuses: Callable, tmp_path: Path, case: str):
    (tmp_path / "play.txt").write_bytes(TEXTS[case])
    refuses(
        "train", "--config=charlm", "--config.data.name=./play.txt", "--workdir=run", cwd=tmp_path, names=["play.txt"]
    )


def link_to_itself(folder: Path) -> None:
    (folder / "data").symlink_to("data")


def link_to_nothing(folder: Path) -> None:
    (folder / "data").symlink_to("nowhere")


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "data")


def loops(folder: Path) -> None:
    write(folder / "data", class_folders())
    for name in ("a", "b", "c"):
        (folder / "data" / "train" / "ant" / name).symlink_to("..")


def dangling_image(folder: Path) -> None:
    write(folder / "data", class_folders())
    (folder / "data/train/ant/9.jpg").symlink_to("nowhere")


def looping_image(folder: Path) -> None:
    write(folder / "data", class_folders())
    (folder / "data/train/ant/9.jpg").symlink_to("9.jpg")


def pipe_image(folder: Path) -> None:
    write(folder / "data", class_folders())
    os.mkfifo(folder / "data/train/ant/9.jpg")


def device_image(folder: Path) -> None:
    write(folder / "data", class_folders())
    (folder / "data/train/ant/9.jpg").symlink_to("/dev/zero")


PATHS = [link_to_itself, link_to_nothing, pipe, loops, dangling_image, looping_image, pipe_image, device_image]


@pytest.mark.parametrize("make", PATHS)
def test_prepare_refuses_paths(refuses: Callable, tmp_path: Path, make: Callable):
    make(tmp_path)
    refuses("prepare", "data", "out", "--workers=1", cwd=tmp_path)


@pytest.mark.parametrize("make", [link_to_itself, link_to_nothing, pipe])
@pytest.mark.parametrize("config", ["digits", "charlm"])
def test_train_refuses_paths(refuses: Callable, tmp_path: Path, make: Callable, config: str):
    make(tmp_path)
    refuses("train", f"--config={config}", "--config.data.name=./data", "--workdir=run", cwd=tmp_path, names=["./data"])


def broken_zip_entry(field: int, value: bytes) -> bytes:
    """A zip whose first entry of the directory at the end has other bytes from `field` on."""
    content = zip_of(class_folders())
    place = content.index(b"PK\1\2") + field
    return content[:place] + value + content[place + len(value) :]


ARCHIVES = {
    "an empty zip": ("data.zip", zip_of({})),
    "an empty tar": ("data.tar", tar_of({})),
    "an empty file": ("data.zip", b""),
    "an empty file of a tar": ("data.tar", b""),
    "zeros": ("data.tar", bytes(1 << 16)),
    "a zip cut short": ("data.zip", zip_of(class_folders())[:-30]),
    "a zip without its head": ("data.zip", zip_of(class_folders())[40:]),
    "a zip's end alone": ("data.zip", zip_of(class_folders())[-22:]),
    "a tar cut short": ("data.tar", tar_of(class_folders())[:3000]),
    "a tar with another sum": ("data.tar", flip(tar_of(class_folders()), 150)),
    "a compressed tar of links": ("data.tar.gz", gzip.compress(tar_of({"train/ant/1.jpg": b""}, type=tarfile.SYMTYPE, linkname="/etc/passwd"))),
    "a compressed tar of devices": ("data.tar.gz", gzip.compress(tar_of({"train/ant/1.jpg": b""}, type=tarfile.CHRTYPE, devmajor=1, devminor=5))),
    "a compressed tar of places outside": ("data.tar.gz", gzip.compress(tar_of({"../../1.jpg": jpeg()}))),
    "a compressed tar of gigantic images": ("data.tar.gz", gzip.compress(tar_of(class_folders(), size=1 << 60)[:20480])),
    "a compressed tar of damage": ("data.tar.gz", gzip.compress(tar_of(dict.fromkeys(class_folders(), b"no image")))),
    "a gzip cut short": ("data.tar.gz", gzip.compress(tar_of(class_folders()))[:-100]),
    "a gzip of nothing": ("data.tar.gz", gzip.compress(b"")),
    "an xz that is none": ("data.tar.xz", b"\xfd7zXZ\0" + bytes(100)),
    "a bzip2 that is none": ("data.tar.bz2", b"BZh9" + bytes(100)),
    "a zstandard that is none": ("data.tar.zst", b"\x28\xb5\x2f\xfd" + bytes(100)),
    "a page": ("data.zip", b"<!DOCTYPE html><title>404</title>"),
    "an encrypted zip": ("data.zip", broken_zip_entry(8, b"\1\0")),
    "a zip of an unknown method": ("data.zip", broken_zip_entry(10, b"\x63\0")),
    "a zip of a later version": ("data.zip", broken_zip_entry(6, b"\xff\0")),
    "a zip with another sum": ("data.zip", broken_zip_entry(16, b"abcd")),
    "a zip of a gigantic image": ("data.zip", broken_zip_entry(20, b"\xfe\xff\xff\xff\xfe\xff\xff\xff")),
    "a zip of a place outside": ("data.zip", broken_zip_entry(42, b"\xf0\xff\xff\x7f")),
    "a zip of text": ("data.zip", zip_of({"train/ant/1.txt": b"x", "train/bee/1.txt": b"x"})),
    "a zip of one class": ("data.zip", zip_of({"train/ant/1.jpg": jpeg(), "test/ant/1.jpg": jpeg()})),
    "a zip of no classes": ("data.zip", zip_of({"1.jpg": jpeg(), "2.jpg": jpeg(1)})),
    "a zip of damage": ("data.zip", zip_of(dict.fromkeys(class_folders(), b"no image"))),
    "a tar of links": ("data.tar", tar_of(dict.fromkeys(class_folders(), b""), type=tarfile.SYMTYPE, linkname="/etc/passwd")),
    "a tar of hard links": ("data.tar", tar_of(dict.fromkeys(class_folders(), b""), type=tarfile.LNKTYPE, linkname="x")),
    "a tar of devices": ("data.tar", tar_of(dict.fromkeys(class_folders(), b""), type=tarfile.CHRTYPE, devmajor=1, devminor=5)),
    "a tar of pipes": ("data.tar", tar_of(dict.fromkeys(class_folders(), b""), type=tarfile.FIFOTYPE)),
    "a tar of gigantic images": ("data.tar", tar_of(dict.fromkeys(class_folders(), b""), size=1 << 60)[:20480]),
    "a tar of negative images": ("data.tar", tar_of({"train/ant/1.jpg": jpeg()}, size=-1024)),
    "a tar of damage": ("data.tar", tar_of(dict.fromkeys(class_folders(), b"no image"))),
}  # fmt: skip


def sparse_tar() -> bytes:
    """Members that say of themselves that they have an exbibyte of holes."""
    headers = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.size": str(1 << 60)}
    headers["GNU.sparse.map"] = f"0,0,{1 << 60},0"
    infos = []
    for name in class_folders():
        info = tarfile.TarInfo(name)
        info.pax_headers = headers | {"GNU.sparse.name": name}
        infos.append(info.tobuf(tarfile.PAX_FORMAT))
    return b"".join(infos) + bytes(1024)


ARCHIVES["a tar of holes"] = ("data.tar", sparse_tar())


@pytest.mark.parametrize("case", ARCHIVES)
def test_prepare_refuses_archives(refuses: Callable, tmp_path: Path, case: str):
    name, content = ARCHIVES[case]
    (tmp_path / name).write_bytes(content)
    refuses("prepare", name, "out", "--workers=1", cwd=tmp_path, leaves="out", names=[])


def png_of(width: int, height: int) -> bytes:
    """The header of a PNG of so many pixels, and the data of none."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def jpeg_of(height: int, width: int) -> bytes:
    content = jpeg()
    place = content.index(b"\xff\xc0") + 5
    return content[:place] + struct.pack(">HH", height, width) + content[place + 4 :]


PICTURES = {
    "nothing": b"",
    "a magic alone": b"\xff\xd8\xff",
    "half": jpeg()[:200],
    "no end": jpeg()[:-2],
    "zeros": bytes(1000),
    "a page": b"<html>",
    "no rows": jpeg_of(0, 16),
    "gigantic JPEG": jpeg_of(65500, 65500),
    "gigantic PNG": png_of(2**31 - 1, 2**31 - 1),
    "large PNG": png_of(30000, 30000),
    "PNG of no rows": png_of(16, 0),
    "half a PNG": png_of(16, 16)[:40],
    "a PNG with another sum": flip(png_of(16, 12), 20),
    "a GIF cut short": b"GIF89a\xff\xff\xff\xff",
    "a TIFF of itself": b"II*\0\x08\0\0\0\x01\0\0\1\3\0\1\0\0\0\0\0\0\0\x08\0\0\0",
    "a BMP of a world": b"BM" + struct.pack("<IHHIIiiHHIIiiII", 60, 0, 0, 54, 40, 2**30, 2**30, 1, 24, 0, 0, 0, 0, 0, 0),
    "an SVG": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "a PostScript that runs": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(x) print quit\n",
}  # fmt: skip


@pytest.mark.parametrize("case", PICTURES)
def test_prepare_refuses_pictures(refuses: Callable, tmp_path: Path, case: str):
    write(tmp_path / "data", class_folders() | {"train/ant/bad.jpg": PICTURES[case]})
    refuses("prepare", "data", "out", "--workers=1", cwd=tmp_path, leaves="out", names=["train/ant/bad.jpg"])


@pytest.mark.parametrize("door", [["export", "--out=exported", "--data_dir=x"], ["evaluate"]], ids=lambda door: door[0])
def test_data_of_other_classes_than_the_run_had_are_refused(refuses: Callable, run_copy: Path, door: list[str]):
    path = run_copy / "dataset.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"class_names": ["ant", "bee", "cat"]}))
    refuses(*door, "--workdir=run", cwd=run_copy.parent, names=["workdir='run'", "other classes than these data"])
