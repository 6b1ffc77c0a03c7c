"""Images, or text, to logits by an exported network, without the code that trained it."""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import jax
import jax.export
import numpy as np

from jaxtern.artifact.storage import read_artifact
from jaxtern.data.dataset import Records, Split
from jaxtern.data.preprocessing.families import get_preprocessing
from jaxtern.data.rendering import evaluation_batch_size, render_image


class Predictor:
    """An exported network, loaded on JAX's default device."""

    def __init__(self, folder: str | Path):
        """Reads a folder that `python -m jaxtern.export` wrote.

        Raises:
          ValueError, OSError: if there is none, or if it is damaged or of another version.
        """
        self.manifest, program, weights = read_artifact(Path(folder))
        self.of_images = len(self.manifest.input_shape) == 3
        self._preprocessing = get_preprocessing(self.manifest.preprocessing) if self.of_images else None
        inputs = jax.ShapeDtypeStruct((1, *self.manifest.input_shape), np.uint8)
        try:
            exported = jax.export.deserialize(bytearray(program))
            self._program = jax.jit(exported.call)
            logits = self._program.lower(weights, inputs).out_info
        except Exception as error:  # what JAX raises for a program of another version is not documented
            written = f"was written by JAX {self.manifest.jax_version}, this is {jax.__version__}"
            raise ValueError(f"ARTEFACT={str(folder)!r}: its program cannot be read ({written}): {error}") from error
        found = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(logits)]
        if found != [(self._none(1).shape, np.float32)]:
            wrong = f"num_classes={self.manifest.num_classes}: its program gives {found} for an example"
            raise ValueError(f"ARTEFACT={str(folder)!r}: {wrong}")
        self._weights = jax.device_put(weights)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes, or their numbers where names are not known."""
        return self.manifest.class_names or tuple(map(str, range(self.manifest.num_classes)))

    def render(self, image: bytes | np.ndarray) -> np.ndarray:
        """uint8[H, W, C], as `predict` takes it, of a JPEG, a PNG or uint8[height, width, C].

        Raises:
          ValueError: if it cannot be read, or has another shape where the network takes whole images.
        """
        shape = self.manifest.input_shape
        pixels = render_image(image, self._preprocessing, self.manifest.image_size, shape[2])
        if pixels.shape != shape:
            raise ValueError(f"its shape is {pixels.shape}: the network takes whole images of {shape}")
        return pixels

    def predict(self, pixels: np.ndarray, batch_size: int | None = None) -> np.ndarray:
        """float32[n, K] logits of images, or float32[n, T, K] of texts.

        Args:
          pixels: uint8[n, H, W, C]; or uint8[n, T], characters as places in `labels`.
          batch_size: examples at once, the last ones filled up with zeros; None: as evaluation has it.
        """
        batch_size, logits = batch_size or self._batch_size(len(pixels)), [self._none()]
        for start in range(0, len(pixels), batch_size):
            run = pixels[start : start + batch_size]
            padded = np.pad(run, [(0, batch_size - len(run)), *[(0, 0)] * (run.ndim - 1)])
            logits.append(np.asarray(self._program(self._weights, padded))[: len(run)])
        return np.concatenate(logits)

    def predict_records(
        self, split: Split | Records, on_damage: Callable[[int, str], None], batch_size: int | None = None
    ) -> np.ndarray:
        """float32[n, K] logits of examples, which are read beside the work; of damaged ones they mean nothing.

        A damaged example leaves its place empty, so that others have the bits that they would have beside it whole.
        `on_damage` is told which ones cannot be read, and why.
        """
        import cv2

        cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # who calls is told of damage
        batch_size = batch_size or self._batch_size(split.size)
        logits = [self._none()]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:

            def start_reading(start: int) -> list[Future[np.ndarray]]:
                examples = range(start, min(start + batch_size, split.size))
                return [pool.submit(lambda example: self.render(split.read(example).image), each) for each in examples]

            ahead = start_reading(0)
            for start in range(0, split.size, batch_size):
                reading, ahead = ahead, start_reading(start + batch_size)
                pixels = np.zeros((len(reading), *self.manifest.input_shape), np.uint8)
                for number, future in enumerate(reading):
                    try:
                        pixels[number] = future.result()
                    except (ValueError, OSError) as error:
                        on_damage(start + number, str(error))
                logits.append(self.predict(pixels, batch_size))
        return np.concatenate(logits)

    def _batch_size(self, num_examples: int) -> int:
        """The size of the batches in which evaluation takes so many examples."""
        height, width, *_ = *self.manifest.input_shape, 1
        return evaluation_batch_size(num_examples, height, width)

    def _none(self, size: int = 0) -> np.ndarray:
        each = () if self.of_images else self.manifest.input_shape
        return np.zeros((size, *each, self.manifest.num_classes), np.float32)
