"""benchmarks.chaos: runs that are killed, stopped or damaged end as if undisturbed, and it sees those that do not."""

import copy
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 900  # seconds, on a machine that does other things too
UNDISTURBED = {
    "digests": {"0": "a", "2": "b", "4": "c"},
    "examples_seen": {"0": 0, "2": 16, "4": 32},
    "records": [*({"step": step, "loss": 1 / step} for step in (1, 2, 3, 4)), {"step": 4, "test/loss": 0.5}],
}
ERRORS = {
    "a weight": (lambda run: run["digests"].update({"4": "d"}), "the state of step 4 is another"),
    "last checkpoint": (lambda run: run["digests"].pop("4"), "no checkpoint of the last step, 4, but of ['0', '2']"),
    "examples": (lambda run: run["examples_seen"].update({"2": 24}), "24 examples seen at step 2, not 16"),
    "record twice": (
        lambda run: run["records"].insert(1, run["records"][0]),
        "records of steps twice: [1], missing: [], of 4 there are 5",
    ),
    "record lost": (lambda run: run["records"].pop(2), "records of steps twice: [], missing: [3], of 4 there are 3"),
    "last bit of a loss": (
        lambda run: run["records"][2].update({"loss": 0.33333333333333326}),
        "records of steps differ from step 3 on",
    ),
    "evaluation": (
        lambda run: run["records"][-1].update({"test/loss": 0.6}),
        "records of evaluations differ from step 4 on",
    ),
}


@pytest.fixture
def chaos_check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("benchmarks.chaos_check")


@pytest.mark.parametrize("error", ERRORS)
def test_check_tells_what_is_wrong_with_a_run(chaos_check: ModuleType, error: str):
    run = copy.deepcopy(UNDISTURBED)
    assert chaos_check.differences(run, UNDISTURBED, 8) == []
    spoil, message = ERRORS[error]
    spoil(run)
    assert chaos_check.differences(run, UNDISTURBED, 8) == [message]


@pytest.mark.slow
def test_runs_that_are_killed_terminated_or_torn_end_with_the_undisturbed_bits(tmp_path: Path):
    kinds = ["kill", "terminate", "torn"]
    command = [sys.executable, "-m", "benchmarks.chaos", f"--runs={len(kinds)}", f"--out={tmp_path}", "--way=launch"]
    done = subprocess.run(
        [*command, "--processes=2", "--steps=20", "--kinds", *kinds],
        check=False, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True, capture_output=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    results = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert sorted(result["kind"] for result in results) == kinds
    for result in results:
        assert result["wrong"] == []
        assert result["outcome"] == "finished" or result["did"].startswith("0/")
        assert result["phase"]
    assert (tmp_path / "table.md").read_text().count("\n") == 2 + len(kinds) + 1
