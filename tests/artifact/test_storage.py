"""The folder of an exported network: whole or not there, refused in one line where it is damaged."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jaxtern.artifact.storage import MANIFEST, PROGRAM, WEIGHTS, read_artifact, write_artifact


def change_manifest(folder: Path, **values: object) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | values))


def test_artifact_read_equals_the_one_written(lenet, out: Path):
    write_artifact(out / "in" / "folders", lenet.artifact)
    found = read_artifact(out / "in" / "folders")
    assert found.program == lenet.artifact.program
    assert sorted(found.weights) == ["conv1/bias", "conv1/kernel", "conv2/bias", "conv2/kernel", "fc1/bias",
                                     "fc1/kernel", "fc2/bias", "fc2/kernel"]  # fmt: skip
    for name, array in lenet.artifact.weights.items():
        np.testing.assert_array_equal(found.weights[name], array)
    assert vars(found.manifest) == vars(lenet.artifact.manifest) | {
        "digests": found.manifest.digests,
        "recipe": lenet.recipe.to_dict(),
    }
    assert found.manifest.step == 7
    assert found.manifest.platforms == ("cpu", "cuda")
    assert sorted(path.name for path in (out / "in" / "folders").iterdir()) == [MANIFEST, PROGRAM, WEIGHTS]
    assert [path.name for path in (out / "in").iterdir()] == ["folders"]


def test_artifact_has_the_same_bytes_every_time(lenet, out: Path):
    write_artifact(out / "a", lenet.artifact)
    write_artifact(out / "b", lenet.artifact)
    for name in (MANIFEST, PROGRAM, WEIGHTS):
        assert (out / "a" / name).read_bytes() == (out / "b" / name).read_bytes()


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch])
def test_artifact_is_never_written_over_what_is_there(lenet, out: Path, make: Callable):
    make(out)
    with pytest.raises(ValueError, match="is already there"):
        write_artifact(out, lenet.artifact)
    assert [path.name for path in out.parent.iterdir()] == [out.name]


def test_artifact_that_cannot_be_written_leaves_nothing(lenet, out: Path, monkeypatch: pytest.MonkeyPatch):
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_artifact(out, lenet.artifact)
    assert caught.value.filename == str(out)
    assert not list(out.parent.iterdir())


@pytest.mark.parametrize("name", [PROGRAM, WEIGHTS])
@pytest.mark.parametrize("damage", ["a bit", "cut short", "gone"])
def test_artifact_that_is_damaged_is_refused(lenet, out: Path, name: str, damage: str):
    write_artifact(out, lenet.artifact)
    content = bytearray((out / name).read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "gone":
        (out / name).unlink()
    else:
        (out / name).write_bytes(content if damage == "a bit" else content[:-1])
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        read_artifact(out)
    assert str(error.value).startswith(
        f"ARTEFACT={str(out)!r}: {name} is {'missing' if damage == 'gone' else 'damaged'}"
    )


def test_artifact_with_pickled_weights_is_refused_and_nothing_of_it_runs(lenet, out: Path):
    class Trap:
        def __reduce__(self) -> tuple:
            return os.mkdir, (str(out / "sprung"),)

    write_artifact(out, lenet.artifact)
    np.savez(out / WEIGHTS, trap=np.array([Trap()], object))
    digests = json.loads((out / MANIFEST).read_text())["digests"]
    change_manifest(out, digests=digests | {WEIGHTS: hashlib.sha256((out / WEIGHTS).read_bytes()).hexdigest()})
    with pytest.raises(ValueError, match=r"weights\.npz cannot be read"):
        read_artifact(out)
    assert not (out / "sprung").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"format_version": 2}, "has format_version 2; this jaxtern reads 1"),
        ({"format_version": "1"}, "has format_version '1'"),
        ({"input_shape": [28, 28]}, "is damaged"),
        ({"class_names": ["ant"]}, "1 names of 7 classes"),
        ({"colour": "red"}, "is damaged"),
        ("[]", "is no manifest"),
        ("{}", "is no manifest"),
        ('{"format_version"', "is no manifest"),
    ],
)
def test_manifest_that_is_damaged_or_foreign_is_refused(lenet, out: Path, content: dict | str, words: str):
    write_artifact(out, lenet.artifact)
    if isinstance(content, str):
        (out / MANIFEST).write_text(content)
    else:
        change_manifest(out, **content)
    with pytest.raises(ValueError, match=words) as error:
        read_artifact(out)
    assert str(out / MANIFEST) in str(error.value)
    assert "\n" not in str(error.value)


def test_file_without_a_digest_is_refused(lenet, out: Path):
    write_artifact(out, lenet.artifact)
    change_manifest(out, digests={})
    with pytest.raises(ValueError, match=r"program\.stablehlo is damaged: its digest is not the manifest's"):
        read_artifact(out)


def test_folder_without_manifest_is_refused(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"holds no exported network \(there is no manifest\.json\)"):
        read_artifact(tmp_path)
