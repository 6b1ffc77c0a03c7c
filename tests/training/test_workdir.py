"""A run's folder belongs to one recipe and to one trainer at a time."""

from collections.abc import Callable
from pathlib import Path

import pytest

from jaxtern.training.recipe import Recipe
from jaxtern.training.workdir import claim_workdir, read_recipe, write_recipe


@pytest.fixture
def taken(tmp_path: Path, small_recipe: Callable[..., Recipe]) -> Path:
    claim = claim_workdir(tmp_path / "run", small_recipe(), allow_change=False)
    write_recipe(tmp_path / "run", small_recipe())
    claim.close()
    return tmp_path / "run"


def test_workdir_keeps_its_recipe(taken: Path, small_recipe: Callable[..., Recipe]):
    assert read_recipe(taken) == small_recipe()
    claim_workdir(taken, small_recipe(), allow_change=False).close()


def test_workdir_of_another_recipe_is_refused_unless_told_otherwise(taken: Path, small_recipe: Callable[..., Recipe]):
    other = small_recipe(num_steps=9, codec="float")
    with pytest.raises(ValueError, match="holds a run with another config") as caught:
        claim_workdir(taken, other, allow_change=False)
    for words in (
        f"workdir={str(taken)!r}",
        "num_steps is 6 there and 9 here",
        "codec is 'ternary' there and 'float' here",
    ):
        assert words in str(caught.value)
    assert "seed" not in str(caught.value)
    assert read_recipe(taken) == small_recipe()
    claim_workdir(taken, other, allow_change=True).close()
    write_recipe(taken, other)
    assert read_recipe(taken) == other


def test_workdir_takes_one_trainer_at_a_time(taken: Path, small_recipe: Callable[..., Recipe]):
    claim = claim_workdir(taken, small_recipe(), allow_change=False)
    for allow_change in (False, True):
        with pytest.raises(ValueError, match="another process is training there"):
            claim_workdir(taken, small_recipe(), allow_change)
    claim.close()
    claim_workdir(taken, small_recipe(), allow_change=False).close()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"num_workers": 0}', '{"colour": "red"}', '{"num_workers": "four"}'])
def test_workdir_whose_config_cannot_be_read_is_named(taken: Path, small_recipe: Callable[..., Recipe], text: str):
    (taken / "config.json").write_text(text)
    for read in (lambda: read_recipe(taken), lambda: claim_workdir(taken, small_recipe(), allow_change=False)):
        with pytest.raises(ValueError, match="cannot be read") as caught:
            read()
        assert str(taken / "config.json") in str(caught.value)
        assert "\n" not in str(caught.value)


def test_workdir_that_holds_no_run_is_named(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="holds no run"):
        read_recipe(tmp_path)


def test_workdir_that_is_a_file_is_refused(tmp_path: Path, small_recipe: Callable[..., Recipe]):
    (tmp_path / "file").write_text("mine")
    for workdir in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(ValueError, match="cannot be made"):
            claim_workdir(workdir, small_recipe(), allow_change=False)
    assert (tmp_path / "file").read_text() == "mine"
