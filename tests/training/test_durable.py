"""What a power failure must not take is on the disk before it is said to be there. A failure itself was not tried."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxtern.data import durable
from jaxtern.data.durable import replace_durably
from jaxtern.data.facts import Facts
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.run import loop
from jaxtern.training.run.metrics import MetricWriter
from jaxtern.training.saved.workdir import keep_facts, write_run


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What the system was told, in order: ("fsync" or "replace", the name of the file or folder)."""
    noted, fsync, replace = [], os.fsync, os.replace

    def note_fsync(descriptor: int) -> None:
        noted.append(("fsync", Path(f"/proc/self/fd/{descriptor}").readlink().name))
        fsync(descriptor)

    def note_replace(source: Path, target: Path) -> None:
        noted.append(("replace", Path(target).name))
        replace(source, target)

    monkeypatch.setattr(durable.os, "fsync", note_fsync)
    monkeypatch.setattr(durable.os, "replace", note_replace)
    return noted


def test_file_is_on_the_disk_before_it_takes_the_old_one_s_place(
    tmp_path: Path, calls: list, small_recipe: Callable[..., Recipe]
):
    for name, write in {
        "config": lambda: write_run(tmp_path, small_recipe()),
        "dataset": lambda: keep_facts(tmp_path, Facts(None, 10, 100, "a test"), allow_change=False),
        "metrics": lambda: MetricWriter(tmp_path, 0).close(),
    }.items():
        calls.clear()
        write()
        assert calls[0] == ("fsync", f"{name}.tmp")
        assert calls[1][0] == "replace"
        assert calls[1][1].startswith(name)
        assert calls[2] == ("fsync", tmp_path.name)


def test_records_are_on_the_disk_before_the_checkpoint_behind_them_and_at_no_other_step(prepare: Callable, calls: list):
    run = prepare(num_steps=7, checkpoint_every=3)
    save = run.checkpoints.save

    def note_save(step: int, *rest: Any, **metadata: Any) -> None:
        calls.append(("save", str(step)))
        save(step, *rest, **metadata)

    run.checkpoints.save = note_save
    loop.train(run)
    told = [call for call in calls if call in [("fsync", "metrics.jsonl"), *(("save", str(step)) for step in range(8))]]
    synced = ("fsync", "metrics.jsonl")
    assert told == [synced, ("save", "3"), synced, ("save", "6"), synced, ("save", "7"), synced]


def test_file_that_cannot_be_written_is_named_and_stays_as_it_was(tmp_path: Path):
    path = tmp_path / "config.json"
    replace_durably(path, "old")
    (tmp_path / "config.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device") as caught:
        replace_durably(path, "new")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    assert path.read_text() == "old"
