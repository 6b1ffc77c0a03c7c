"""A preparation that is killed and goes on ends like one that never was, and what is half done is no dataset."""

import dataclasses
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxtern.preparation import workers
from jaxtern.preparation.pipeline import prepare
from jaxtern.preparation.plan import Options
from jaxtern.preparation.shards import WORK

CLASSES = ("ant", "bee")
OPTIONS = Options(name="toy", shards=6)


def list_shards(out: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of every finished shard."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in out.glob("*array_record*")}


def require_no_dataset(out: Path) -> None:
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.dataset_info import DatasetInfoFileError

    assert not (out / "dataset_info.json").exists()
    with pytest.raises(DatasetInfoFileError):
        tfds.builder_from_directory(out)


def test_any_number_of_workers_writes_the_same_bytes(tmp_path: Path, source: Path, straight: Path, snapshot: Callable):
    prepare(source, tmp_path / "three", options=OPTIONS, workers=3)
    assert snapshot(tmp_path / "three") == snapshot(straight)
    assert len(list_shards(straight)) == 12


class Killed(Exception):
    pass


def interrupt_after(monkeypatch: pytest.MonkeyPatch, images: int) -> None:
    """Makes the one worker end as at a crash after so many images."""
    real, count = workers.write_shard, 0

    def write_shard(task, on_image):
        def count_image():
            nonlocal count
            count += 1
            if count > images:
                raise Killed
            on_image()

        return real(task, count_image)

    monkeypatch.setattr(workers, "write_shard", write_shard)


@pytest.mark.parametrize("images", [0, 9, 10, 35, 60, 71])
def test_interrupted_anywhere_it_goes_on_to_the_same_bytes(
    tmp_path: Path, source: Path, straight: Path, snapshot, monkeypatch: pytest.MonkeyPatch, images: int
):
    out, said = tmp_path / "out", []
    with monkeypatch.context() as patch:
        interrupt_after(patch, images)
        with pytest.raises(Killed):
            prepare(source, out, options=OPTIONS)
    finished = list_shards(out)
    assert len(finished) == (images // 10 if images < 60 else 6 + (images - 60) // 2)
    require_no_dataset(out)
    prepare(source, out, options=OPTIONS, say=said.append)
    assert (f"{len(finished)} were done already" in said[0]) == bool(finished)
    assert snapshot(out) == snapshot(straight)
    assert {name: place for name, place in list_shards(out).items() if name in finished} == finished


def test_killed_between_the_last_files_it_goes_on(
    tmp_path: Path, source: Path, snapshot: Callable, monkeypatch: pytest.MonkeyPatch
):
    """Each of the moves that end a preparation is once the last that happens."""
    real, last = os.replace, 0
    for last in range(100):
        out, moves = tmp_path / f"out{last}", iter(range(100))

        def replace(old, new, moves=moves, last=last):
            if next(moves) >= last:
                raise Killed
            real(old, new)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", replace)
            try:
                prepare(source, out, options=dataclasses.replace(OPTIONS, shards=1))
            except Killed:
                if last:  # before, nothing is known of the plan
                    require_no_dataset(out)
            else:
                break
        prepare(source, out, options=dataclasses.replace(OPTIONS, shards=1))
        assert not (out / WORK).exists()
        assert sorted(snapshot(out)) == sorted(snapshot(tmp_path / "out0"))
        assert snapshot(out) == snapshot(tmp_path / "out0")
    assert last == 9  # plan, two shards with their results, plan with results, features, labels, dataset_info


# A script whose worker processes, which import it, read slowly, or are killed at one of the images.
SLOW = """
import os, sys, time
from pathlib import Path
from jaxtern.preparation import files, pipeline, plan

def main():
    try:
        pipeline.prepare(Path(sys.argv[1]), Path(sys.argv[2]), options=plan.Options(name="toy", shards=6), workers=2)
    except OSError as error:
        sys.exit(str(error))

real = files.read_span
def slow(location):
    time.sleep(0.02)
    if location[0].endswith(sys.argv[3]):
        os.kill(os.getpid(), 9)
    return real(location)
files.read_span = slow

if __name__ == "__main__":
    main()
"""


def start_slow(tmp_path: Path, source: Path, deadly: str) -> subprocess.Popen:
    script = tmp_path / "slow.py"
    script.write_text(SLOW)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2]), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(script), str(source), str(tmp_path / "out"), deadly]
    return subprocess.Popen(command, env=environment, text=True, stderr=subprocess.PIPE)


@pytest.mark.slow
def test_a_killed_worker_is_named_and_the_run_can_go_on(
    tmp_path: Path, source: Path, straight: Path, snapshot: Callable
):
    process = start_slow(tmp_path, source, "test/bee/03.jpg")
    _, said = process.communicate(timeout=200)
    assert process.returncode == 1
    assert said.startswith("a worker process was killed, perhaps for lack of memory; run the same command again")
    require_no_dataset(tmp_path / "out")
    assert list_shards(tmp_path / "out")
    prepare(source, tmp_path / "out", options=OPTIONS)
    assert snapshot(tmp_path / "out") == snapshot(straight)


@pytest.mark.few("15")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_with_its_workers_it_goes_on_to_the_same_bytes(
    tmp_path: Path, source: Path, straight: Path, snapshot, number: signal.Signals
):
    out, process = tmp_path / "out", start_slow(tmp_path, source, "none")
    try:
        deadline = time.monotonic() + 200
        while not list_shards(out):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == -number
    finished = list_shards(out)
    assert 0 < len(finished) < 12
    while True:  # the workers end by themselves, and let go of what they were writing
        held = dict(list_shards(out))
        time.sleep(1.0)
        if held == list_shards(out):
            break
    finished = list_shards(out)
    assert len(finished) < 12
    require_no_dataset(out)
    prepare(source, out, options=OPTIONS, workers=2)
    assert snapshot(out) == snapshot(straight)
    assert {name: place for name, place in list_shards(out).items() if name in finished} == finished


def test_a_finished_dataset_stays_as_it_is(source: Path, straight: Path, snapshot: Callable):
    before, files, said = list_shards(straight), snapshot(straight), []
    report = prepare(source, straight, options=OPTIONS, workers=2, say=said.append)
    assert (list_shards(straight), snapshot(straight)) == (before, files)
    assert said == [f"{straight} is prepared already, from files of these names and sizes"]
    assert [sum(s.images for s in shards) for shards in report.splits.values()] == [60, 12]


def test_a_finished_dataset_that_lost_a_shard_is_named(source: Path, straight: Path):
    path = straight / "toy-train.array_record-00002-of-00006"
    os.truncate(path, 1000)
    with pytest.raises(ValueError, match=r"toy-train\.array_record-00002-of-00006 is missing or cut short"):
        prepare(source, straight, options=OPTIONS)


def test_a_shard_cut_short_meanwhile_is_written_again(
    tmp_path: Path, source: Path, straight: Path, snapshot, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        interrupt_after(patch, 25)
        with pytest.raises(Killed):
            prepare(source, out, options=OPTIONS)
    os.truncate(out / "toy-train.array_record-00001-of-00006", 1000)
    prepare(source, out, options=OPTIONS)
    assert snapshot(out) == snapshot(straight)


def test_damaged_images_are_named_and_fail_the_run_until_allowed(
    tmp_path: Path, make, source: Path, read_back, caplog: pytest.LogCaptureFixture
):
    whole = make.jpeg(0, 30)
    bad = {f"train/ant/bad{i}.jpg": whole[: -10 - i] for i in range(4)} | {"test/bee/bad.jpg": b""}
    make.folder(source, bad)
    out = tmp_path / "out"
    words = r"5 images are damaged, and max_bad=4: test/bee/bad\.jpg, train/ant/bad0\.jpg, train/ant/bad1\.jpg, …"
    with pytest.raises(ValueError, match=words + r".* --max_bad=5") as caught:
        prepare(source, out, options=OPTIONS, max_bad=4)
    assert "\n" not in str(caught.value)
    lines = sorted(record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert lines == [
        "test/bee/bad.jpg: left out: is empty",
        *(f"train/ant/bad{i}.jpg: left out: Premature end of JPEG file" for i in range(4)),
    ]
    require_no_dataset(out)
    finished = list_shards(out)
    report = prepare(source, out, options=OPTIONS, max_bad=5)
    assert list_shards(out) == finished
    splits = report.splits.values()
    totals = [(sum(s.images for s in shards), sum(len(s.left_out) for s in shards)) for shards in splits]
    assert totals == [(60, 4), (12, 1)]
    examples = read_back(out)
    assert {name for inside in examples.values() for name in inside} == {
        str(path.relative_to(source)) for path in source.rglob("*.jpg")
    } - set(bad)
    left = [name for shard in json.loads((out / "preparation.json").read_text())["shards"].values()
            for name, _ in shard["left_out"]]  # fmt: skip
    assert sorted(left) == sorted(bad)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_full_disk_is_named_and_the_run_can_go_on(tmp_path: Path, make, run_command: Callable, count: int):
    image = make.jpeg(3, 400, 500)
    source = make.folder(tmp_path / "source", {f"train/{c}/{i}.jpg": image for c in CLASSES for i in range(9)})

    out = tmp_path / "out"
    arguments = (source, out, "--shards=1", "--validation_fraction=0", "--name=x", f"--workers={count}")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))  # which the door inherits
    try:
        done = run_command(*arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert done.returncode == 1
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error"))
    assert line.startswith(f"error: {out}: cannot be written: ")
    assert "File too large" in line
    require_no_dataset(out)
    assert not list_shards(out)
    assert run_command(*arguments).returncode == 0
