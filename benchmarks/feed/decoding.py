"""Time to make crops of 224 x 224 pixels out of JPEGs of 500 x 375: ours, the decoder's alone, OpenCV's, and tf.data's.

Everything runs on one core, in one thread, in this process or in one that this one waits for, in alternating rounds;
times are medians of the rounds, and so are the ratios, each of two times of one round. Crops are those that inception
training draws, the same for all. Ours and OpenCV's end as uint8. tf.data's is decode_and_crop_jpeg and a bilinear
tf.image.resize in one map, its results left in float32; "fast" has fancy_upscaling=False and INTEGER_FAST. TensorFlow
may live in another environment, whose Python is given as --tensorflow. "whole", "half" and "eighth" only decode the
whole image, at these sizes; an eighth takes little more than reading the compressed frequencies, which all must.

Images come from a folder or a zip file of JPEGs. Those of less than 100 pixels a side become tiles of mosaics, doubled;
without any, images are noise with the spectrum of natural images, whose amplitude falls as the frequency rises. Images
made here have the quality 95. Errors are mean absolute differences, of values up to 255, from an exactly decoded image
resized bilinearly in floating point.
"""

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg

from benchmarks.timing import machine
from jaxtern.data.images import decode, read_shape, render
from jaxtern.data.preprocessing.views import View, inception_view

HEIGHT, WIDTH, SIZE, QUALITY = 375, 500, 224, 95
TILE, SMALL = 64, 100  # pixels a side: of a tile, and below which an image becomes one
MIN_ROUNDS = 5
MODES = ("default", "fast")  # of tf.data

Crop = Callable[[bytes, View], np.ndarray]


def measure(images: list[bytes], tensorflow: str | None, rounds: int) -> dict:
    """Times of all crops on one core, which this process keeps from then on."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # TensorFlow's process inherits it
    views = [draw_view(number, *read_shape(image)) for number, image in enumerate(images)]
    timed = {name: timer(crop, images, views) for name, crop in CROPS.items()}
    outputs: dict[str, Callable[[], Any]] = {
        name: lambda crop=CROPS[name]: list(map(crop, images, views)) for name in ("jaxtern", "OpenCV")
    }
    with contextlib.ExitStack() as stack:
        if tensorflow:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            worker = stack.enter_context(contextlib.closing(TensorFlow(tensorflow, folder, images, views)))
            timed |= {f"tf.data, {mode}": lambda mode=mode: worker.ask(mode) for mode in MODES}
            outputs |= {f"tf.data, {mode}": lambda mode=mode: worker.crops(mode) for mode in MODES}
        times = [{name: run() for name, run in timed.items()} for _ in range(rounds + 1)][1:]
        errors = {name: mean_error(crops(), images, views) for name, crops in outputs.items()}
    return summarize(times, errors)


def draw_view(number: int, height: int, width: int) -> View:
    """The crop of an image, not flipped: TensorFlow would have to do that too."""
    view = inception_view(np.random.default_rng([0, number]), height, width, SIZE)
    return view._replace(flip=False)


def crop_with_opencv(image: bytes, view: View) -> np.ndarray:
    pixels = np.asarray(cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR))
    box = cv2.resize(pixels[view.top : view.bottom, view.left : view.right], (SIZE, SIZE))
    return cv2.cvtColor(box, cv2.COLOR_BGR2RGB)


def shrink_with_simplejpeg(image: bytes, factor: int) -> np.ndarray:
    height, width = (-(-length // factor) for length in read_shape(image))
    return simplejpeg.decode_jpeg(image, min_height=height, min_width=width, min_factor=factor)


CROPS: dict[str, Crop] = {
    "jaxtern": lambda image, view: render(image, view, SIZE, 3),
    "OpenCV": crop_with_opencv,
    "simplejpeg, whole": lambda image, _: simplejpeg.decode_jpeg(image),
    "simplejpeg, half": lambda image, _: shrink_with_simplejpeg(image, 2),
    "simplejpeg, eighth": lambda image, _: shrink_with_simplejpeg(image, 8),
}


def timer(crop: Crop, images: list[bytes], views: list[View]) -> Callable[[], float]:
    def run() -> float:
        start = time.perf_counter()
        for image, view in zip(images, views, strict=True):
            crop(image, view)
        return (time.perf_counter() - start) / len(images)

    return run


class TensorFlow:
    """tf.data in a process of its own, which works when it is asked and sleeps else."""

    def __init__(self, python: str, folder: Path, images: list[bytes], views: list[View]):
        self._folder = folder
        boxes = np.array([(v.top, v.left, v.bottom - v.top, v.right - v.left) for v in views], np.int32)
        np.savez(folder / "crops.npz", boxes=boxes, sizes=[len(image) for image in images])
        (folder / "images.bin").write_bytes(b"".join(images))
        script = Path(__file__).with_name("decoding_tensorflow.py")
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [python, str(script), str(folder), str(SIZE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        )

    def ask(self, mode: str) -> float:
        """Seconds an image."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{mode}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            sys.exit("feed: TensorFlow's process has ended")
        return float(answer)

    def crops(self, mode: str) -> np.ndarray:
        self.ask(f"save {mode}")
        return np.load(self._folder / f"{mode}.npy")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def make(count: int) -> Iterator[bytes]:
    """JPEGs of random images with an amplitude of 1 / f^1.25, and colours that vary less than grey."""
    frequency = np.hypot(np.fft.fftfreq(HEIGHT)[:, None], np.fft.rfftfreq(WIDTH)[None])
    frequency[0, 0] = np.inf
    to_rgb = np.array([[1, 1, 1], [1, 0, -1], [0.5, -1, 0.5]]) * [[1.0], [0.2], [0.2]]
    for number in range(count):
        noise = np.random.default_rng([1, number]).standard_normal((3, HEIGHT, WIDTH))
        planes = np.fft.irfft2(np.fft.rfft2(noise) / frequency**1.25, (HEIGHT, WIDTH))
        planes *= 55 / planes.std(axis=(1, 2), keepdims=True)
        yield encode(np.moveaxis(planes, 0, -1) @ to_rgb + 120)


def load(path: Path, count: int) -> Iterator[bytes]:
    """JPEGs of a folder or a zip file, drawn at random; small ones as mosaics."""
    read = readers_of(path)
    names = sorted(name for name in read if name.lower().endswith((".jpg", ".jpeg")))
    if not names:
        sys.exit(f"feed: --images={path}: holds no JPEG")
    generator = np.random.default_rng(2)
    if min(read_shape(read[names[0]]())) >= SMALL:
        yield from (read[name]() for name in generator.permutation(names)[:count])
        return
    rows, columns = -(-HEIGHT // TILE), -(-WIDTH // TILE)
    for _ in range(count):
        chosen = [decode(read[name](), 3) for name in generator.choice(names, rows * columns)]
        tiles = [cv2.resize(tile, (TILE, TILE), interpolation=cv2.INTER_CUBIC) for tile in chosen]
        mosaic = np.vstack([np.hstack(tiles[columns * row : columns * (row + 1)]) for row in range(rows)])
        yield encode(mosaic[:HEIGHT, :WIDTH] + generator.normal(0, 4, (HEIGHT, WIDTH, 3)))  # doubling left none


def readers_of(path: Path) -> dict[str, Callable[[], bytes]]:
    if not path.is_file():
        return {str(each): each.read_bytes for each in path.rglob("*")}
    archive = zipfile.ZipFile(path)
    return {name: lambda name=name: archive.read(name) for name in archive.namelist()}


def encode(pixels: np.ndarray) -> bytes:
    pixels = np.ascontiguousarray(np.clip(np.rint(pixels), 0, 255).astype(np.uint8))
    return simplejpeg.encode_jpeg(pixels, quality=QUALITY, colorsubsampling="420")


def mean_error(crops: list[np.ndarray] | np.ndarray, images: list[bytes], views: list[View]) -> float:
    """From exact decoding and bilinear resizing in floating point."""
    differences = []
    for crop, image, view in zip(crops, images, views, strict=True):
        box = decode(image, 3)[view.top : view.bottom, view.left : view.right].astype(np.float32)
        differences.append(np.mean(np.abs(crop - cv2.resize(box, (SIZE, SIZE), interpolation=cv2.INTER_LINEAR))))
    return float(np.mean(differences))


def summarize(rounds: list[dict[str, float]], errors: dict[str, float]) -> dict:
    rows = []
    for name in rounds[0]:
        times = [each[name] for each in rounds]
        rows.append(
            {
                "name": name,
                "milliseconds": 1e3 * statistics.median(times),
                "least": 1e3 * min(times),
                "most": 1e3 * max(times),
                "images_per_second": 1 / statistics.median(times),
                "jaxtern_is_faster": statistics.median(each[name] / each["jaxtern"] for each in rounds),
                "mean_error": errors.get(name),
            }
        )
    return {"rows": rows, "seconds": rounds}


def describe(images: list[bytes], path: Path | None) -> dict:
    """The machine and what the images were."""
    return {
        "machine": machine(),
        "images": path.name if path else "noise",
        "count": len(images),
        "kilobytes": statistics.mean(map(len, images)) / 1e3,
    }


def as_table(record: dict) -> str:
    lines = [
        f"{record['machine']}; {record['count']} images: {record['images']}, {record['kilobytes']:.0f} KB on average\n",
        "| | ms an image | least to most | images/s a core | times jaxtern's | mean error |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in record["rows"]:
        error = "" if row["mean_error"] is None else f"{row['mean_error']:.2f}"
        lines.append(
            f"| {row['name']} | {row['milliseconds']:.3f} | {row['least']:.3f} to {row['most']:.3f} "
            f"| {row['images_per_second']:.0f} | {row['jaxtern_is_faster']:.2f} | {error} |"
        )
    return "\n".join(lines)
