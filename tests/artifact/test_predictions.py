"""The best labels, and lists of them that lose no bit."""

import csv
import errno
import os
from pathlib import Path

import numpy as np
import pytest

from jaxtern.artifact.predictions import Predictions, format_table, rank, write_predictions
from jaxtern.data.durable import require_writable

LABELS = ("ant", "bee", "cat, wild", "dog")


@pytest.fixture
def logits() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32) * 20


def predict(logits: np.ndarray, top: int = 3) -> Predictions:
    return rank([f"{row}.png" for row in range(len(logits))], logits, LABELS, top)


def test_rank_gives_the_softmax_of_the_best(logits: np.ndarray):
    found = predict(logits)
    exact = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    exact /= exact.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found.confidences, -np.sort(-exact)[:, :3], rtol=1e-5)
    assert found.confidences.dtype == np.float32
    assert [labels[0] for labels in found.labels] == [LABELS[place] for place in logits.argmax(axis=1)]


def test_rank_takes_the_first_of_equals_as_evaluation_does():
    found = predict(np.array([[1, 3, 3, 1], [0, 0, 0, 0]], np.float32), top=4)
    assert found.labels == [["bee", "cat, wild", "ant", "dog"], list(LABELS)]
    names = tuple(map(str, range(40)))  # so many that an unstable sort would mix them
    assert rank(["a"], np.tile(np.float32([1, 2]), (1, 20)), names, 40).labels == [[*names[1::2], *names[::2]]]


def test_rank_gives_no_more_than_there_are():
    assert predict(np.zeros((2, 4), np.float32), top=5).confidences.shape == (2, 4)
    assert predict(np.zeros((0, 4), np.float32), top=5).confidences.shape == (0, 4)


def test_rank_of_large_logits_is_finite():
    assert predict(np.array([[1e38, 0, -1e38, 5]], np.float32)).confidences[0].tolist() == [1, 0, 0]


def test_csv_keeps_every_bit(logits: np.ndarray, tmp_path: Path):
    found = predict(logits)
    write_predictions(tmp_path / "out.csv", found)
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["key", "label_1", "confidence_1", "label_2", "confidence_2", "label_3", "confidence_3"]
    assert [row["key"] for row in rows] == found.keys
    assert [[row[f"label_{place}"] for place in (1, 2, 3)] for row in rows] == found.labels
    read = np.array([[row[f"confidence_{place}"] for place in (1, 2, 3)] for row in rows]).astype(np.float32)
    np.testing.assert_array_equal(read, found.confidences)
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


def test_table_has_a_line_an_example():
    found = Predictions(
        ["a.png", "longer.png"], [["ant", "bee"], ["cat, wild", "dog"]], np.float32([[1, 0], [0.6, 0.4]])
    )
    assert format_table(found).splitlines() == [
        "a.png       100.00% ant          0.00% bee",
        "longer.png   60.00% cat, wild   40.00% dog",
    ]


def test_right_labels_stand_behind_the_key_and_are_counted(logits: np.ndarray, tmp_path: Path):
    true = [int(row.argmax()) for row in logits]
    true[0] = int(logits[0].argmin())
    found = rank([str(row) for row in range(50)], logits, LABELS, 2, true)
    assert found.precision_at_1 == 49 / 50
    write_predictions(tmp_path / "out.csv", found)
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:3] == ["key", "true", "label_1"]
    assert [row["true"] for row in rows] == [LABELS[label] for label in true]
    assert format_table(found).splitlines()[1].split()[:2] == ["1", LABELS[true[1]].split()[0]]


def test_names_that_are_no_utf_8_keep_their_bytes(tmp_path: Path):
    name = b"caf\xe9.png"
    write_predictions(tmp_path / "out.csv", Predictions([os.fsdecode(name)], [["ant"]], np.float32([[1]])))
    assert (tmp_path / "out.csv").read_bytes().splitlines()[1].startswith(name + b",ant,")


def test_file_on_a_full_disk_is_named_and_what_was_there_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "out.csv").write_text("before")
    monkeypatch.setattr(csv, "writer", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_predictions(tmp_path / "out.csv", Predictions(["1"], [["ant"]], np.float32([[1]])))
    assert caught.value.filename == str(tmp_path / "out.csv")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out.csv", "before")]


@pytest.mark.parametrize(
    ("name", "words"),
    [("out.txt", "must end in .csv"), ("no/out.csv", "no folder"), ("folder.csv", "cannot be written")],
)
def test_file_that_could_not_be_written_is_refused(tmp_path: Path, name: str, words: str):
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ValueError, match=words):
        require_writable("out", tmp_path / name, [".csv"])
