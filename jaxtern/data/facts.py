"""A dataset's shape, classes and size, known without reading it."""

from pathlib import Path
from typing import Any, NamedTuple

_KEPT = "image_shape", "num_classes", "num_examples", "class_names", "digest"  # fields written to dataset.json


class Facts(NamedTuple):
    """Facts about a training split."""

    image_shape: tuple[int, ...] | None  # height, width and channels; None if images differ, and for text
    num_classes: int
    num_examples: int  # in an epoch
    source: str  # where these facts come from, for messages
    class_names: tuple[str, ...] = ()  # one a class; empty if they are not known
    digest: str = ""  # `digest_split` of the split; empty if it is not known

    @classmethod
    def from_dict(cls, values: Any, source: str) -> "Facts":
        """Rebuilds what `to_dict` returned, read back from JSON; raises ValueError for anything else."""
        if not isinstance(values, dict):
            raise ValueError(f"must be an object of {', '.join(_KEPT)}")
        values = {"digest": ""} | values  # files older than it
        for name in set(_KEPT) ^ set(values):
            raise ValueError(f"{name} is missing" if name in _KEPT else f"{name!r}: must be one of {', '.join(_KEPT)}")
        shape, num_classes, num_examples, names, digest = (values[name] for name in _KEPT)
        if shape is not None and not (isinstance(shape, list) and len(shape) == 3 and all(map(_is_size, shape))):
            raise ValueError(f"image_shape={shape!r}: must be null, or height, width and channels")
        for name in ("num_classes", "num_examples"):
            if not _is_size(values[name]):
                raise ValueError(f"{name}={values[name]!r}: must be a whole number from 1 to below 2^31")
        if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise ValueError(f"class_names={names!r}: must be a list of strings")
        if names and len(names) != num_classes:
            raise ValueError(f"class_names: must be as many as num_classes={num_classes}, not {len(names)}")
        return cls(None if shape is None else tuple(shape), num_classes, num_examples, source, tuple(names), digest)

    def to_dict(self) -> dict[str, Any]:
        """All fields but `source`, ready for JSON."""
        return {name: value for name, value in self._asdict().items() if name in _KEPT}


_PUBLISHED: dict[str, tuple[tuple[int, ...] | None, int, int]] = {
    "mnist": ((28, 28, 1), 10, 60_000),
    "cifar10": ((32, 32, 3), 10, 50_000),
    "cifar100": ((32, 32, 3), 100, 50_000),
    "imagenet": (None, 1000, 1_281_167),
    "imagenet2012": (None, 1000, 1_281_167),
}


def published_facts(dataset: str) -> Facts | None:
    """The published facts of a well-known dataset, by its name or a folder so named ("./data/mnist"); else None."""
    name = Path(dataset).name
    return Facts(*_PUBLISHED[name], f"{name} as published") if name in _PUBLISHED else None


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**31
