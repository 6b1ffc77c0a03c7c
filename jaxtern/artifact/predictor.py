"""Runs an exported network on images or text, without the code that trained it."""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import jax
import jax.export
import numpy as np

from jaxtern.artifact.storage import read_artifact
from jaxtern.data.any_image import as_plain
from jaxtern.data.dataset import Records, Split
from jaxtern.data.preprocessing.families import get_preprocessing
from jaxtern.data.rendering import CHARACTER, evaluation_batch_size, render_image


class Predictor:
    """An exported network, loaded on JAX's default device."""

    def __init__(self, folder: str | Path):
        """Reads a folder written by `python -m jaxtern.export`; raises ValueError or OSError if that fails."""
        self.manifest, program, weights = read_artifact(Path(folder))
        self.of_images = len(self.manifest.input_shape) == 3
        self._sides = (*self.manifest.input_shape, CHARACTER)[:2]
        self._preprocessing = get_preprocessing(self.manifest.preprocessing) if self.of_images else None
        inputs = jax.ShapeDtypeStruct((1, *self.manifest.input_shape), np.uint8)
        try:
            exported = jax.export.deserialize(bytearray(program))
            self._program = jax.jit(exported.call)
            logits = self._program.lower(weights, inputs).out_info
        except Exception as error:  # JAX does not document what it raises for a program of another version
            written = f"was written by JAX {self.manifest.jax_version}, this is {jax.__version__}"
            raise ValueError(f"ARTEFACT={str(folder)!r}: its program cannot be read ({written}): {error}") from error
        found = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(logits)]
        if found != [(self._none(1).shape, np.float32)]:
            wrong = f"num_classes={self.manifest.num_classes}: its program gives {found} for an example"
            raise ValueError(f"ARTEFACT={str(folder)!r}: {wrong}")
        self._weights = jax.device_put(weights)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes, or their numbers if names are not known."""
        return self.manifest.class_names or tuple(map(str, range(self.manifest.num_classes)))

    def render(self, image: bytes | np.ndarray) -> np.ndarray:
        """Makes the input of `predict`, uint8[H, W, C], from the bytes of an image file, or from uint8[h, w, C].

        An image is turned upright by its EXIF tag, as preparation does. Raises ValueError if it cannot be read, or has
        the wrong shape for a network that takes whole images.
        """
        return self._render(as_plain(image) if isinstance(image, bytes) else image)

    def _render(self, image: bytes | np.ndarray) -> np.ndarray:
        """The same from a dataset's record, whose EXIF tag training does not heed."""
        shape = self.manifest.input_shape
        pixels = render_image(image, self._preprocessing, self.manifest.image_size, shape[2])
        if pixels.shape != shape:
            raise ValueError(f"its shape is {pixels.shape}: the network takes whole images of {shape}")
        return pixels

    def predict(self, pixels: np.ndarray, batch_size: int | None = None) -> np.ndarray:
        """Computes logits: float32[n, K] for images, float32[n, T, K] for texts.

        Args:
          pixels: uint8[n, H, W, C]; or uint8[n, T], characters as places in `labels`.
          batch_size: of each call, the last filled up with zeros; None: as in evaluation, for the same bits.
        """
        batch_size, logits = batch_size or evaluation_batch_size(len(pixels), *self._sides), [self._none()]
        for start in range(0, len(pixels), batch_size):
            run = pixels[start : start + batch_size]
            padded = np.pad(run, [(0, batch_size - len(run)), *[(0, 0)] * (run.ndim - 1)])
            logits.append(np.asarray(self._program(self._weights, padded))[: len(run)])
        return np.concatenate(logits)

    def predict_records(
        self, split: Split | Records, on_damage: Callable[[int, str], None], batch_size: int | None = None
    ) -> np.ndarray:
        """Computes float32[n, K] logits of examples, which are read while the network runs.

        It calls `on_damage` with the number of an example that cannot be read, and the reason. Such an example is
        replaced by zeros, so the others keep their bits; its logits mean nothing.
        """
        batch_size = min(batch_size or evaluation_batch_size(split.size, *self._sides), max(split.size, 1))
        logits = [self._none()]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:

            def start_reading(start: int) -> list[Future[np.ndarray]]:
                examples = range(start, min(start + batch_size, split.size))
                return [pool.submit(lambda example: self._render(split.read(example).image), each) for each in examples]

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

    def _none(self, size: int = 0) -> np.ndarray:
        each = () if self.of_images else self.manifest.input_shape
        return np.zeros((size, *each, self.manifest.num_classes), np.float32)
