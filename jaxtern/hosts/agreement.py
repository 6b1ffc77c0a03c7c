"""Checks that all processes of a cluster have the same config, data and code."""

import glob
import hashlib
import importlib.metadata
import inspect
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jaxtern.hosts.heartbeats import named
from jaxtern.hosts.messages import gather_json
from jaxtern.hosts.settings import shorten

_LIBRARIES = "jax", "jaxlib", "flax", "optax", "numpy", "opencv-python-headless", "simplejpeg", "pillow"
_SOURCES = "**/*.py", "**/*.c", "**/*.h"


def require_same(facts: dict[str, dict[str, Any]]) -> None:
    """Raises ValueError in all processes if facts, JSON by subject and name, differ; all processes must call it.

    The message names the first process that differs, process 0, what differs, and the values in this order.
    """
    first, *others = gather_json({"host": socket.gethostname(), "facts": facts})
    for number, other in enumerate(others, start=1):
        differences = _differences(first["facts"], other["facts"])
        if differences:
            who = f"{named(number, other['host'])} and {named(0, first['host'])}"
            raise ValueError(f"{who} do not train the same: {'; '.join(differences)}")


def describe_code() -> dict[str, str]:
    """The versions of libraries that affect a run's bits, and a digest of each source file of this package."""
    root = Path(__file__).parents[1]
    # Path.glob does not follow links.
    files = [name for each in _SOURCES for name in glob.glob(each, root_dir=root, recursive=True)]  # noqa: PTH207
    versions = {library: _version(library) for library in _LIBRARIES}
    return versions | {name: _digest(root / name) for name in sorted(files)}


def describe_source(functions: Iterable[Any]) -> dict[str, str]:
    """Digests of the files that define functions, such as a user's own network; not of what these files import."""
    unwrapped = [inspect.unwrap(getattr(each, "func", each)) for each in functions]
    paths = {Path(each.__code__.co_filename) for each in unwrapped if inspect.isfunction(each)}
    found = sorted((path.name, _digest(path)) for path in paths)  # two files may have one name, and hosts other folders
    return {name: " ".join(digest for other, digest in found if other == name) for name, _ in found}


def _digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=4).hexdigest() if path.is_file() else "no file"


def _version(library: str) -> str:
    """The version of a library; one may be installed under another name, as OpenCV is."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _differences(first: dict[str, dict[str, Any]], other: dict[str, dict[str, Any]]) -> list[str]:
    return [
        f"{subject} {name} is {shorten(other[subject].get(name))} and {shorten(first[subject].get(name))}"
        for subject in first
        for name in sorted(first[subject].keys() | other[subject].keys())
        if first[subject].get(name) != other[subject].get(name)
    ]
