"""The folder of an exported network.

    manifest.json       inputs, outputs and origin of the network, and digests of the other two files
    program.stablehlo   jax.export's serialization for any b: (weights by name, uint8[b, H, W, C]) -> float32[b, K]
                        logits of images; (weights by name, uint8[b, T]) -> float32[b, T, K] logits of text
    weights.npz         float arrays by name

Nothing is pickled, so reading a folder runs none of its code.
"""

import dataclasses
import hashlib
import io
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxtern.data.durable import naming
from jaxtern.data.json_files import read_json

FORMAT_VERSION = 1
_MOST = 1 << 28  # the most classes, or numbers in an input
MANIFEST, PROGRAM, WEIGHTS = "manifest.json", "program.stablehlo", "weights.npz"


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The description of an exported network."""

    jaxtern_version: str  # that wrote it
    jax_version: str  # likewise
    model: str  # name of the network
    recipe: dict[str, Any]  # that trained it, by section
    step: int  # number of updates of its weights
    averaged: bool  # whether the weights are moving averages
    num_classes: int  # K
    class_names: tuple[str, ...]  # K names; empty if they are not known
    preprocessing: str  # the caller cuts its views, the program changes its colours; "text" has neither
    image_size: int | None  # side of the views in pixels; None: the preprocessing's own
    input_shape: tuple[int, ...]  # height, width and channels of an image, or (T,), characters of a text
    platforms: tuple[str, ...]  # for which the program was made, in JAX's names
    input_dtype: str = "uint8"  # of the program's inputs
    format_version: int = FORMAT_VERSION  # of the folder
    digests: dict[str, str] = dataclasses.field(default_factory=dict)  # SHA-256 of the other files, once written


class Artifact(NamedTuple):
    """An exported network: its description, jax.export's serialization of its program, its weights by name."""

    manifest: Manifest
    program: bytes
    weights: dict[str, np.ndarray]


def require_new(out: Path) -> None:
    """Makes a new folder's parents; raises ValueError if the folder exists, or cannot be made."""
    if out.exists():
        raise ValueError(f"out={str(out)!r}: is already there; choose another folder")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"out={str(out)!r}: cannot be made: {error.strerror}") from None


def write_artifact(out: Path, artifact: Artifact) -> None:
    """Writes a new folder, whole or not at all; raises ValueError as `require_new`, OSError if writing fails."""
    require_new(out)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **artifact.weights)
    contents = {PROGRAM: artifact.program, WEIGHTS: buffer.getvalue()}
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    manifest = dataclasses.asdict(dataclasses.replace(artifact.manifest, digests=digests))
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        with naming(out):
            temporary.mkdir()
            for name, content in {**contents, MANIFEST: (json.dumps(manifest, indent=2) + "\n").encode()}.items():
                with (temporary / name).open("wb") as file:
                    file.write(content)
                    os.fsync(file.fileno())
            temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read_artifact(folder: Path) -> Artifact:
    """Reads a folder of `write_artifact`; FileNotFoundError if a file is missing, ValueError if damaged or too new."""
    given, path = f"ARTEFACT={str(folder)!r}", folder / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"{given}: holds no exported network (there is no {MANIFEST})")
    manifest = _read_manifest(path)
    contents = {}
    for name in (PROGRAM, WEIGHTS):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{given}: {name} is missing; copy or export it again")
        contents[name] = (folder / name).read_bytes()
        if hashlib.sha256(contents[name]).hexdigest() != manifest.digests.get(name):
            raise ValueError(f"{given}: {name} is damaged: its digest is not the manifest's; copy or export it again")
    try:
        with np.load(io.BytesIO(contents[WEIGHTS]), allow_pickle=False) as arrays:
            return Artifact(manifest, contents[PROGRAM], dict(arrays))
    except Exception as error:  # noqa: BLE001 - a file made to fit its digest; zipfile and NumPy raise many types
        raise ValueError(f"{given}: {WEIGHTS} cannot be read: {error}") from None


def _read_manifest(path: Path) -> Manifest:
    try:
        values = read_json(path)
        version = values.pop("format_version")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{path}: is no manifest of an exported network, or damaged") from None
    if version != FORMAT_VERSION:
        raise ValueError(f"{path}: has format_version {version!r}; this jaxtern reads {FORMAT_VERSION}")
    try:
        manifest = Manifest(**values)
        _require_types(manifest)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: is damaged: {error}") from None
    lists = "input_shape", "class_names", "platforms"
    return dataclasses.replace(manifest, **{name: tuple(getattr(manifest, name)) for name in lists})


def _require_types(manifest: Manifest) -> None:
    """Refuses fields of another type, and numbers that no network has."""
    shape, names, platforms = manifest.input_shape, manifest.class_names, manifest.platforms
    if not (all(isinstance(each, list) for each in (shape, names, platforms)) and isinstance(manifest.digests, dict)):
        raise ValueError("input_shape, class_names and platforms must be lists, digests an object")
    sizes = [manifest.num_classes, *shape, 1 if manifest.image_size is None else manifest.image_size]
    if not all(type(size) is int and 0 < size < _MOST for size in sizes) or math.prod(shape) > _MOST:
        raise ValueError(f"num_classes, input_shape and image_size must be whole numbers from 1 to {_MOST:,}")
    if len(shape) not in (1, 3):
        raise ValueError(f"input_shape={shape}: must be height, width and channels, or a length of text")
    texts = manifest.preprocessing, manifest.jax_version, manifest.model, *names, *platforms
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("preprocessing, jax_version, model, class_names and platforms must be strings")
    if names and len(names) != manifest.num_classes:
        raise ValueError(f"{len(names)} names of {manifest.num_classes} classes")
