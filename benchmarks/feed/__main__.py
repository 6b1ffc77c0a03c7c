"""What a batch costs: augmentation in the compiled step, and JPEGs streamed from a prepared dataset.

    python -m benchmarks.feed [--tensorflow PYTHON] [--images FOLDER_OR_ZIP] [--rounds 9] [--json feed.json]

Resident: a training step of CifarNet, 128 images by four workers with ternary gradients, on all cores; once with the
augmentation of CIFAR-10 (crop of 24 from 32, flip, brightness, contrast, whitening) on images that lie on the device,
and once on images of 24 by 24 that are only scaled. The steps alternate, four times as many as the rounds; the ratio is
the median of neighbours'. And the augmentation of a batch in a program of its own.

Streaming: 224x224 crops as inception training draws them, out of 500x375 JPEGs. First on one core, as
decoding.py explains: ours, tf.data's with the same crops, and what libjpeg-turbo takes to decode the
whole images. Then through `StreamingFeed`, from ArrayRecord shards to batches of 64 in NumPy: in one thread on one
core, and on all cores in threads or in processes; its share is of what that many cores would render without it.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.commands import at_least, create_parser, output_file, save
from benchmarks.feed import decoding
from jaxtern.data.feed import StreamingFeed
from jaxtern.data.preprocessing.families import get_preprocessing
from jaxtern.data.records import open_folder
from jaxtern.preparation.pipeline import prepare
from jaxtern.training.recipe.data import DataSection
from jaxtern.training.recipe.model import ModelSection
from jaxtern.training.recipe.optimizer import OptimizerSection
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.recipe.run import RunSection
from jaxtern.training.run.inputs import Feed, create_network, open_inputs
from jaxtern.training.step.mesh import create_mesh
from jaxtern.training.step.state import create_run
from jaxtern.training.step.step import create_train_step

EXAMPLES, BATCH = 5000, 128
IMAGES = 128
RESIDENT_ROUNDS = 4
STREAMED_BATCH, STREAMED_BATCHES = 64, 12


def main() -> None:
    arguments = parse()
    every = os.sched_getaffinity(0)
    source = arguments.images
    images = list(decoding.load(source, IMAGES) if source else decoding.make(IMAGES))
    record: dict[str, Any] = {"resident": measure_resident(arguments.rounds)}
    resident = record["resident"]
    print(
        f"CifarNet, {BATCH} images a step: {resident['augmented_milliseconds']:.1f} ms with augmentation,"
        f" {resident['plain_milliseconds']:.1f} without: {resident['ratio']:.3f} times;"
        f" augmentation alone {resident['alone_milliseconds']:.2f} ms\n"
    )
    record["decoding"] = decoding.measure(images, arguments.tensorflow, arguments.rounds)
    record["decoding"] |= decoding.describe(images, source)
    os.sched_setaffinity(0, every)
    print(f"{decoding.as_table(record['decoding'])}\n", flush=True)
    alone = next(row for row in record["decoding"]["rows"] if row["name"] == "jaxtern")["images_per_second"]
    record["streaming"] = measure_streaming(images, arguments.rounds)
    print("| cores | threads | processes | images/s | share |\n| ---: | ---: | ---: | ---: | ---: |")
    for row in record["streaming"]:
        share = row["images_per_second"] / alone / row["cores"]
        places = row["cores"], row["threads"], row["processes"], f"{row['images_per_second']:.0f}", f"{share:.0%}"
        print(f"| {' | '.join(map(str, places))} |")
    save(record, arguments.json)


def parse() -> argparse.Namespace:
    parser = create_parser(__doc__)
    parser.add_argument("--images", type=Path, help="a folder or a zip file of JPEGs; default: noise")
    parser.add_argument("--tensorflow", help="a Python with TensorFlow; left out: no rows of it")
    parser.add_argument("--rounds", type=at_least(decoding.MIN_ROUNDS), default=9)
    parser.add_argument("--json", type=output_file, help="file for the figures")
    return parser.parse_args()


class Training:
    """CifarNet in training on made images."""

    def __init__(self, preprocessing: str, side: int):
        recipe = Recipe(
            DataSection(
                name="synthetic", synthetic_shape=(side, side, 3), synthetic_classes=10, synthetic_examples=EXAMPLES,
                preprocessing=preprocessing,
            ),
            ModelSection(name="cifarnet"),
            optimizer=OptimizerSection(name="adam", learning_rate=2e-4, weight_decay=0.004),
            run=RunSection(batch_size=BATCH, num_workers=4, num_devices=1),
        )  # fmt: skip
        mesh, inputs = create_mesh(recipe), open_inputs(recipe.data)
        model = create_network(recipe.model, inputs.input_shape, inputs.dataset.num_classes, recipe.run.seed)
        program, self.state = create_run(recipe, model, EXAMPLES, mesh)
        self.step, self.feed = create_train_step(recipe, program, mesh), Feed(recipe.data, recipe.run, inputs, mesh)
        self.batches = self.feed.batches(0)

    def run(self) -> float:
        """Seconds of a step, from asking for its batch to the new weights."""
        start = time.perf_counter()
        self.state, metrics = self.step(self.state, self.feed.examples, next(self.batches))
        jax.block_until_ready((self.state, metrics))
        return time.perf_counter() - start


def measure_resident(rounds: int) -> dict[str, Any]:
    """Milliseconds of a step with and without augmentation, and of the augmentation alone."""
    augmented, plain, alone = Training("cifar10", 32), Training("mnist", 24), augmentation()
    times = [(augmented.run(), plain.run(), alone()) for _ in range(RESIDENT_ROUNDS * rounds + 2)][2:]
    return {
        "augmented_milliseconds": 1e3 * statistics.median(a for a, _, _ in times),
        "plain_milliseconds": 1e3 * statistics.median(b for _, b, _ in times),
        "alone_milliseconds": 1e3 * statistics.median(c for _, _, c in times),
        "ratio": statistics.median(a / b for a, b, _ in times),
    }


def augmentation() -> Callable[[], float]:
    """Seconds of augmenting as many images as a step has, in a program of its own."""
    images = jax.random.bits(jax.random.key(0), (BATCH, 32, 32, 3), jnp.uint8)
    keys, augment = jax.random.split(jax.random.key(1), BATCH), get_preprocessing("cifar10").augment
    program = jax.jit(lambda images, keys: augment(images, keys, None))

    def run() -> float:
        start = time.perf_counter()
        jax.block_until_ready(program(images, keys))
        return time.perf_counter() - start

    return run


def measure_streaming(images: list[bytes], rounds: int) -> list[dict[str, Any]]:
    """Images/s from shards to batches, by cores, threads and processes."""
    every, first = os.sched_getaffinity(0), {min(os.sched_getaffinity(0))}
    ways = [(first, 1, 0), (every, len(every), 0), (every, 1, len(every))]
    with tempfile.TemporaryDirectory() as folder:
        split = open_folder(write_dataset(Path(folder), images)).train
        rates: list[list[float]] = [[] for _ in ways]
        for _ in range(rounds):
            for way, found in zip(ways, rates, strict=True):
                found.append(stream(split, *way))
    os.sched_setaffinity(0, every)
    return [
        {"cores": len(cores), "threads": threads, "processes": processes, "images_per_second": statistics.median(found)}
        for (cores, threads, processes), found in zip(ways, rates, strict=True)
    ]


def write_dataset(folder: Path, images: list[bytes]) -> Path:
    """A prepared dataset of these JPEGs."""
    for split, part in (("train", images), ("validation", images[:2])):
        for number, image in enumerate(part):
            path = folder / "source" / split / f"class{number % 2}" / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(image)
    prepare(folder / "source", folder / "out")
    return folder / "out"


def stream(split: Any, cores: set[int], threads: int, processes: int) -> float:
    """Images/s after the first batches, on these cores."""
    os.sched_setaffinity(0, cores)  # threads and processes that start from here on inherit it
    feed = StreamingFeed(split, STREAMED_BATCH, 0, None, get_preprocessing("inception"), None, threads, processes)
    batches = feed.batches(0)
    for _ in range(2 * max(threads, processes) + 2):
        next(batches)
    start = time.perf_counter()
    for _ in range(STREAMED_BATCHES):
        next(batches)
    seconds = time.perf_counter() - start
    batches.close()
    return STREAMED_BATCHES * STREAMED_BATCH / seconds


if __name__ == "__main__":
    main()
