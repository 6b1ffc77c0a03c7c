"""What decoding.py runs in a Python with TensorFlow: tf.data over the same images and crops.

Reads the images of the folder given, then modes line by line from standard input; answers each with seconds an image,
and `save MODE` with 0 once the crops lie in the folder.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf  # pyright: ignore[reportMissingImports, reportMissingModuleSource]

MODES = {"default": {}, "fast": {"fancy_upscaling": False, "dct_method": "INTEGER_FAST"}}


def main() -> None:
    folder, size = Path(sys.argv[1]), int(sys.argv[2])
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    crops = np.load(folder / "crops.npz")
    whole, ends = (folder / "images.bin").read_bytes(), np.cumsum(crops["sizes"]).tolist()
    images = [whole[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    iterators = {mode: pipeline(images, crops["boxes"], size, options) for mode, options in MODES.items()}
    for line in sys.stdin:
        command = line.split()
        if command[0] == "save":
            np.save(folder / f"{command[1]}.npy", [next(iterators[command[1]]).numpy() for _ in images])
            seconds = 0.0
        else:
            seconds = time_of(iterators[command[0]], len(images))
        print(seconds, flush=True)


def pipeline(images: list[bytes], boxes: np.ndarray, size: int, options: dict[str, Any]) -> Iterator[Any]:
    """An endless one, in one thread."""

    def crop(image: Any, box: Any) -> Any:
        pixels = tf.io.decode_and_crop_jpeg(image, box, channels=3, **options)
        return tf.image.resize(pixels, [size, size])

    settings = tf.data.Options()
    settings.threading.private_threadpool_size = 1
    settings.threading.max_intra_op_parallelism = 1
    settings.autotune.enabled = False
    dataset = tf.data.Dataset.from_tensor_slices((images, boxes)).repeat().map(crop, num_parallel_calls=1)
    return iter(dataset.with_options(settings))


def time_of(iterator: Iterator[Any], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        next(iterator)
    return (time.perf_counter() - start) / count


if __name__ == "__main__":
    main()
