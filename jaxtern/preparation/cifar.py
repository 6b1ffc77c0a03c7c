"""CIFAR-10 and CIFAR-100, in their Python and their binary version, as archive or folder."""

import functools
import io
import lzma
import pickle
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from jaxtern.preparation.files import read_tar
from jaxtern.preparation.source import Item, Source

SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32


class Layout(NamedTuple):
    """Where a version keeps things.

    Attributes:
      train, test: files by split.
      meta: the file of class names; for the binary version, one of fine and one of coarse names.
      label_bytes: before the pixels of a record; 0 for pickles.
      num_classes: fine and coarse, 0 where there is none.
    """

    train: tuple[str, ...]
    test: tuple[str, ...]
    meta: tuple[str, ...]
    label_bytes: int
    num_classes: tuple[int, int]


_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
LAYOUTS = (
    Layout(_BATCHES, ("test_batch",), ("batches.meta",), 0, (10, 0)),
    Layout(("train",), ("test",), ("meta",), 0, (100, 20)),
    Layout(tuple(f"{n}.bin" for n in _BATCHES), ("test_batch.bin",), ("batches.meta.txt",), 1, (10, 0)),
    Layout(("train.bin",), ("test.bin",), ("fine_label_names.txt", "coarse_label_names.txt"), 2, (100, 20)),
)


def find_layout(names: list[str]) -> Layout | None:
    """The version whose file of class names is among `names` (paths)."""
    present = {PurePosixPath(name).name for name in names}
    return next((layout for layout in LAYOUTS if {*layout.meta, *layout.test} <= present), None)


def list_archive_names(path: Path) -> list[str]:
    """The files in a folder, at its top or one below; or in a tar, compressed or not, up to the twentieth."""
    if path.is_dir():
        return [file.name for pattern in ("*", "*/*") for file in path.glob(pattern) if file.is_file()]
    try:
        with tarfile.open(path) as archive:
            return [info.name for _, info in zip(range(20), archive, strict=False)]
    except (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError):
        return []


def open_cifar(path: Path, coarse_labels: bool) -> Source:
    """The splits train and test.

    Raises:
      ValueError: if files are missing or damaged, or coarse labels wanted of CIFAR-10.
    """
    layout = find_layout(list(_load_files(str(path))))
    if layout is None:
        metas = ", ".join(name for layout in LAYOUTS for name in layout.meta)
        raise ValueError(f"SOURCE={str(path)!r}: is no version of CIFAR, which has one of {metas}")
    if coarse_labels and not layout.num_classes[1]:
        raise ValueError("coarse_labels: CIFAR-10 has none")
    splits = {
        split: [item for name in names for item in _list_items(path, layout, name, coarse_labels)]
        for split, names in (("train", layout.train), ("test", layout.test))
    }
    names = _read_names(path, layout, coarse_labels)
    return Source(names, splits, read_cifar_row, "png", grey=False)


def _read_names(path: Path, layout: Layout, coarse: bool) -> tuple[str, ...]:
    wanted, meta = layout.num_classes[coarse], layout.meta[coarse and len(layout.meta) > 1]
    if layout.label_bytes:
        names = _file(str(path), meta).decode().split()
    else:
        keys = (b"coarse_label_names",) if coarse else (b"fine_label_names", b"label_names")
        names = [name.decode() for name in _pick(_unpickle(_file(str(path), meta), f"{path}: {meta}"), keys)]
    if len(names) != wanted:
        raise ValueError(f"{path}: {meta} must have {wanted} class names, but has {len(names)}")
    return tuple(names)


def _list_items(path: Path, layout: Layout, name: str, coarse: bool) -> list[Item]:
    labels, _ = _load_batch(str(path), name, layout, coarse)
    place = str(path), name, layout, coarse
    return [Item(f"{name}/{row:05d}", label, (*place, row), _PIXELS) for row, label in enumerate(labels)]


def read_cifar_row(location: tuple) -> np.ndarray:
    """uint8[32, 32, 3] of location (path, file, layout, coarse, row)."""
    *place, row = location
    return np.ascontiguousarray(_load_batch(*place)[1][row].reshape(SHAPE).transpose(1, 2, 0))


@functools.lru_cache(maxsize=8)
def _load_batch(path: str, name: str, layout: Layout, coarse: bool) -> tuple[list[int], np.ndarray]:
    """Labels, and pixels uint8[n, 3072], of one file."""
    raw = _file(path, name)
    where = f"{path}: {name}"
    if layout.label_bytes:
        width = layout.label_bytes + _PIXELS
        if not raw or len(raw) % width:
            raise ValueError(f"{where} must hold records of {width} bytes, but has {len(raw)} bytes: it is cut short")
        rows = np.frombuffer(raw, np.uint8).reshape(-1, width)
        return rows[:, 0 if coarse else layout.label_bytes - 1].tolist(), rows[:, layout.label_bytes :]
    content = _unpickle(raw, where)
    data = _pick(content, (b"data",))
    if not isinstance(data, _Array):
        raise ValueError(f"{where} has no array of pixels: it is damaged")
    pixels = data.value
    labels = [int(x) for x in _pick(content, (b"coarse_labels",) if coarse else (b"fine_labels", b"labels"))]
    if pixels.shape != (len(labels), _PIXELS) or not labels:
        raise ValueError(f"{where} has pixels of shape {pixels.shape} and {len(labels)} labels: it is damaged")
    return labels, pixels


@functools.lru_cache(maxsize=1)
def _load_files(path: str) -> dict[str, bytes]:
    """Files by their last name: of an archive all, at most 180 MB, as it cannot be read at random."""
    if Path(path).is_dir():
        known = {name for layout in LAYOUTS for name in (*layout.train, *layout.test, *layout.meta)}
        files = [file for pattern in ("*/*", "*") for file in Path(path).glob(pattern)]
        return {file.name: file.read_bytes() for file in files if file.name in known and file.is_file()}
    return {PurePosixPath(name).name: content for name, content in read_tar(Path(path), f"SOURCE={path!r}")}


def _file(path: str, name: str) -> bytes:
    files = _load_files(path)
    if name not in files:
        raise ValueError(f"SOURCE={path!r}: {name} is missing")
    return files[name]


def _pick(content: dict, keys: tuple[bytes, ...]) -> Any:
    for key in keys:
        if key in content:
            return content[key]
    raise ValueError(f"a file of CIFAR has no {keys[0].decode()}: it is damaged")


class _Array:
    """Stands for an array of bytes in a pickle, which is told what NumPy's would be; NumPy itself is told nothing."""

    def __init__(self, *_: Any):
        self.value = np.zeros(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, content = state
        if not isinstance(dtype, _Type) or dtype.name not in ("u1", b"u1") or is_fortran or type(content) is not bytes:
            raise pickle.UnpicklingError("holds an array of other than bytes in the order of C")
        self.value = np.frombuffer(content, np.uint8).reshape(shape)


class _Type:
    """Likewise for its type, of which nothing counts but the name."""

    def __init__(self, name: Any, *_: Any):
        self.name = name

    def __setstate__(self, state: Any) -> None:
        pass


def _encode(text: Any, encoding: Any) -> bytes:
    """As protocol 2 has Python 3's bytes."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("encodes other than bytes")
    return text.encode("latin1")


_ALLOWED = {  # all that the pickle of an array needs, by the names of NumPy 1 and 2
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _encode,
}


class _SafeUnpickler(pickle.Unpickler):
    """Makes what Python has built in and the stand-ins above, and calls nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"asks for {module}.{name}, which no file of CIFAR needs")
        return _ALLOWED[module, name]


def _unpickle(raw: bytes, where: str) -> dict:
    try:
        content = _SafeUnpickler(io.BytesIO(raw), encoding="bytes").load()
    except Exception as error:  # noqa: BLE001 - unpickling damage raises any kind
        raise ValueError(f"{where} cannot be unpickled: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{where} cannot be unpickled: it is no dictionary")
    return content
