"""Lists image files as examples for prediction."""

from collections.abc import Sequence
from pathlib import Path

from jaxtern.data.any_image import SUFFIXES, as_plain
from jaxtern.data.dataset import Record


class ImageFiles:
    """The given files, and the images in the given folders, at any depth and sorted.

    A given file's key is its path. A file in a folder has its path within the folder as key, after the folder's own
    path if several paths are given. Hidden files are ignored; files in folders without an image's name are `left_out`,
    and so are links to folders, which may lead anywhere, and broken ones.
    """

    image_shape = None, None, 3

    def __init__(self, paths: Sequence[str]):
        """Finds the images; raises FileNotFoundError for a missing path, ValueError for a folder without images."""
        self._files: list[tuple[str, Path]] = []
        self.left_out: list[Path] = []
        for given in paths:
            path = Path(given)
            if path.is_file():
                self._files.append((given, path))
                continue
            if not path.is_dir():
                raise FileNotFoundError(f"{given!r}: no such file or folder")
            inside = sorted(each.relative_to(path) for each in path.rglob("*") if each.is_file() or each.is_symlink())
            shown = [name for name in inside if not any(part.startswith(".") for part in name.parts)]
            images = [name for name in shown if name.suffix.lower() in SUFFIXES and (path / name).is_file()]
            if not images:
                raise ValueError(f"{given!r}: holds no images ({', '.join(SUFFIXES)})")
            self._files += [((name if len(paths) == 1 else path / name).as_posix(), path / name) for name in images]
            self.left_out += [path / name for name in sorted({*shown}.difference(images))]
        self.size = len(self._files)

    def read(self, index: int) -> Record:
        """Reads an image, upright; raises ValueError or OSError if that fails."""
        return Record(as_plain(self._files[index][1].read_bytes()), 0)

    def describe(self, index: int) -> str:
        return str(self._files[index][1])

    def key(self, index: int) -> str:
        return self._files[index][0]
