"""Batches are the same whatever makes them: hosts, threads, processes, resumed runs; each example once an epoch."""

import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxtern.data.dataset import DataError, Dataset, Split
from jaxtern.data.feed import ResidentFeed, StreamingFeed, evaluation_batches, load_split
from jaxtern.data.preprocessing.families import PREPROCESSINGS
from jaxtern.data.records import open_folder
from jaxtern.data.rendering import Batch, Share
from jaxtern.data.synthetic import make_synthetic
from jaxtern.training.saved.trees import digest

MNIST, INCEPTION = PREPROCESSINGS["mnist"], PREPROCESSINGS["inception"]
HOST = Path(__file__).with_name("host_process.py")
SEED, BATCH, STEPS, SIDE = 11, 8, 7, 16  # 7 batches of 8 are two epochs of 23 and a part of the third


@pytest.fixture(scope="module")
def dataset(photos: Path) -> Dataset:
    return open_folder(photos)


def take(feed: Any, start: int = 0, steps: int = STEPS) -> list[Batch]:
    batches: Iterator[Batch] = feed.batches(start)
    taken = list(itertools.islice(batches, steps))
    batches.close()
    return taken


def stream(dataset: Dataset, share: Share | None = None, threads: int = 2, processes: int = 0) -> StreamingFeed:
    return StreamingFeed(dataset.train, BATCH, SEED, share, INCEPTION, SIDE, threads, processes)


@pytest.fixture(scope="module")
def expected(dataset: Dataset) -> list[Batch]:
    return take(stream(dataset))


def assert_equal(batches: list[Batch], expected: list[Batch]) -> None:
    for batch, other in zip(batches, expected, strict=True):
        for leaf, wanted in zip(batch, other, strict=True):
            assert leaf.dtype == wanted.dtype
            np.testing.assert_array_equal(leaf, wanted)


def join(parts: list[list[Batch]]) -> list[Batch]:
    """The hosts' parts of every batch, one behind the other."""
    return [Batch(*map(np.concatenate, zip(*batch, strict=True))) for batch in zip(*parts, strict=True)]


def test_streamed_batches_are_uint8_views_with_their_labels(expected: list[Batch]):
    for batch in expected:
        assert batch.examples.shape == (BATCH, SIDE, SIDE, 3)
        assert [leaf.dtype for leaf in batch] == [np.uint8, np.int32, np.int32, np.int32]
    assert np.std(expected[0].examples) > 10


@pytest.mark.parametrize("num_hosts", [2, 4])
def test_hosts_see_disjoint_parts_of_the_same_batches(dataset: Dataset, expected: list[Batch], num_hosts: int):
    parts = [take(stream(dataset, Share(host, num_hosts))) for host in range(num_hosts)]
    assert_equal(join(parts), expected)


@pytest.mark.parametrize("num_hosts", [2, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 4))])
def test_processes_of_hosts_see_the_same_batches(photos: Path, expected: list[Batch], num_hosts: int):
    shares = [(str(host), str(num_hosts)) for host in range(num_hosts)]
    hosts = [
        subprocess.Popen([sys.executable, HOST, photos, *share], stdout=subprocess.PIPE, text=True) for share in shares
    ]
    found = [json.loads(host.communicate(timeout=300)[0]) for host in hosts]
    assert all(host.returncode == 0 for host in hosts)
    parts = BATCH // num_hosts
    for number, digests in enumerate(found):
        own = [Batch(*(leaf[number * parts : (number + 1) * parts] for leaf in batch)) for batch in expected]
        assert digests == [digest(batch) for batch in own]


@pytest.mark.parametrize(
    ("threads", "processes"), [(1, 0), (5, 0), (40, 0), (1, 2), pytest.param(3, 3, marks=pytest.mark.slow)]
)
def test_batches_do_not_depend_on_who_decodes(dataset: Dataset, expected: list[Batch], threads: int, processes: int):
    assert_equal(take(stream(dataset, None, threads, processes)), expected)


@pytest.mark.parametrize("start", [8, 24, 40])
def test_run_resumed_in_mid_epoch_sees_what_it_would_have_seen(dataset: Dataset, expected: list[Batch], start: int):
    assert_equal(take(stream(dataset), start, STEPS - start // BATCH), expected[start // BATCH :])


def test_every_epoch_has_each_example_once_in_another_order():
    """Labels tell the examples apart."""
    split = Split(np.zeros((23, 2, 2, 1), np.uint8), np.arange(23, dtype=np.int32))
    batches = take(StreamingFeed(split, BATCH, SEED, None, MNIST), steps=9)  # three epochs and 3 examples more
    labels = np.concatenate([batch.labels for batch in batches])
    epochs = np.concatenate([batch.epochs for batch in batches])
    orders = [labels[epochs == epoch].tolist() for epoch in range(3)]
    assert [sorted(order) for order in orders] == [list(range(23))] * 3
    assert len(set(map(tuple, orders))) == 3


@pytest.mark.parametrize("threads", [1, 8])
def test_streamed_image_of_another_shape_is_named_where_whole_images_are_taken(dataset: Dataset, threads: int):
    feed = StreamingFeed(dataset.train, 4, SEED, None, MNIST, threads=threads)  # with 8, each is read by itself
    with pytest.raises(DataError, match=r"train example \d+ .*: shape .* must be .*, the first's"):
        take(feed, steps=1)


@pytest.mark.parametrize("batch", [1, 4, 19])
def test_resident_batches_are_the_streamed_ones(stamps: tuple, batch: int):
    """Of whole images: the same examples in the same order, each once an epoch."""
    train = open_folder(stamps[0]).train
    memory = load_split(train, 2)
    resident = take(ResidentFeed(memory, batch, SEED), steps=40)
    streamed = take(StreamingFeed(train, batch, SEED, None, MNIST), steps=40)
    assert_equal([place._replace(examples=memory.images[place.examples]) for place in resident], streamed)
    examples = np.concatenate([place.examples for place in resident])
    for epoch in range(len(examples) // 19):
        assert sorted(examples[epoch * 19 : (epoch + 1) * 19]) == list(range(19))


@pytest.mark.parametrize("num_hosts", [2, 4])
def test_hosts_see_disjoint_parts_of_the_same_resident_batches(num_hosts: int):
    split = make_synthetic((3, 3, 1), 10, 21).train
    parts = [take(ResidentFeed(split, BATCH, SEED, Share(host, num_hosts))) for host in range(num_hosts)]
    assert_equal(join(parts), take(ResidentFeed(split, BATCH, SEED)))


@pytest.mark.parametrize("num_hosts", [1, 2, 3, 7])
@pytest.mark.parametrize("batch", [1, 3, 50])
def test_evaluation_sees_every_example_once_over_all_hosts(stamps: tuple, num_hosts: int, batch: int):
    _, images, labels = stamps
    split = Split(images, labels)
    seen, seen_labels = [], []
    for host in range(num_hosts):
        for pixels, classes, present in evaluation_batches(split, batch, MNIST, share=Share(host, num_hosts)):
            assert pixels.shape == (batch, 9, 7, 1)
            assert not pixels[~present].any()
            seen.append(pixels[present])
            seen_labels.append(classes[present])
    np.testing.assert_array_equal(np.concatenate(seen), images)
    np.testing.assert_array_equal(np.concatenate(seen_labels), labels)


def test_evaluation_takes_the_same_views_every_time(dataset: Dataset):
    first, second = (list(evaluation_batches(dataset.test, 4, INCEPTION, SIDE, threads)) for threads in (1, 4))
    jax.tree.map(np.testing.assert_array_equal, first, second)
    assert first[0][0].shape == (4, SIDE, SIDE, 3)


def test_grey_images_are_streamed_in_color_where_views_are_taken(stamps: tuple):
    batch = take(StreamingFeed(open_folder(stamps[0]).train, 4, SEED, None, INCEPTION, 5), steps=1)[0]
    assert batch.examples.shape == (4, 5, 5, 3)
    np.testing.assert_array_equal(batch.examples[..., 0], batch.examples[..., 2])


@pytest.mark.few("0")
@pytest.mark.parametrize("processes", [0, 1])
def test_damaged_image_is_named(
    write_folder: Callable, jpeg: Any, make_photo: Callable, tmp_path: Path, processes: int
):
    good = make_photo(0, 50, 60)
    examples = [(good if n != 4 else good[: len(good) // 2], 0, ()) for n in range(6)]
    folder = write_folder(tmp_path / "made", {"train": examples, "test": examples}, jpeg)
    feed = StreamingFeed(open_folder(folder).train, 3, SEED, None, INCEPTION, SIDE, 1, processes)
    with pytest.raises(DataError, match=r"made: train example 4 \(train/4.jpg\)"):
        take(feed, steps=2)


def test_a_split_smaller_than_the_hosts_leaves_some_without_an_example(dataset: Dataset):
    shares = [list(evaluation_batches(dataset.test, 4, INCEPTION, share=Share(host, 8))) for host in range(8)]
    assert sorted(sum(present.sum() for _, _, present in each) for each in shares) == [0] + [1] * 7


@pytest.mark.slow
def test_process_that_is_killed_ends_the_feed_in_one_line(dataset: Dataset):
    feed = stream(dataset, None, 1, 1).batches(0)
    next(feed)
    (worker,) = multiprocessing.active_children()
    worker.kill()
    with pytest.raises(ChildProcessError, match="a process that decodes images was killed, perhaps for lack of memory"):
        list(itertools.islice(feed, 50))


@pytest.mark.slow
def test_process_that_decodes_is_deaf_to_what_its_group_is_sent(dataset: Dataset, expected: list[Batch]):
    feed = stream(dataset, None, 1, 1).batches(0)
    first = next(feed)
    (worker,) = multiprocessing.active_children()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(worker.pid, number)
    assert_equal([first, *itertools.islice(feed, STEPS - 1)], expected)
    feed.close()


def test_synthetic_data_is_what_was_asked_for():
    made = make_synthetic((5, 4, 3), 7, 210)
    assert (made.train.images.shape, made.test.size, made.num_classes) == ((210, 5, 4, 3), 53, 7)
    assert set(made.train.labels.tolist()) == set(range(7))
    np.testing.assert_array_equal(made.train.images, make_synthetic((5, 4, 3), 7, 210).train.images)
    for shape in ((5, 4), (5, 4, 0), (5, 4.5, 3)):
        with pytest.raises(ValueError, match="must be height, width and channels, whole numbers"):
            make_synthetic(shape, 7, 210)
