"""Reads ImageNet's original tars: training images in a tar of tars, validation images, and their labels."""

import io
import tarfile
from pathlib import Path, PurePosixPath

from jaxtern.preparation.files import list_tar, read_span, read_tar
from jaxtern.preparation.source import Item, Source, name_some

_LABELS = ("ILSVRC2012_devkit_t12.tar.gz", "imagenet_2012_validation_synset_labels.txt")
_GROUND_TRUTH = "validation_ground_truth.txt"


def find_tars(folder: Path) -> tuple[Path, Path] | None:
    """The tars of training and validation images in a folder; None unless both are there."""
    found = [sorted(folder.glob(pattern)) for pattern in ("*img_train*.tar", "*img_val*.tar")]
    return (found[0][0], found[1][0]) if all(found) else None


def open_imagenet(folder: Path, labels: Path | None) -> Source:
    """Opens the splits train and validation; the classes are the synsets, sorted.

    Args:
      folder: holds `*img_train*.tar` and `*img_val*.tar`, of any number of synsets.
      labels: a text file with the synset of each validation image, in the order of their names; or the devkit,
        ILSVRC2012_devkit_t12.tar.gz. None: the devkit or labels in `folder`.

    Raises:
      ValueError: if something is missing or damaged, or does not fit the rest.
    """
    tars = find_tars(folder)
    if tars is None:
        raise ValueError(f"SOURCE={str(folder)!r}: holds no *img_train*.tar and *img_val*.tar")
    synsets = {PurePosixPath(tar.name).stem: tar for tar in list_tar(tars[0]) if tar.name.endswith(".tar")}
    if not synsets:
        raise ValueError(f"{tars[0]}: holds no tars of synsets")
    classes = {name: label for label, name in enumerate(sorted(synsets))}
    train = [
        Item(member.name, label, member.location, member.size)
        for name, label in classes.items()
        for member in list_tar(tars[0], synsets[name])
        if not member.is_folder
    ]
    validation = _list_validation(tars[1], _read_labels(folder, labels), classes)
    return Source(tuple(classes), {"train": train, "validation": validation}, read_span, "jpeg")


def _list_validation(path: Path, labels: list[str], classes: dict[str, int]) -> list[Item]:
    members = sorted(member for member in list_tar(path) if not member.is_folder)
    if len(members) != len(labels):
        raise ValueError(f"labels: there are {len(labels):,} for the {len(members):,} images of {path}")
    if unknown := sorted(set(labels) - set(classes)):
        raise ValueError(f"labels: {name_some(unknown, 'synset', 'synsets')} is none of the training images")
    pairs = zip(members, labels, strict=True)
    return [Item(member.name, classes[synset], member.location, member.size) for member, synset in pairs]


def _read_labels(folder: Path, path: Path | None) -> list[str]:
    """Reads the synset of every validation image."""
    path = path or next((folder / name for name in _LABELS if (folder / name).is_file()), None)
    if path is None:
        raise ValueError(f"labels is not set: give the classes of the validation images, as {_LABELS[0]}")
    if not path.is_file():
        raise ValueError(f"labels={str(path)!r}: no such file")
    if tarfile.is_tarfile(path):
        return _read_devkit(path)
    try:
        return [line.split()[0] for line in path.read_text().splitlines() if line.strip()]
    except UnicodeDecodeError:
        raise ValueError(f"labels={str(path)!r}: is no text") from None


def _read_devkit(path: Path) -> list[str]:
    import scipy.io
    from scipy.io.matlab import MatReadError

    found = read_tar(path, f"labels={str(path)!r}", ("/meta.mat", _GROUND_TRUTH))
    files = {PurePosixPath(name).name.removeprefix("ILSVRC2012_"): content for name, content in found}
    try:
        table = scipy.io.loadmat(io.BytesIO(files["meta.mat"]), simplify_cells=True)["synsets"]
        synsets = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in table}
        words = files[_GROUND_TRUTH].decode().split()
    except (OSError, EOFError, KeyError, TypeError, ValueError, MatReadError) as error:
        raise ValueError(f"labels={str(path)!r}: is no devkit, or is damaged: {error}") from None
    wrong = sorted({word for word in words if not word.isdecimal() or int(word) not in synsets})
    if wrong:
        raise ValueError(f"labels={str(path)!r}: has {name_some(wrong, 'number', 'numbers')}, which no synset has")
    return [synsets[int(word)] for word in words]
