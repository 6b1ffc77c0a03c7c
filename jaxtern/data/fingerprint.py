"""A fingerprint of a dataset, by which hosts find out that they do not hold the same one."""

import hashlib

import numpy as np

from jaxtern.data.dataset import Dataset, Records, Split
from jaxtern.data.text import Windows

_SAMPLES = 64  # records read from a split on disk


def fingerprint(dataset: Dataset) -> dict[str, int | str]:
    """The number of classes and, for each split, its size and `digest_split`."""
    facts: dict[str, int | str] = {"classes": dataset.num_classes}
    for name, split in (("training", dataset.train), ("test", dataset.test)):
        facts |= {f"{name} examples": split.size, f"{name} digest": digest_split(split)}
    return facts


def digest_split(split: Split | Windows | Records) -> str:
    """A digest of all examples in memory, or of some records on disk; raises DataError if one cannot be read."""
    state = hashlib.blake2b(digest_size=8)
    if isinstance(split, Split | Windows):
        for array in (split.examples, split.labels):
            state.update(b"" if array is None else np.ascontiguousarray(array).data)
        return state.hexdigest()
    for index in np.linspace(0, split.size - 1, min(split.size, _SAMPLES)).astype(int).tolist():
        record = split.read(index)
        image = record.image if isinstance(record.image, bytes) else record.image.tobytes()
        state.update(image + f"{record.label} {split.key(index)}".encode())
    return state.hexdigest()
