"""A run's folder belongs to one recipe and to one trainer at a time."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxtern import Network
from jaxtern.data.facts import Facts
from jaxtern.training.recipe.mean import MeanSection
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.run.run import find_network
from jaxtern.training.saved.workdir import (
    claim_workdir,
    keep_facts,
    read_facts,
    read_recipe,
    write_run,
)
from jaxtern.training.step.mesh import create_mesh

FACTS = {"image_shape": [8, 8, 1], "num_classes": 2, "num_examples": 32, "class_names": ["cat", "dog"], "digest": "e"}


@pytest.fixture
def taken(tmp_path: Path, small_recipe: Callable[..., Recipe]) -> Path:
    with claim_workdir(tmp_path / "run", small_recipe(), allow_change=False):
        write_run(tmp_path / "run", small_recipe())
    return tmp_path / "run"


def claim(workdir: Path, recipe: Recipe, allow_change: bool) -> None:
    """For a moment."""
    with claim_workdir(workdir, recipe, allow_change):
        pass


def test_workdir_keeps_its_recipe(taken: Path, small_recipe: Callable[..., Recipe]):
    assert read_recipe(taken) == small_recipe()
    claim(taken, small_recipe(), allow_change=False)


def test_workdir_of_another_recipe_is_refused_unless_told_otherwise(
    taken: Path, small_recipe: Callable[..., Recipe], caplog: pytest.LogCaptureFixture
):
    other = small_recipe(num_steps=3, method="float")
    with pytest.raises(ValueError, match="holds a run with another config") as caught:
        claim(taken, other, allow_change=False)
    for words in (
        f"workdir={str(taken)!r}",
        "num_steps is 6 there and 3 here",
        "mean.method is 'ternary' there and 'float' here",
    ):
        assert words in str(caught.value)
    assert "seed" not in str(caught.value)
    assert read_recipe(taken) == small_recipe()
    with caplog.at_level("INFO", "jaxtern"):
        claim(taken, other, allow_change=True)
    assert "goes on with another config: " in caplog.text
    assert "num_steps is 6 there and 3 here" in caplog.text
    write_run(taken, other)
    assert read_recipe(taken) == other


def test_of_many_changes_the_first_are_named(taken: Path, small_recipe: Callable[..., Recipe]):
    other = small_recipe(num_steps=3, method="float", seed=5, learning_rate=0.3, batch_size=16, model="cifarnet")
    with pytest.raises(ValueError, match=r"there and .* here; and \d more\); take another --workdir") as caught:
        claim(taken, other, allow_change=False)
    assert str(caught.value).count(" there and ") == 4


@pytest.mark.parametrize(("number", "kind"), [(errno.EROFS, ValueError), (errno.ENOSPC, OSError)])
def test_only_what_will_not_pass_is_a_mistake_of_the_user(
    tmp_path: Path, small_recipe: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch, number: int, kind: type
):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(kind, match=r"no$"):
        claim(tmp_path / "run", small_recipe(), allow_change=False)


def test_workdir_of_before_recipes_had_sections_is_told(taken: Path, small_recipe: Callable[..., Recipe]):
    (taken / "config.json").write_text('{"dataset": "digits", "num_workers": 4}')
    with pytest.raises(ValueError, match="written before recipes had sections; training goes on with --allow_config_"):
        claim(taken, small_recipe(), allow_change=False)
    claim(taken, small_recipe(), allow_change=True)


def test_workdir_of_before_rotation_does_not_go_on_rotated_unawares(taken: Path, small_recipe: Callable[..., Recipe]):
    values = json.loads((taken / "config.json").read_text())
    for name in ("rotation", "rounding"):
        del values["mean"][name]
    (taken / "config.json").write_text(json.dumps(values))
    assert not read_recipe(taken).mean.rotation
    with pytest.raises(ValueError, match=r"mean\.rotation is False there and True here; mean\.rounding is"):
        claim(taken, small_recipe(), allow_change=False)


FREE = {
    "log_every": 7, "histograms_every": 2, "evaluate_every": 2, "checkpoint_every": 2, "compare_every": 9,
    "keep_checkpoints": 1, "keep_best": 1, "decode_threads": 3, "decode_processes": 1,
}  # fmt: skip


@pytest.mark.parametrize("schedule", ["fixed", "exponential", "1:0.1,2:0.01"])
def test_workdir_goes_on_where_nothing_changes_that_a_bit_depends_on(
    tmp_path: Path, small_recipe: Callable[..., Recipe], schedule: str
):
    """Of those that do, all are named and no other; more steps change nothing that was."""
    write_run(tmp_path, small_recipe(schedule=schedule))
    claim(tmp_path, small_recipe(schedule=schedule, num_steps=60, **FREE), allow_change=False)
    other = small_recipe(schedule=schedule, num_steps=5, seed=6, beta1=0.8, **FREE)
    with pytest.raises(ValueError, match="holds a run with another config") as caught:
        claim(tmp_path, other, allow_change=False)
    named = "(optimizer.beta1 is 0.9 there and 0.8 here; run.num_steps is 6 there and 5 here; run.seed is 5 there and 6"
    assert f"{named} here);" in str(caught.value)


def test_workdir_of_local_steps_that_no_longer_divide_the_steps_can_be_changed(
    tmp_path: Path, small_recipe: Callable[..., Recipe]
):
    write_run(tmp_path, small_recipe(num_steps=9).replace(local={"steps": 3}))
    claim(tmp_path, small_recipe(num_steps=10).replace(local={"steps": 2}), allow_change=True)


@pytest.mark.parametrize("schedule", ["cosine", "polynomial"])
def test_workdir_of_rates_over_all_steps_is_refused_for_more_steps(
    tmp_path: Path, small_recipe: Callable[..., Recipe], schedule: str
):
    write_run(tmp_path, small_recipe(schedule=schedule))
    with pytest.raises(ValueError, match=r"\(run.num_steps is 6 there and 60 here\)"):
        claim(tmp_path, small_recipe(schedule=schedule, num_steps=60), allow_change=False)
    with pytest.raises(ValueError, match=r"optimizer\.schedule is"):
        claim(tmp_path, small_recipe(num_steps=60), allow_change=False)


def test_workdir_takes_one_trainer_at_a_time(taken: Path, small_recipe: Callable[..., Recipe]):
    with claim_workdir(taken, small_recipe(), allow_change=False):
        for allow_change in (False, True):
            with pytest.raises(ValueError, match="another process is training there"):
                claim(taken, small_recipe(), allow_change)
    claim(taken, small_recipe(), allow_change=False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"run": {"num_workers": 0}}',
        '{"colour": "red"}',
        '{"run": {"num_workers": "four"}}',
        '{"run": 4}',
    ],
)
def test_workdir_whose_config_cannot_be_read_is_named(taken: Path, small_recipe: Callable[..., Recipe], text: str):
    (taken / "config.json").write_text(text)
    for read in (lambda: read_recipe(taken), lambda: claim(taken, small_recipe(), allow_change=False)):
        with pytest.raises(ValueError, match="cannot be read") as caught:
            read()
        assert str(taken / "config.json") in str(caught.value)
        assert "\n" not in str(caught.value)


def test_workdir_that_holds_no_run_is_named(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="holds no run"):
        read_recipe(tmp_path)


def test_checkpoints_without_a_config_are_not_taken_over_unawares(taken: Path, small_recipe: Callable[..., Recipe]):
    (taken / "checkpoints" / "6").mkdir(parents=True)
    (taken / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match="holds no run"):
        claim(taken, small_recipe(), allow_change=False)
    claim(taken, small_recipe(), allow_change=True)
    (taken / "checkpoints" / "6").rmdir()
    claim(taken, small_recipe(), allow_change=False)


def test_workdir_that_cannot_be_made_is_refused(tmp_path: Path, small_recipe: Callable[..., Recipe]):
    (tmp_path / "file").write_text("mine")
    for workdir in (tmp_path / "file", tmp_path / "file" / "run", Path("/proc/run")):
        with pytest.raises(ValueError, match="cannot be made"):
            claim(workdir, small_recipe(), allow_change=False)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("name", ["lr[0.1]", "a]", "back\\slash", "caf\udce9"])
def test_workdir_from_which_orbax_does_not_restore_is_refused(
    tmp_path: Path, small_recipe: Callable[..., Recipe], name: str
):
    with pytest.raises(ValueError, match=r"must be a local path in UTF-8 without \[, \] and "):
        claim(tmp_path / name, small_recipe(), allow_change=False)
    assert not list(tmp_path.iterdir())


def test_workdir_elsewhere_than_on_a_disk_is_refused(
    tmp_path: Path, small_recipe: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="must be a local path"):
        claim(Path("gs://bucket/run"), small_recipe(), allow_change=False)
    assert not list(tmp_path.iterdir())
    claim(tmp_path / "a:" / "run", small_recipe(), allow_change=False)


@pytest.mark.parametrize("fields", [{}, {"image_shape": None}, {"class_names": []}])
def test_workdir_keeps_the_facts_of_its_dataset(tmp_path: Path, fields: dict[str, Any]):
    assert read_facts(tmp_path) is None
    facts = Facts.from_dict(FACTS | fields, "a test")
    keep_facts(tmp_path, facts, allow_change=False)
    assert read_facts(tmp_path) == facts._replace(source=str(tmp_path / "dataset.json"))
    keep_facts(tmp_path, facts, allow_change=False)


def test_workdir_of_another_dataset_is_refused_unless_told_otherwise(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    first, other = (Facts.from_dict(FACTS | {"num_examples": count}, "a test") for count in (32, 40))
    keep_facts(tmp_path, first, allow_change=False)
    with pytest.raises(
        ValueError, match=r"with another dataset \(num_examples is 32 there and 40 here\); take another"
    ):
        keep_facts(tmp_path, other, allow_change=False)
    assert read_facts(tmp_path).num_examples == 32
    with caplog.at_level("INFO", "jaxtern"):
        keep_facts(tmp_path, other, allow_change=True)
    assert "the run goes on with another dataset: num_examples is 32 there and 40 here" in caplog.text
    assert read_facts(tmp_path).num_examples == 40


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_classes": 0}, "num_classes=0: must be a whole number from 1 to below 2^31"),
        ({"num_examples": 2**31}, "num_examples=2147483648: must be"),
        ({"num_examples": True}, "num_examples=True: must be"),
        ({"image_shape": [8, 8]}, "image_shape=[8, 8]: must be null, or height, width and channels"),
        ({"image_shape": [8, 8, 1.0]}, "image_shape=[8, 8, 1.0]: must be null, or"),
        ({"class_names": "ab"}, "class_names='ab': must be a list of strings"),
        ({"class_names": ["cat", 7]}, "class_names=['cat', 7]: must be a list of strings"),
        ({"class_names": ["cat"]}, "class_names: must be as many as num_classes=2, not 1"),
        ({"colour": "red"}, "'colour': must be one of image_shape, "),
    ],
)
def test_facts_of_another_kind_are_named(tmp_path: Path, change: dict[str, Any], words: str):
    (tmp_path / "dataset.json").write_text(json.dumps(FACTS | change))
    with pytest.raises(ValueError, match="cannot be read") as caught:
        read_facts(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'dataset.json'}: cannot be read: {words}")
    assert str(caught.value).endswith("; remove it to have the dataset itself asked")


@pytest.mark.parametrize("name", [name for name in FACTS if name != "digest"])
def test_facts_that_lack_a_field_are_named(tmp_path: Path, name: str):
    (tmp_path / "dataset.json").write_text(json.dumps({field: FACTS[field] for field in FACTS if field != name}))
    with pytest.raises(ValueError, match=f"dataset.json: cannot be read: {name} is missing; remove it"):
        read_facts(tmp_path)


@pytest.mark.parametrize(("given", "latency"), [({}, 1e-3), ({"latency": 0.5}, 0.5)])
def test_links_are_the_stored_ones_unless_given(tmp_path: Path, given: dict[str, float], latency: float):
    write_run(tmp_path, Recipe(), Network(1e-3, 1e8))
    mesh = create_mesh(Recipe.from_dict({"run": {"num_workers": 2, "num_devices": 2}}))
    assert find_network(MeanSection(**given), mesh, tmp_path) == Network(latency, 1e8)
