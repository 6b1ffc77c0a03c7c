"""A run goes on in more processes and with another number of workers: the bits of one process with as many."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxtern.training.run import loop
from jaxtern.training.run.run import prepare_run

EndOf = Callable[..., tuple[int, list[str], list[str]]]
FIELDS: dict[str, Any] = {
    "data": "synthetic", "synthetic_classes": 3, "synthetic_examples": 64, "batch_size": 16, "delayed": True,
    "exchange": "gather", "log_every": 1, "checkpoint_every": 1, "evaluate_every": 0,
}  # fmt: skip
FLAGS = "--config=default", "--allow_config_change"


@pytest.mark.slow
def test_run_of_4_workers_goes_on_with_2_in_2_processes_as_in_one(
    train: Callable, digests: Callable, end_of: EndOf, tmp_path: Path, recipe_of: Callable
):
    """What the 4 had computed and not sent, delayed, is read by process 0 alone, handed over, and sent to the other."""

    def run_here(name: str, num_workers: int, num_steps: int) -> dict[int, str]:
        recipe = recipe_of(
            **FIELDS, synthetic_shape=(8, 8, 1), num_devices=1, num_workers=num_workers, num_steps=num_steps
        )
        run = prepare_run(recipe, tmp_path / name, allow_config_change=True)
        loop.train(run)
        run.close()
        return digests(tmp_path / name)

    assert list(run_here("first", 4, 2)) == [0, 1, 2]
    ends = []
    for processes in (1, 2):  # with as many threads each, as gradients are kept to their last bit
        name = f"in {processes}"
        shutil.copytree(tmp_path / "first", tmp_path / name)
        fields = FIELDS | {"synthetic_shape": "8,8,1", "num_workers": 2, "num_steps": 4}
        status, out, err = end_of(train(name, processes, flags=FLAGS, **fields), 300)
        assert status == 0, [out, err]
        ends.append(digests(tmp_path / name))
    assert list(ends[0]) == [2, 3, 4]
    assert ends[0] == ends[1]
