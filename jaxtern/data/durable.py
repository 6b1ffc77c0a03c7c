"""Files that are whole after a power failure: as they were, or as they are now."""

import os
from pathlib import Path
from typing import IO


def replace_durably(path: Path, text: str) -> None:
    """Gives a file this text, by another one that takes its place when all of it is on the disk.

    Raises:
      OSError: with the file's name, if it cannot be written.
    """
    temporary = path.with_suffix(".tmp")
    try:
        with temporary.open("w") as file:
            file.write(text)
            sync(file)
        os.replace(temporary, path)
        sync_path(path.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def sync(file: IO[str]) -> None:
    """Waits until all that was written to a file is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_path(path: Path) -> None:
    """Waits until the bytes of a file, or the names of a folder's files, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
