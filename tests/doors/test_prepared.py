"""From images in folders to a model: prepared, drawn, trained on with a kill in mid-epoch, evaluated elsewhere."""

import json
import shlex
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

pytestmark = pytest.mark.slow

NUM_STEPS = 30  # of 16 out of 36 images: 13 epochs
FIELDS = {
    "num_steps": NUM_STEPS, "preprocessing": "inception", "image_size": 16, "evaluate_every": 10, "log_every": 1,
    "keep_checkpoints": 40, "statistics": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory, run_door: Callable) -> Path:
    """36 training and 8 validation images of two classes, prepared by the door."""
    root = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(0)
    for split, count in (("train", 18), ("val", 4)):
        for name, level in (("cat", 60), ("dog", 190)):
            folder = root / "source" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                small = np.clip(generator.normal(level, 40, (6, 6, 3)), 0, 255).astype(np.uint8)
                photo = cv2.resize(small, (50 + number, 40 + 2 * number), interpolation=cv2.INTER_CUBIC)
                cv2.imwrite(str(folder / f"{number}.jpg"), photo)
    done = run_door("prepare", root / "source", root / "out", f"--sheet={root / 'sheet.png'}")
    assert done.returncode == 0, done.stderr
    first = "a first look: python -m jaxtern.train"
    assert done.stdout.splitlines()[-2:] == [
        f"{first} --config=photos --config.data.name={root / 'out'} --config.run.batch_size=16",
        f"sheet in {root / 'sheet.png'}",
    ]
    return root / "out"


def losses(workdir: Path) -> list[tuple]:
    """Of every step and evaluation: who saw the same batches with the same weights has the same."""
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row.get("loss"), row.get("test/loss")) for row in rows]


def test_prepare_draws_the_sheet(dataset: Path):
    sheet = cv2.imread(str(dataset.parent / "sheet.png"))
    assert min(sheet.shape[:2]) > 500
    assert sheet.std() > 20


def test_prepare_draws_the_sheet_of_training_images_alone(dataset: Path, run_door: Callable, tmp_path: Path):
    source, sheet = dataset.parent / "source" / "train", tmp_path / "sheet.png"
    done = run_door("prepare", source, tmp_path / "my out", "--validation_fraction=0", f"--sheet={sheet}")
    assert done.returncode == 0, done.stderr
    assert cv2.imread(str(sheet)).std() > 20
    parts = "--config.data.train_split='train[:90%]' --config.data.test_split='train[90%:]' --config.run.batch_size=16"
    assert done.stdout.splitlines()[-2].endswith(f" --config.data.name='{tmp_path}/my out' {parts}")
    command = shlex.split(done.stdout.splitlines()[-2].partition("-m jaxtern.train ")[2])
    trained = run_door("train", *command, "--config.run.num_steps=1", f"--workdir={tmp_path / 'run'}")
    assert trained.returncode == 0, trained.stderr


def test_run_on_prepared_images_killed_in_mid_epoch_goes_on_as_if_it_had_not_been(
    dataset: Path,
    tmp_path: Path,
    run_door: Callable,
    open_door: Callable[..., subprocess.Popen],
    train_arguments: Callable,
    wait_until: Callable,
    saved_digest: Callable,
):
    """The one run decodes in a thread, the other, which is killed, in two processes."""
    fields = FIELDS | {"data": dataset}
    done = run_door("train", *train_arguments(tmp_path / "straight", decode_threads=1, **fields))
    assert done.returncode == 0, done.stderr
    assert "36 training and 8 test examples, streamed" in done.stdout

    arguments = train_arguments(tmp_path / "killed", decode_threads=1, **fields, decode_processes=2)
    process = open_door("train", *arguments)
    try:
        wait_until((tmp_path / "killed" / "checkpoints" / "3" / "metadata").exists, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert max(step for step, *_ in losses(tmp_path / "killed")) < NUM_STEPS
        again = run_door("train", *arguments, "--config.data.decode_processes=0")  # which is no other config
    finally:
        process.kill()
    assert again.returncode == 0, again.stderr
    assert "from step " in again.stdout
    for step in (5, NUM_STEPS):
        assert saved_digest(tmp_path / "killed", step) == saved_digest(tmp_path / "straight", step)
    assert losses(tmp_path / "killed") == losses(tmp_path / "straight")

    dataset.rename(tmp_path / "moved")
    lost = run_door("evaluate", f"--workdir={tmp_path / 'killed'}")
    found = run_door("evaluate", f"--workdir={tmp_path / 'killed'}", f"--data_dir={tmp_path / 'moved'}")
    (tmp_path / "moved").rename(dataset)
    assert (lost.returncode, lost.stderr) == (2, f"error: dataset={str(dataset)!r}: no such folder\n")
    assert found.returncode == 0, found.stderr
    assert f"step {NUM_STEPS}: test loss {losses(tmp_path / 'killed')[-1][2]:.4f}" in found.stdout


def test_train_names_a_damaged_image_and_leaves(
    dataset: Path, tmp_path: Path, run_door: Callable, train_arguments: Callable
):
    """As when a disk fails while a run goes on: one line, status 2, the last checkpoint stays."""
    (tmp_path / "copy").mkdir()
    for path in dataset.iterdir():
        content = path.read_bytes()
        if "-train." in path.name:  # the colours of an image, deep in the shard
            place = content.rindex(b"\xff\xda")
            content = content[: place + 2] + bytes(20) + content[place + 22 :]
        (tmp_path / "copy" / path.name).write_bytes(content)
    done = run_door("train", *train_arguments(tmp_path / "run", **FIELDS | {"data": tmp_path / "copy"}))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {tmp_path / 'copy'}: train example ")
