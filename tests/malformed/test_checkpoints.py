"""Checkpoints of which none is whole, and other files of a run that are not what they were."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from jaxtern.training.saved.workdir import read_network

ITEMS = ("_CHECKPOINT_METADATA", "metadata/metadata", "state/_METADATA", "state/manifest.ocdbt")


def each(run: Path, change: Callable[[Path], object]) -> None:
    for step in (run / "checkpoints").iterdir():
        change(step)


def files(step: Path) -> list[Path]:
    return sorted(path for path in step.rglob("*") if path.is_file())


def overwrite(step: Path, content: bytes) -> None:
    for path in files(step):
        path.write_bytes(content)


def cut(step: Path) -> None:
    for path in files(step):
        os.truncate(path, path.stat().st_size // 2)


def flip(step: Path) -> None:
    path = max(files(step), key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def change_metadata(step: Path, **fields: object) -> None:
    path = step / "metadata" / "metadata"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def write_metadata(step: Path, text: str) -> None:
    (step / "metadata" / "metadata").write_text(text)


def empty(step: Path) -> None:
    shutil.rmtree(step)
    step.mkdir()


def make_folders(step: Path) -> None:
    for path in files(step):
        path.unlink()
        path.mkdir()


def make_loops(step: Path) -> None:
    for path in files(step):
        path.unlink()
        path.symlink_to(path.name)


CHANGES = {
    "empty files": lambda step: overwrite(step, b""),
    "zeros": lambda step: overwrite(step, bytes(1000)),
    "brackets": lambda step: overwrite(step, b"[" * 100_000),
    "pickles": lambda step: overwrite(step, b"\x80\x04cos\nsystem\n(S'true'\ntR."),
    "half of every file": cut,
    "another bit": flip,
    "empty folders": empty,
    "no state": lambda step: shutil.rmtree(step / "state"),
    "no metadata": lambda step: shutil.rmtree(step / "metadata"),
    "folders for files": make_folders,
    "links to themselves": make_loops,
    "another digest": lambda step: change_metadata(step, digest="0" * 32),
    "a digest of a number": lambda step: change_metadata(step, digest=7),
    "more examples than were seen": lambda step: change_metadata(step, examples_seen=10**9),
    "fewer examples than none": lambda step: change_metadata(step, examples_seen=-8),
    "examples of a word": lambda step: change_metadata(step, examples_seen="many"),
    "another recipe": lambda step: change_metadata(step, recipe={}),
    "another field": lambda step: change_metadata(step, colour="red"),
    "metadata of a list": lambda step: write_metadata(step, "[]"),
    "metadata of null": lambda step: write_metadata(step, "null"),
    "metadata of nothing": lambda step: write_metadata(step, "{}"),
    "metadata of brackets": lambda step: write_metadata(step, '{"digest":' * 50_000),
}
OTHERS = {
    "no checkpoints": lambda run: shutil.rmtree(run / "checkpoints"),
    "a file for the checkpoints": lambda run: (shutil.rmtree(run / "checkpoints"), (run / "checkpoints").touch()),
    "checkpoints of words": lambda run: each(run, lambda step: step.rename(step.with_name(f"x{step.name}"))),
    "checkpoints that are files": lambda run: each(run, lambda step: (shutil.rmtree(step), step.touch())),
    "links of nothing": lambda run: each(run, lambda step: (shutil.rmtree(step), step.symlink_to("nowhere"))),
    "a folder for the recipe": lambda run: ((run / "config.json").unlink(), (run / "config.json").mkdir()),
}
NETWORKS = {
    "nothing": lambda path: path.write_text(""),
    "a list": lambda path: path.write_text("[]"),
    "no number": lambda path: path.write_text('{"latency": NaN, "bandwidth": 1}'),
    "a word": lambda path: path.write_text('{"latency": "1ms"}'),
    "brackets": lambda path: path.write_text("[" * 100_000),
    "more": lambda path: path.write_text('{"latency": 1, "speed": 2}'),
    "a folder": lambda path: path.mkdir(),
}
FACTS = {
    "nothing": "",
    "a list": "[]",
    "null": "null",
    "brackets": "[" * 100_000,
    "half of them": '{"image_shape": [8, 8, 1], "num_cla',
    "one alone": '{"num_classes": 3}',
    "others": '{"image_shape": [8, 8, 1], "num_classes": 3, "num_examples": 32, "class_names": [], "colour": "red"}',
    "classes of a word": '{"image_shape": [8, 8, 1], "num_classes": "three", "num_examples": 32, "class_names": []}',
    "images of nothing": '{"image_shape": [8, 8, 0], "num_classes": 3, "num_examples": 32, "class_names": []}',
    "a name too few": '{"image_shape": [8, 8, 1], "num_classes": 3, "num_examples": 32, "class_names": ["a", "b"]}',
}
EVALUATIONS = ["x", "[]", "{}", "null", '{"step": 2}', '{"step": 2, "split": "test", "loss": 1', "[" * 100_000, "\0"]


def by_doors(cases: Iterable[str], *doors: str) -> list:
    """Every case by one door, in turn; by the other, too, where there is time."""
    return [
        pytest.param(case, door, marks=[pytest.mark.slow] * ((i + j) % 2))
        for i, case in enumerate(cases)
        for j, door in enumerate(doors)
    ]


@pytest.mark.parametrize(("case", "door"), by_doors(CHANGES, "evaluate", "train"))
def test_doors_refuse_checkpoints(refuses: Callable, recipe_flags: list, run_copy: Path, case: str, door: str):
    each(run_copy, CHANGES[case])
    flags = recipe_flags if door == "train" else []
    refuses(door, *flags, "--workdir=run", cwd=run_copy.parent, names=["run"])


@pytest.mark.parametrize("case", OTHERS)
def test_evaluate_refuses_a_run(refuses: Callable, run_copy: Path, case: str):
    OTHERS[case](run_copy)
    refuses("evaluate", "--workdir=run", cwd=run_copy.parent, names=["run"])


@pytest.mark.parametrize("case", NETWORKS)
def test_links_that_are_none_are_refused(tmp_path: Path, case: str):
    path = tmp_path / "network.json"
    NETWORKS[case](path)
    with pytest.raises((ValueError, IsADirectoryError), match=re.escape(str(path))):
        read_network(tmp_path)


@pytest.mark.parametrize(("case", "door"), by_doors(FACTS, "export", "train"))
def test_doors_refuse_facts(refuses: Callable, recipe_flags: list, run_copy: Path, case: str, door: str):
    (run_copy / "dataset.json").write_text(FACTS[case])
    flags = recipe_flags if door == "train" else ["--out=exported"]
    refuses(door, *flags, "--workdir=run", cwd=run_copy.parent, names=["run/dataset.json: cannot be read: "])


@pytest.mark.parametrize("line", EVALUATIONS)
def test_evaluate_goes_on_without_evaluations_that_are_none(run_door: Callable, run_copy: Path, line: str):
    (run_copy / "evaluations.jsonl").write_text(line + "\n")
    answer = run_door("evaluate", "--workdir=run", cwd=run_copy.parent)
    assert answer.status == 0, answer.err
    first, second = (run_copy / "evaluations.jsonl").read_text().splitlines()
    assert (first, json.loads(second)["step"]) == (line, 2)


def test_train_goes_on_without_records_that_are_none(run_door: Callable, recipe_flags: list, run_copy: Path):
    metrics = run_copy / "metrics.jsonl"
    metrics.write_bytes(b"\n".join([b"5", b"\xff\xfe", b"[" * 100_000, metrics.read_bytes(), b'{"step": "2"}', b"\0"]))
    shutil.rmtree(run_copy / "checkpoints" / "2")
    answer = run_door("train", *recipe_flags, "--workdir=run", cwd=run_copy.parent)
    assert answer.status == 0, answer.err
    assert "from step 1" in answer.out
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [record["step"] for record in records if "loss" in record] == [1, 2]


@pytest.mark.few("another bit")
@pytest.mark.parametrize("case", ["another bit", "half of every file", "fewer examples than none", "empty folders"])
def test_train_sets_the_newest_aside_where_one_before_is_whole(
    run_door: Callable, recipe_flags: list, run_copy: Path, case: str
):
    CHANGES[case](run_copy / "checkpoints" / "2")
    answer = run_door("train", *recipe_flags, "--workdir=run", cwd=run_copy.parent)
    assert answer.status == 0, answer.err
    assert "taking the one before it" in answer.err
    assert (run_copy / "checkpoints_damaged" / "2.0").is_dir()
    assert "from step 1" in answer.out
