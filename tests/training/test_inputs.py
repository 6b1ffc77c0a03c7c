"""What a recipe's dataset, preprocessing and feed come to."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest

from jaxtern.data.dataset import Dataset, Split
from jaxtern.data.facts import Facts
from jaxtern.data.tasks import ImageTask
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.run import inputs, loop
from jaxtern.training.run.inputs import Feed, example_shape_of, facts_of, open_inputs
from jaxtern.training.run.run import Run
from jaxtern.training.step.mesh import create_mesh

SHAKESPEARE = str(Path(__file__).parents[1] / "data" / "shakespeare.txt")
TEXT = {"data": SHAKESPEARE, "preprocessing": "text", "sequence_length": 20}
MADE = {"data": "synthetic", "synthetic_shape": (12, 10, 3), "synthetic_classes": 4, "synthetic_examples": 50}


@pytest.mark.parametrize(
    ("fields", "example_shape", "input_shape", "resident"),
    [
        ({}, (8, 8, 1), (8, 8, 1), True),
        ({"feed": "streaming"}, (8, 8, 1), (8, 8, 1), False),
        ({"preprocessing": "cifar10", "image_size": 5}, (8, 8, 1), (5, 5, 1), True),
        ({"preprocessing": "inception", "image_size": 5}, (5, 5, 3), (5, 5, 3), False),
        ({"preprocessing": "vgg"}, (224, 224, 3), (224, 224, 3), False),
        (MADE, (12, 10, 3), (12, 10, 3), True),
        (MADE | {"preprocessing": "vgg", "image_size": 6, "feed": "streaming"}, (6, 6, 3), (6, 6, 3), False),
        (MADE | {"preprocessing": "vgg", "image_size": 6, "synthetic_shape": (6, 6, 3)}, (6, 6, 3), (6, 6, 3), True),
        (TEXT, (21,), (20,), True),
        (TEXT | MADE, (21,), (20,), True),
    ],
)
def test_inputs_are_resident_where_whole_images_are_taken(
    small_recipe: Callable[..., Recipe],
    fields: dict[str, Any],
    example_shape: tuple,
    input_shape: tuple,
    resident: bool,
):
    opened = open_inputs(small_recipe(**fields).data)
    assert (opened.example_shape, opened.input_shape, opened.resident) == (example_shape, input_shape, resident)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"preprocessing": "cifar10", "image_size": 5},
        {"preprocessing": "inception", "image_size": 5},
        {"preprocessing": "vgg"},
        MADE,
        MADE | {"preprocessing": "vgg", "image_size": 6, "synthetic_shape": (6, 6, 3)},
    ],
)
def test_facts_tell_the_shape_of_images_when_these_are_gone(
    small_recipe: Callable[..., Recipe], fields: dict[str, Any]
):
    data = small_recipe(**fields).data
    opened = open_inputs(data)
    facts = facts_of(opened.task, opened.dataset)
    assert example_shape_of(data, facts) == opened.example_shape
    assert (facts.num_classes, facts.num_examples) == (opened.dataset.num_classes, opened.dataset.train.size)
    assert facts.class_names == opened.dataset.class_names


def test_test_images_of_another_shape_are_refused_where_images_are_taken_whole(
    small_recipe: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
):
    train, test = (Split(np.zeros((4, side, side, 3), np.uint8), np.arange(4, dtype=np.int32) % 2) for side in (9, 8))
    monkeypatch.setattr(inputs, "_open_dataset", lambda *_: Dataset(train, test, 2))
    with pytest.raises(ValueError, match=r"training images are \(9, 9, 3\), its test images are \(8, 8, 3\)"):
        open_inputs(small_recipe(preprocessing="mnist").data)
    assert open_inputs(small_recipe(preprocessing="cifar10", image_size=5).data).input_shape == (5, 5, 3)


def test_folder_of_a_dataset_with_a_configuration_may_have_moved(
    small_recipe: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
):
    """A slash alone does not make its name a path."""
    opened = mock.Mock(side_effect=ValueError("enough"))
    monkeypatch.setattr(ImageTask, "open", opened)
    with pytest.raises(ValueError, match="enough"):
        open_inputs(small_recipe(**{"data.name": "cifar10_corrupted/fog_1", "data.dir": "old"}).data, data_dir="new")
    assert opened.call_args.args[:2] == ("cifar10_corrupted/fog_1", "new")


def test_facts_without_a_shape_are_refused_where_images_are_taken_whole(small_recipe: Callable[..., Recipe]):
    facts = Facts(None, 10, 1437, "run/dataset.json")
    with pytest.raises(
        ValueError, match=r"run/dataset.json: image_shape=None: must be known, as data.preprocessing='mnist'"
    ):
        example_shape_of(small_recipe().data, facts)


def test_inputs_too_large_for_the_devices_are_streamed(
    small_recipe: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(inputs, "_RESIDENT_BYTES", 1797 * 64 - 1)
    assert not open_inputs(small_recipe().data).resident
    assert open_inputs(small_recipe(feed="resident").data).resident
    assert open_inputs(small_recipe(**TEXT).data).resident


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"preprocessing": "vgg", "feed": "resident"}, "feed='resident': preprocessing='vgg' crops images of any size"),
        ({"image_size": 7}, "image_size=7: preprocessing='mnist'"),
        (TEXT | {"feed": "streaming"}, "feed='streaming': preprocessing='text' takes text, which is resident"),
        (TEXT | {"image_size": 7}, "image_size=7: preprocessing='text'"),
        (TEXT | {"data": "digits"}, "dataset='digits': preprocessing='text' takes the path of a text file"),
        (TEXT | {"preprocessing": "mnist"}, "is no folder; data.preprocessing='text'"),
        (TEXT | MADE | {"synthetic_classes": 1000}, "synthetic_classes=1000: must be 256 at most"),
        (MADE | {"preprocessing": "vgg"}, r"data.synthetic_shape=\(12, 10, 3\): .*='vgg' takes \(224, 224, 3\)"),
        (MADE | {"synthetic_shape": (12, 10)}, r"synthetic_shape=\(12, 10\): must be height, width and channels"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(small_recipe: Callable[..., Recipe], fields: dict, words: str):
    with pytest.raises(ValueError, match=words):
        open_inputs(small_recipe(**fields).data)


@pytest.mark.parametrize("num_devices", [1, 2])
def test_feed_puts_batches_on_the_devices_of_their_workers(small_recipe: Callable[..., Recipe], num_devices: int):
    """Streamed or resident, the same examples in the same rows."""
    batches = []
    for way in ("resident", "streaming"):
        recipe = small_recipe(num_workers=2, num_devices=num_devices, feed=way)
        opened, mesh = open_inputs(recipe.data), create_mesh(recipe)
        feed = Feed(recipe.data, recipe.run, opened, mesh)
        stream = feed.batches(24)
        batch = next(stream)
        stream.close()
        images: Any = batch.examples if feed.examples is None else np.asarray(feed.examples)[np.asarray(batch.examples)]
        batches.append((np.asarray(images), *map(np.asarray, batch[1:])))
        assert {shard.data.shape[0] for shard in batch.labels.addressable_shards} == {8 // num_devices}
    jax.tree.map(np.testing.assert_array_equal, *batches)


@pytest.mark.slow
def test_run_that_goes_on_with_another_batch_size_misses_no_example(prepare: Callable):
    """The first epoch of 1,437 is what 2 batches of 8 and then batches of 16 see, each example once."""
    seen: list[np.ndarray] = []

    def noting(run: Run) -> None:
        step = run.train_step

        def note(state: Any, images: Any, batch: Any, *others: Any) -> Any:
            seen.append(np.asarray(batch.examples))
            return step(state, images, batch, *others)

        run.train_step = note
        loop.train(run)

    first = prepare(num_steps=2)
    noting(first)
    first.close()
    second = prepare(num_steps=91, batch_size=16, allow_config_change=True)
    assert second.examples_seen == 16
    noting(second)
    examples = np.concatenate(seen)
    split = second.inputs.dataset.train
    assert isinstance(split, Split)
    assert len(examples) == 16 + 89 * 16 > split.size
    assert sorted(examples[: split.size]) == list(range(split.size))
