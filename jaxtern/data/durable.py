"""Output files: checked before the work, and whole after a power failure."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO


def require_writable(name: str, path: Path, suffixes: Sequence[str], new_folder: Path | None = None) -> None:
    """Raises ValueError for the path of a flag `name` that could not be written after the work is done.

    The file must have one of the suffixes, in any letter case, and lie in a folder that exists, or in `new_folder`,
    which the work makes.
    """
    if path.suffix.lower() not in suffixes:
        raise ValueError(f"--{name}={str(path)!r}: must end in {', '.join(suffixes)}")
    if not path.parent.is_dir() and (new_folder is None or path.parent.resolve() != new_folder.resolve()):
        raise ValueError(f"--{name}={str(path)!r}: there is no folder {path.parent}; make it first")
    if path.is_dir() or (path.parent.is_dir() and not os.access(path.parent, os.W_OK)):
        raise ValueError(f"--{name}={str(path)!r}: cannot be written")


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Has an OSError name this file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def replace_durably(path: Path, text: str) -> None:
    """Replaces a file's text, so that it is the old or the new one after a power failure; raises OSError, naming it."""
    temporary = path.with_suffix(".tmp")
    with naming(path):
        with temporary.open("w") as file:
            file.write(text)
            sync(file)
        os.replace(temporary, path)
        sync_path(path.parent)


def sync(file: IO[str]) -> None:
    """Waits until everything written to a file is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_path(path: Path) -> None:
    """Waits until a file's bytes, or the names of a folder's files, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
