"""Finds out what kind of source lies at a path, and opens it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jaxtern.preparation.cifar import find_layout, open_cifar
from jaxtern.preparation.folder import INFO
from jaxtern.preparation.idx_folder import holds_idx, open_idx_folder
from jaxtern.preparation.image_folder import open_image_folder
from jaxtern.preparation.imagenet import find_tars, open_imagenet
from jaxtern.preparation.source import Source, require_sound

FORMATS = ("idx", "cifar", "imagenet", "images")  # in the order of detection


@dataclass(frozen=True)
class Reading:
    """How to read a source. Most fields are for one format, and refused for the others."""

    format: str | None = None  # one of FORMATS; None: detected
    validation_fraction: float | None = None  # of "images", if there are no folders of splits; None: a tenth
    seed: int = 0  # of the choice of validation images
    coarse_labels: bool = False  # whether to take the 20 coarse classes of CIFAR-100
    labels: Path | None = None  # of ImageNet's validation images, see `open_imagenet`

    def __post_init__(self):
        if self.format is not None and self.format not in FORMATS:
            raise ValueError(f"format={self.format!r}: must be one of {', '.join(FORMATS)}")
        fraction = self.validation_fraction
        if fraction is not None and not 0 <= fraction < 1:
            raise ValueError(f"validation_fraction={fraction}: must be from 0 to less than 1")


_MEANT_FOR = {"validation_fraction": "images", "coarse_labels": "cifar", "labels": "imagenet"}


def open_source(path: Path, reading: Reading) -> Source:
    """Opens the source at a path without reading its images.

    Raises FileNotFoundError if nothing is there, and ValueError if it cannot be read as its format, is incomplete, or a
    field of `reading` is for another format.
    """
    if not path.exists():
        remedy = "to use a dataset of TensorFlow Datasets, train with --config.data.name=NAME"
        raise FileNotFoundError(f"SOURCE={str(path)!r}: no such file or folder; {remedy}")
    if not (path.is_dir() or path.is_file()):
        raise ValueError(f"SOURCE={str(path)!r}: is neither a file nor a folder")
    found = reading.format or detect_format(path)
    for field, owner in _MEANT_FOR.items():
        if owner != found and getattr(reading, field) != getattr(Reading, field):
            raise ValueError(f"{field}: is for --format={owner}, but SOURCE={str(path)!r} is read as {found}")
    openers: dict[str, Callable[[], Source]] = {
        "idx": lambda: open_idx_folder(path),
        "cifar": lambda: open_cifar(path, reading.coarse_labels),
        "imagenet": lambda: open_imagenet(path, reading.labels),
        "images": lambda: open_image_folder(path, reading.validation_fraction, reading.seed),
    }
    return require_sound(openers[found](), str(path), whole=found == "imagenet")


def detect_format(path: Path) -> str:
    """Detects one of FORMATS, "images" if no other fits; ValueError for a prepared dataset and for pickled CIFAR."""
    if (path / INFO).exists():
        raise ValueError(f"SOURCE={str(path)!r}: is prepared already (it has a {INFO}): train with it as it is")
    if holds_idx(path):
        return "idx"
    if find_layout(path):
        return "cifar"
    return "imagenet" if find_tars(path) else "images"
