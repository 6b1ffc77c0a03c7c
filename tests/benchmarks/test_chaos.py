"""benchmarks.chaos: runs that are killed, stopped or damaged end as if undisturbed, and it sees those that do not."""

import copy
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.chaos import check, examples, table, team
from jaxtern.data.dataset import Dataset, Split
from jaxtern.data.idx import load_mnist
from jaxtern.training.saved.checkpoints import Checkpoints

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


@pytest.mark.parametrize("error", ERRORS)
def test_check_tells_what_is_wrong_with_a_run(error: str):
    run = copy.deepcopy(UNDISTURBED)
    assert check.differences(run, UNDISTURBED, 8) == []
    spoil, message = ERRORS[error]
    spoil(run)
    assert check.differences(run, UNDISTURBED, 8) == [message]


def test_check_finds_the_newest_checkpoint_that_is_whole(tmp_path: Path):
    assert check.find_newest(tmp_path) == 0
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (0, 5, 10):
        checkpoints.save(step, {"w": np.arange(step + 2.0)})
    checkpoints.close()
    assert check.find_newest(tmp_path) == 10
    shutil.rmtree(tmp_path / "checkpoints" / "10" / "state")
    assert check.find_newest(tmp_path) == 5


BEGINS = "1,000 steps of 64 examples, from {}, in runs/x"
STARTS = {  # lines of two starts, the newest whole checkpoint before the first, after it, and before the second
    "as it should": (["the start", 1, 30, 51], ["step 25", 26], [0, 25, 25], []),
    "struck before it said so": ([], ["the start"], [0, 0, 0], []),
    "again from the first step": (
        ["the start", 60],
        ["the start"],
        [0, 25, 25],
        ["step 0, not from the newest, 25"],
    ),
    "from one that is damaged": (
        ["the start", 60],
        ["step 50"],
        [0, 50, 25],
        ["step 50, not from the newest, 25"],
    ),
    "without one that was saved": (["the start", 60], ["the start"], [0, 0, 0], ["of step 25 is lost"]),
    "without that of the stop": (
        ["the start", "stopped by SIGTERM at step 7;"],
        ["the start"],
        [0, 0, 0],
        ["step 7 is lost"],
    ),
}


@pytest.mark.parametrize("launched", [False, True])
@pytest.mark.parametrize("case", STARTS)
def test_check_tells_of_checkpoints_that_are_lost(tmp_path: Path, case: str, launched: bool):
    first, second, newest, wrong = STARTS[case]
    if launched and newest[1] != newest[2]:
        pytest.skip("nothing befalls the folder between the starts of a launcher")
    steps = iter(newest[:2] if launched else newest)
    printed = team.Printed(tmp_path / "log", lambda: next(steps), 25)

    def text(lines: list) -> str:
        own = [f"step {line}: loss 1.0" if isinstance(line, int) else line for line in lines]
        own = [BEGINS.format(line) if line.startswith(("the", "step")) and ":" not in line else line for line in own]
        return "".join(f"[0] {line}\n" if launched else f"{line}\n" for line in own)

    printed.begin()
    if launched:
        again = "launch: starting all again from the last checkpoint\n"
        printed.follow(io.StringIO(text(first) + again), None).join()
        assert printed.step == 0  # it has as long to start up as the first time
        printed.follow(io.StringIO(text(second)), None).join()
    else:
        printed.follow(io.StringIO(text(first)), 0).join()
        printed.end()
        printed.begin()
        printed.follow(io.StringIO(text(second)), 0).join()
    assert len(printed.wrong) == len(wrong)
    assert all(words in line for words, line in zip(wrong, printed.wrong, strict=True))
    assert len(printed.began) == sum(isinstance(line, str) and "stopped" not in line for line in (*first, *second))


def note_steps(epochs: list[list[int]]) -> list[list[dict]]:
    """Two processes, two examples each a step, of epochs of six."""
    sequence = [example for epoch in epochs for example in epoch]
    return [
        [{"step": i + 1, "epoch_size": 6, "examples": sequence[4 * i + 2 * p : 4 * i + 2 * p + 2]} for i in range(4)]
        for p in range(2)
    ]


EPOCHS = [[3, 1, 4, 0, 5, 2], [2, 0, 1, 3, 4, 5], [5, 1, 3, 0]]
ORDERS = {
    "lost and twice": ([[3, 1, 4, 0, 5, 5], *EPOCHS[1:]], ["epoch 0: 6 examples, but 5 of 6 there are"]),
    "of another dataset": ([EPOCHS[0], [2, 0, 1, 3, 4, 6], EPOCHS[2]], ["epoch 1: 6 examples, but 5 of 6 there are"]),
    "twice at the end": ([*EPOCHS[:2], [5, 1, 3, 5]], ["epoch 2: 4 examples, but 3 of 6 there are"]),
}


def test_check_counts_a_step_that_was_taken_again_once():
    find_faults, noted = examples.find_faults, note_steps(EPOCHS)
    assert find_faults(noted, 4) == []
    again = [lines[:3] + lines[2:] for lines in noted]
    assert find_faults(again, 4) == []
    again[1][3] = again[1][3] | {"examples": [9, 9]}
    assert find_faults(again, 4) == ["process 1 took step 3 again with other examples"]
    assert find_faults([noted[0][:2], noted[1]], 4) == ["process 0 took 2 steps of 4"]


@pytest.mark.parametrize("case", ORDERS)
def test_check_tells_of_examples_twice_or_lost_in_an_epoch(case: str):
    epochs, wrong = ORDERS[case]
    assert examples.find_faults(note_steps(epochs), 4) == wrong


def test_few_examples_are_the_first_of_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    draw = np.random.default_rng(0)
    split = {size: Split(draw.integers(0, 256, (size, 3, 2, 1), np.uint8), np.arange(size) % 10) for size in (9, 6)}
    monkeypatch.setattr(examples, "load_mnist", lambda _: Dataset(split[9], split[6], 10))
    monkeypatch.setattr(examples, "FEW", {"train": 7, "test": 4})
    examples.take_few("anywhere", tmp_path)
    few = load_mnist(tmp_path)
    for own, whole, size in ((few.train, split[9], 7), (few.test, split[6], 4)):
        np.testing.assert_array_equal(own.images, whole.images[:size])
        np.testing.assert_array_equal(own.labels, whole.labels[:size])


def test_table_of_the_docs_is_that_of_the_kept_runs():
    found = {}
    for name in ("chaos", "chaos_local"):
        lines = (ROOT / "benchmarks" / "results" / f"{name}.jsonl").read_text().splitlines()
        counts, _ = table.make_table([json.loads(line) for line in lines]).split("\n\n")
        header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in counts.splitlines())
        found[name] = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    page = (ROOT / "docs" / "what_can_fail.md").read_text()
    for fault in found["chaos"].keys() - {"all"}:
        rows = [found[name][fault] for name in ("chaos", "chaos_local")]
        assert [row["wrong"] for row in rows] == ["0", "0"]
        same = [f"{row['same bits']}/{row['runs']}" for row in rows]
        seconds = [f"{row['median s']}, {row['max s']}" if row["max s"] else "goes on" for row in rows]
        line = f"| {fault} | {same[0]} | {seconds[0]} | {same[1]} | {seconds[1]} | {rows[1]['lost s']} |"
        assert " ".join(line.split()) in page


@pytest.mark.slow
def test_runs_that_are_killed_or_torn_end_with_the_undisturbed_bits(tmp_path: Path):
    kinds = ["kill", "torn"]
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
        assert result["from"]
    assert len((tmp_path / "table.md").read_text().partition("\n\n")[0].splitlines()) == 2 + len(kinds) + 1
