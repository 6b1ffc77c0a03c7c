"""Text as windows of characters: nothing lost, nothing predicted twice, and what is no text refused in one line."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtern.data.dataset import Dataset
from jaxtern.data.fingerprint import fingerprint
from jaxtern.data.rendering import Share
from jaxtern.data.sources import load_dataset
from jaxtern.data.synthetic import make_synthetic_text
from jaxtern.data.tasks import create_task
from jaxtern.data.text import Windows, open_text

SHAKESPEARE = Path(__file__).with_name("shakespeare.txt")


def windows_of(split: Windows) -> np.ndarray:
    assert split.examples.dtype == np.uint8
    assert split.labels is None
    return split.examples


def spell(dataset: Dataset, classes: np.ndarray) -> str:
    return "".join(dataset.class_names[number] for number in classes)


def write(folder: Path, text: str | bytes) -> str:
    path = folder / "a.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


@pytest.mark.parametrize("length", [1, 7, 128])
def test_text_predicts_every_character_but_the_first_once(length: int):
    text = SHAKESPEARE.read_bytes().decode()
    dataset = open_text(str(SHAKESPEARE), length)
    rows = np.concatenate([windows_of(dataset.train), windows_of(dataset.test)])
    assert rows.shape[1] == length + 1
    predicted = spell(dataset, rows[:, 1:].ravel())
    assert text[0] + predicted == text[: len(predicted) + 1]
    assert len(text) - 1 - len(predicted) < length
    np.testing.assert_array_equal(rows[:-1, -1], rows[1:, 0])  # each is predicted from what came before it


def test_text_has_the_classes_of_its_characters_in_order():
    dataset = open_text(str(SHAKESPEARE), 100)
    assert dataset.class_names == tuple(sorted(set(SHAKESPEARE.read_text())))
    assert dataset.num_classes == len(dataset.class_names) == 62


def test_text_is_tested_on_its_last_tenth(tmp_path: Path):
    dataset = open_text(str(SHAKESPEARE), 100)
    assert (dataset.train.size, dataset.test.size) == (1803, 200)
    few = open_text(write(tmp_path, "abcde"), 2)
    assert (few.train.size, few.test.size) == (1, 1)
    assert [spell(few, windows_of(split)[0]) for split in (few.train, few.test)] == ["abc", "cde"]


def test_text_of_any_language_and_line_end_is_read_as_it_is(tmp_path: Path):
    text = "Füße\r\nδ\U0001f600\n" * 3
    dataset = open_text(write(tmp_path, text), len(text) // 2 - 1)
    assert spell(dataset, windows_of(dataset.train)[0]) == text[: len(text) // 2]
    assert set(dataset.class_names) == set(text)


def test_text_of_256_characters_is_the_most(tmp_path: Path):
    most = "".join(map(chr, range(0x4E00, 0x4F00)))
    dataset = open_text(write(tmp_path, most), 10)
    assert dataset.num_classes == 256
    assert spell(dataset, windows_of(dataset.test)[-1]) == most[240:251]
    with pytest.raises(ValueError, match=r"a.txt': has 257 different characters, must be 256 at most$"):
        open_text(write(tmp_path, most + "a"), 10)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("abcd", "has 4 characters; sequence_length=2 needs 5 or more"),
        ("", "has 0 characters; sequence_length=2 needs 5 or more"),
        (b"abcdef\xff", "is no text in UTF-8: invalid start byte at byte 6"),
    ],
)
def test_text_that_cannot_be_read_is_refused(tmp_path: Path, text: str | bytes, words: str):
    with pytest.raises(ValueError, match=rf"^dataset='.*a.txt': {words}$"):
        open_text(write(tmp_path, text), 2)


def test_dataset_of_text_is_a_file_with_a_slash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path, "abcdefg")
    monkeypatch.chdir(tmp_path)
    assert open_text("./a.txt", 3, None, "train", None).train.size == 1
    refused = {
        "a.txt": "takes the path of a text file, with a slash; for the file of that name write ./a.txt",
        "digits": "preprocessing='text' takes the path of a text file, with a slash",
        "../": "preprocessing='text' takes the path of a text file, with a slash",
        "./b.txt": "no such file",
    }
    for name, words in refused.items():
        with pytest.raises((ValueError, FileNotFoundError), match=f"^dataset='{name}': .*{words}$"):
            open_text(name, 3, None, "train", None)
    with pytest.raises(ValueError, match=r"^dataset='./a.txt': is no folder; data.preprocessing='text'"):
        load_dataset("./a.txt")


@pytest.mark.parametrize("option", [{"train_split": "train[:50%]"}, {"test_split": "test"}, {"data_dir": "x"}])
def test_dataset_of_text_takes_no_splits(option: dict):
    with pytest.raises(ValueError, match=r"=.* takes no (train_split|test_split|data_dir)$"):
        open_text(str(SHAKESPEARE), 10, **{"data_dir": None, "train_split": "train", "test_split": None} | option)


def test_fingerprint_of_text_is_that_of_its_characters(tmp_path: Path):
    prints = [fingerprint(open_text(write(tmp_path, text), 2)) for text in ("abcdefg", "abcdefg", "abcdegf")]
    assert prints[0] == prints[1]
    assert prints[0]["test digest"] != prints[2]["test digest"]


def test_made_text_is_random_and_always_the_same():
    dataset, again = (make_synthetic_text(9, 5, 40) for _ in range(2))
    rows = windows_of(dataset.train)
    assert (rows.shape, dataset.test.size, dataset.num_classes) == ((40, 10), 10, 5)
    assert set(np.unique(rows)) == set(range(5))
    np.testing.assert_array_equal(rows, windows_of(again.train))
    assert windows_of(make_synthetic_text(9, 256, 400).train).max() == 255
    with pytest.raises(ValueError, match=r"^synthetic_classes=257: must be 256 at most"):
        make_synthetic_text(9, 257, 40)


def test_text_asks_for_the_character_that_comes_next():
    task, keys = create_task("text", sequence_length=9), jax.random.split(jax.random.key(0), 4)
    windows = windows_of(task.make((1, 1, 1), 200, 4).train)
    assert (task.example_shape(None), task.input_shape((10,))) == ((10,), (9,))
    for inputs, targets in (task.in_training(windows, None, keys), task.in_evaluation(windows, None)):
        assert inputs.dtype == targets.dtype == np.int32
        np.testing.assert_array_equal(inputs, windows[:, :-1])
        np.testing.assert_array_equal(targets, windows[:, 1:])
    with pytest.raises(ValueError, match=r"^image_size=9: preprocessing='text' takes no images$"):
        create_task("text", 9)


def test_images_ask_for_their_labels():
    task, labels = create_task("mnist"), jnp.array([2, 0, 1])
    images, keys = jnp.arange(48, dtype=jnp.uint8).reshape(3, 4, 4, 1), jax.random.split(jax.random.key(0), 3)
    for inputs, targets in (task.in_training(images, labels, keys), task.in_evaluation(images, labels)):
        np.testing.assert_allclose(inputs, np.asarray(images) / 127.5 - 1, rtol=1e-6)
        assert targets is labels
    with pytest.raises(ValueError, match=r"^data.preprocessing='vgg99': must be one of mnist, .*, text$"):
        create_task("vgg99")


@pytest.mark.parametrize("hosts", [1, 3])
def test_text_is_evaluated_whole_by_all_hosts_together(hosts: int):
    """In batches of 16,384 characters, the last of each host padded."""
    task = create_task("text", sequence_length=1000)
    split, found = task.make((1, 1, 1), 5, 100).train, []
    for host in range(hosts):
        for examples, labels, present in task.evaluation_batches(split, share=Share(host, hosts)):
            assert (examples.shape, labels, present.shape) == ((16, 1001), None, (16,))
            found.append(examples[present])
    np.testing.assert_array_equal(np.concatenate(found), split.examples)
    assert sum(len(list(task.evaluation_batches(split, share=Share(host, 101)))) for host in range(101)) == 100
