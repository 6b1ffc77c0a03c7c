"""Lists the files in a folder, a zip, a tar, or tars within a tar, and reads them in any order."""

import atexit
import functools
import lzma
import os
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from jaxtern.data.any_image import DamagedImage

_DAMAGE = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError)
TAR_ERRORS = (*_DAMAGE, OSError)


class Member(NamedTuple):
    """A file or folder in a container."""

    name: str  # path within the container, with forward slashes
    location: tuple  # the argument of the function that reads it
    size: int  # in bytes; -1 for a folder

    @property
    def is_folder(self) -> bool:
        return self.size < 0


def list_container(path: Path) -> tuple[list[Member], Callable[[tuple], bytes]]:
    """Lists the members of a folder, a zip or a tar, sorted; also returns the function that reads a location.

    A compressed tar is unpacked into a temporary folder, which is deleted when the process ends. Raises ValueError if
    the path is none of these, or damaged.
    """
    if path.is_dir():
        members, read = _list_folder(path), read_span
    elif zipfile.is_zipfile(path):
        members, read = _list_zip(path), read_zip_member
    elif _is_tar(path, "r:"):
        members, read = list(list_tar(path)), read_span
    elif _is_tar(path, "r"):
        members, read = _list_folder(_unpack(path)), read_span
    else:
        raise ValueError(f"SOURCE={str(path)!r}: is no folder, zip or tar, or is damaged or cut short")
    return sorted(member for member in members if member.name != "."), read  # "." is the packed folder itself


def _list_folder(root: Path) -> list[Member]:
    members = []
    for folder, _, files in os.walk(root, followlinks=True, onerror=_raise):
        relative = Path(folder).relative_to(root)
        if folder != str(root):
            members.append(Member(relative.as_posix(), (), -1))
        for name in files:
            path = Path(folder, name)
            if not path.is_file():
                raise ValueError(f"{path}: is no file, or a broken link")
            size = path.stat().st_size
            members.append(Member((relative / name).as_posix(), (str(path), 0, size), size))
    return members


def _unpack(path: Path) -> Path:
    folder = tempfile.mkdtemp(prefix="jaxtern-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        with tarfile.open(path) as archive:
            archive.extractall(folder, filter="data")
    except TAR_ERRORS as error:
        raise ValueError(f"SOURCE={str(path)!r}: cannot be unpacked to {folder}: {error}") from None
    return Path(folder)


def _raise(error: OSError) -> None:
    raise error


def _list_zip(path: Path) -> list[Member]:
    return [
        Member(info.filename.rstrip("/"), (str(path), info.filename), -1 if info.is_dir() else info.file_size)
        for info in _open_zip(str(path)).infolist()
    ]


def list_tar(path: Path, within: Member | None = None) -> Iterator[Member]:
    """Lists an uncompressed tar, or one `within` it, with the places of members; ValueError for damage and links."""
    start, size = within.location[1:] if within else (0, path.stat().st_size)
    name = f"{path}: {within.name}" if within else str(path)
    try:
        with path.open("rb") as file:
            file.seek(start)  # tarfile starts here, but counts offsets from the start of the file
            with tarfile.open(fileobj=file, mode="r:") as archive:
                for info in archive:
                    if info.offset >= start + size:  # an inner tar that lacks its end blocks
                        break
                    if info.issparse():
                        raise ValueError(f"{name}: {info.name} is stored with holes: pack it without --sparse")
                    if info.issym() or info.islnk():
                        raise ValueError(f"{name}: {info.name} is a link: pack it with -h and --hard-dereference")
                    if info.offset_data + info.size > start + size:
                        raise EOFError("unexpected end of data")
                    if info.isfile() or info.isdir():
                        location = (str(path), info.offset_data, info.size)
                        yield Member(info.name.removeprefix("./"), location, info.size if info.isfile() else -1)
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(f"{name}: is damaged or cut short: {error}") from None


def read_tar(path: Path, given: str, suffixes: tuple[str, ...] = ("",)) -> Iterator[tuple[str, bytes]]:
    """Yields names and contents of the files in a tar, compressed or not, whose names end in one of the suffixes.

    Raises ValueError, which starts with `given`, if the tar is cut short or damaged.
    """
    try:
        with tarfile.open(path) as archive:
            for info in archive:
                content = archive.extractfile(info) if info.name.endswith(suffixes) else None
                if content is not None:
                    yield info.name, content.read()
    except TAR_ERRORS as error:
        raise ValueError(f"{given}: is damaged or cut short: {error}") from None


def _is_tar(path: Path, mode: Literal["r:", "r"]) -> bool:
    """Whether a file is a tar: an uncompressed one with mode "r:", any with mode "r"."""
    try:
        with tarfile.open(path, mode):
            return True
    except _DAMAGE:
        return False


def read_span(location: tuple) -> bytes:
    """Reads the bytes at a location (path, offset, length); raises ValueError if the file is too short."""
    path, offset, length = location
    with Path(path).open("rb", buffering=0) as file:
        content = os.pread(file.fileno(), length, offset)
    if len(content) < length:
        raise ValueError(f"{path}: is cut short: it ends within the {length} bytes from {offset} on")
    return content


def read_zip_member(location: tuple) -> bytes:
    """Reads the bytes at a location (path, name); raises DamagedImage if they do not fit the zip's checksum."""
    path, name = location
    try:
        return _open_zip(path).read(name)
    except (zipfile.BadZipFile, *TAR_ERRORS, NotImplementedError, RuntimeError) as error:
        raise DamagedImage(f"cannot be read from the zip: {error}") from None


@functools.lru_cache(maxsize=4)
def _open_zip(path: str) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, OverflowError) as error:
        raise ValueError(f"SOURCE={path!r}: is damaged, cut short, or of a later version: {error}") from None
