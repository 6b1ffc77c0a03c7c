"""Weights to start from: of a run or a checkpoint, by their paths; a run that goes on has its own."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxtern.training.run import loop
from jaxtern.training.run.run import Run
from jaxtern.training.saved.checkpoints import Checkpoints

pytestmark = pytest.mark.slow

FIELDS = {"model": "tiny_norm", "num_steps": 2, "checkpoint_every": 1, "learning_rate": 0.1}


@pytest.fixture
def trained(prepare: Callable, tmp_path: Path) -> Run:
    """A run of two steps with averages, in `<tmp_path>/first`."""
    run = prepare(tmp_path / "first", average_decay=0.5, freeze=("fc2/bias",), **FIELDS)
    loop.train(run)
    return run


def assert_equal(tree: Any, other: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, tree, other)


def assert_drawn_anew(kernel: np.ndarray, other: np.ndarray) -> None:
    """Other numbers, of the same deviation."""
    assert not np.any(np.asarray(kernel) == other)
    assert abs(np.std(kernel) / np.std(other) - 1) < 0.5


def damage(workdir: Path, step: int) -> None:
    files = [path for path in (workdir / "checkpoints" / str(step) / "state").rglob("*") if path.is_file()]
    for path in files:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_run_starts_from_the_averages_of_another(prepare: Callable, trained: Run):
    """Weights, frozen ones and moments; step, optimiser and noise begin anew."""
    state = prepare(init_from=str(trained.workdir), seed=9, **FIELDS).state
    averages, frozen = trained.state.averages, trained.state.frozen
    assert_equal(state.params["fc1"], averages.params["fc1"])
    assert_equal(state.params["fc2"], {**averages.params["fc2"], **frozen["fc2"]})
    assert_equal(state.moments, averages.moments)
    assert int(state.step) == int(state.compressor.count) == 0
    assert not any(np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(state.optimizer))


@pytest.mark.parametrize("step", [0, 1])
def test_run_starts_from_a_checkpoint_of_a_run_without_averages(prepare: Callable, tmp_path: Path, step: int):
    first = prepare(tmp_path / "first", **FIELDS)
    loop.train(first)
    source = tmp_path / "first" / "checkpoints" / str(step)
    state = prepare(init_from=str(source), seed=9, **FIELDS).state
    saved = first.checkpoints.restore(step, first.state).state
    assert_equal((state.params, state.moments), (saved.params, saved.moments))
    assert not np.array_equal(state.params["fc1"]["kernel"], first.state.params["fc1"]["kernel"])


def test_head_starts_fresh_where_it_is_excluded(prepare: Callable, trained: Run, tmp_path: Path):
    """Whatever its shape there."""
    made = {"data": "synthetic", "synthetic_shape": (8, 8, 1), "synthetic_classes": 3, "synthetic_examples": 32}
    fields, start = FIELDS | made | {"seed": 9}, {"init_from": str(trained.workdir)}
    fresh = prepare(tmp_path / "fresh", **fields).state
    with pytest.raises(ValueError, match=r"init_from='.*': fc2/bias has shape \(10,\) there and \(3,\) here"):
        prepare(tmp_path / "refused", **fields, **start)
    assert not (tmp_path / "refused").exists()
    state = prepare(**fields, **start, init_exclude=("fc2/.*",)).state
    assert_drawn_anew(state.params["fc2"]["kernel"], fresh.params["fc2"]["kernel"])
    assert_equal(state.params["fc1"], trained.state.averages.params["fc1"])
    with pytest.raises(ValueError, match="init_exclude='fc3/kernel': must match the path of a tensor; available: "):
        prepare(tmp_path / "refused", **fields, **start, init_exclude=("fc3/kernel",))


def test_fresh_head_is_neither_that_of_the_source_nor_of_a_source_before_it(prepare: Callable, tmp_path: Path):
    """With the same seed, classes and body, and nothing learned meanwhile."""
    fields = FIELDS | {"seed": 9}
    tuned = fields | {"init_exclude": ("fc2/.*",)}
    heads: list[np.ndarray] = []
    for name, own in (
        ("first", fields),
        ("second", tuned | {"init_from": str(tmp_path / "first")}),
        ("third", tuned | {"init_from": str(tmp_path / "second")}),
    ):
        run = prepare(tmp_path / name, **own)
        heads.append(np.asarray(run.state.params["fc2"]["kernel"]))
        run.close()
    for i, other in ((1, 0), (2, 0), (2, 1)):
        assert_drawn_anew(heads[i], heads[other])
    again, seed = (
        prepare(tmp_path / name, **tuned | {"init_from": str(tmp_path / "first"), "seed": seed}).state.params["fc2"]
        for name, seed in (("again", 9), ("seed", 10))
    )
    np.testing.assert_array_equal(again["kernel"], heads[1])
    assert_drawn_anew(seed["kernel"], heads[1])


def test_tensors_that_are_missing_are_refused_or_start_fresh(prepare: Callable, tmp_path: Path):
    loop.train(prepare(tmp_path / "first", **FIELDS | {"model": "tiny"}))
    fields = FIELDS | {"model": "tiny_norm", "init_from": str(tmp_path / "first"), "seed": 9}
    with pytest.raises(
        ValueError, match=r"init_from='.*': lacks norm/\w+, norm/\w+, norm/\w+, norm/\w+ and 1 more; name"
    ):
        prepare(tmp_path / "refused", **fields)
    state = prepare(init_allow_missing=True, **fields).state
    np.testing.assert_array_equal(state.params["norm"]["scale"], 1)
    fields["init_exclude"] = ("norm/.*",)
    assert_equal(prepare(tmp_path / "excluded", **fields).state.params, state.params)


@pytest.mark.parametrize("made", [None, "folder", "empty run"])
def test_nothing_to_start_from_is_refused(prepare: Callable, tmp_path: Path, made: str | None):
    source = tmp_path / "nothing"
    if made:
        (source / "checkpoints" if made == "empty run" else source).mkdir(parents=True)
    rule = "holds no checkpoint that can be read" if made == "empty run" else "is no folder of a run, no checkpoint"
    with pytest.raises((ValueError, OSError), match=f"init_from='{source}': {rule}"):
        prepare(init_from=str(source), **FIELDS)
    assert not (tmp_path / "run").exists()


def test_checkpoint_of_no_network_is_refused(prepare: Callable, tmp_path: Path):
    checkpoints = Checkpoints(tmp_path / "other", keep=1)
    checkpoints.save(0, {"temperature": np.zeros(3)})
    checkpoints.close()
    with pytest.raises(ValueError, match=f"init_from='{tmp_path / 'other'}': its checkpoint is of no network"):
        prepare(init_from=str(tmp_path / "other"), **FIELDS)


def test_run_with_a_damaged_checkpoint_gives_the_one_before_it(
    prepare: Callable, trained: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """But a checkpoint that is named is that one or none."""
    expected = trained.checkpoints.restore(1, trained.state).state.averages.params["fc1"]
    damage(trained.workdir, 2)
    with caplog.at_level(logging.WARNING, "jaxtern"):
        state = prepare(init_from=str(trained.workdir), **FIELDS).state
    assert_equal(state.params["fc1"], expected)
    (warning,) = (record.getMessage() for record in caplog.records if record.name.startswith("jaxtern"))
    assert warning.startswith(f"checkpoint {trained.workdir / 'checkpoints' / '2'} ")
    assert warning.endswith("; taking the one before it")
    with pytest.raises(ValueError, match=r"cannot be read|damaged"):
        prepare(tmp_path / "named", init_from=str(trained.workdir / "checkpoints" / "2"), **FIELDS)


def test_run_that_goes_on_does_not_read_them_again(prepare: Callable, trained: Run):
    fields = FIELDS | {"init_from": str(trained.workdir)}
    first = prepare(**fields)
    loop.train(first)
    first.close()
    shutil.rmtree(trained.workdir)
    again = prepare(**fields)
    assert int(again.state.step) == 2
    assert_equal(again.state.params, first.state.params)


def test_layers_with_numbers_for_names_are_found(prepare: Callable, tmp_path: Path):
    fields = FIELDS | {"model": "tiny_blocks"}
    first = prepare(tmp_path / "first", **fields)
    loop.train(first)
    state = prepare(init_from=str(tmp_path / "first"), init_exclude=("blocks/1/bias",), seed=9, **fields).state
    assert_equal(state.params["blocks"][0], first.state.params["blocks"][0])
    assert_equal(state.params["blocks"][1]["kernel"], first.state.params["blocks"][1]["kernel"])
    np.testing.assert_array_equal(state.params["blocks"][1]["bias"], 0)
