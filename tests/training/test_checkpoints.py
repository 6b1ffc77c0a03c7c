"""A checkpoint comes back bit for bit or not at all."""

import contextlib
import errno
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest

from jaxtern.compression.transform import CompressedMeanState
from jaxtern.training.saved.checkpoints import CheckpointError, Checkpoints
from jaxtern.training.saved.trees import digest
from jaxtern.training.step.state import Averages, TrainState

Damage = Callable[[Path], None]


def make_state(step: int) -> TrainState:
    generator = np.random.default_rng(step)

    def layer(*shape: int) -> dict[str, np.ndarray]:
        return {"kernel": generator.normal(size=shape).astype(np.float32), "bias": np.full(shape[-1], -0.0, np.float32)}

    params = {"conv1": layer(5, 5, 1, 20), "fc1": layer(200, 50)}
    optimizer = (({"count": np.int32(step)}, jax.tree.map(np.square, params)), ())
    frozen, moments = {"conv2": layer(3, 3, 20, 4)}, {"norm1": {"mean": np.full(20, step, np.float32)}}
    compressor, averages = CompressedMeanState(np.int32(step + 7), (), (), None), Averages(params, moments)
    return TrainState(np.int32(step), params, frozen, moments, optimizer, compressor, averages, None)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with checkpoints of steps 1, 2 and 3; that of step 0 is not kept."""
    workdir = tmp_path_factory.mktemp("original")
    checkpoints = Checkpoints(workdir, keep=3)
    for step in (0, 1, 2, 3):
        checkpoints.save(step, make_state(step))
    checkpoints.close()
    return workdir


@pytest.fixture
def workdir(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "run")
    return tmp_path / "run"


def assert_equal(state: Any, expected: Any) -> None:
    leaves, structure = jax.tree.flatten(state)
    expected_leaves, expected_structure = jax.tree.flatten(expected)
    assert structure == expected_structure
    for leaf, other in zip(leaves, expected_leaves, strict=True):
        assert (leaf.dtype, leaf.shape) == (other.dtype, other.shape)
        assert np.asarray(leaf).tobytes() == np.asarray(other).tobytes()


def tree_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    if raw:
        raw[len(raw) // 2] ^= 0x10
        path.write_bytes(raw)


def cut(path: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])


def largest(folder: Path) -> Path:
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


DAMAGES: dict[str, Damage] = {
    "a bit flipped": lambda folder: flip(largest(folder)),
    "cut short": lambda folder: cut(largest(folder)),
    "file gone": lambda folder: largest(folder).unlink(),
    "state gone": lambda folder: shutil.rmtree(folder / "state"),
    "metadata gone": lambda folder: shutil.rmtree(folder / "metadata"),
    "metadata not JSON": lambda folder: (folder / "metadata" / "metadata").write_text("{"),
    "metadata without a digest": lambda folder: (folder / "metadata" / "metadata").write_text("{}"),
    "another digest": lambda folder: (folder / "metadata" / "metadata").write_text(json.dumps({"digest": "0" * 32})),
    "empty": lambda folder: [shutil.rmtree(folder), folder.mkdir()],
}


def test_checkpoint_comes_back_bit_for_bit(original: Path):
    checkpoints = Checkpoints(original)
    assert checkpoints.steps() == [1, 2, 3]
    for step in (1, 2, 3):
        assert_equal(checkpoints.restore(step, make_state(0)).state, make_state(step))
    assert_equal(checkpoints.restore_latest(make_state(0)).state, make_state(3))


@pytest.mark.parametrize("damage", DAMAGES)
def test_checkpoint_that_is_damaged_is_set_aside_for_the_one_before(
    workdir: Path, damage: str, caplog: pytest.LogCaptureFixture
):
    DAMAGES[damage](workdir / "checkpoints" / "3")
    damaged = tree_of(workdir / "checkpoints" / "3")
    checkpoints = Checkpoints(workdir, keep=3)
    with caplog.at_level(logging.WARNING, logger="jaxtern"):
        state = checkpoints.restore_latest(make_state(0)).state
    assert_equal(state, make_state(2))
    (warning,) = [record.getMessage() for record in caplog.records if record.name.startswith("jaxtern")]
    assert str(workdir / "checkpoints" / "3") in warning
    assert "\n" not in warning
    assert tree_of(workdir / "checkpoints_damaged" / "3.0") == damaged
    assert checkpoints.steps() == [1, 2]
    checkpoints.save(3, make_state(3))  # the run goes on
    checkpoints.close()
    assert_equal(Checkpoints(workdir).restore_latest(make_state(0)).state, make_state(3))


@pytest.mark.parametrize("harm", [flip, cut, Path.unlink], ids=["flip", "cut", "unlink"])
def test_checkpoint_with_any_file_damaged_is_refused_or_whole(workdir: Path, harm: Damage):
    folder, refused = workdir / "checkpoints" / "3", []
    names = sorted(tree_of(folder))
    whole = {name: (folder / name).read_bytes() for name in names}
    for name in names:
        harm(folder / name)
        try:
            assert_equal(Checkpoints(workdir).restore(3, make_state(0)).state, make_state(3))
        except ValueError as error:
            assert str(folder) in str(error)  # noqa: PT017
            refused.append(name)
        (folder / name).write_bytes(whole[name])
    assert any("/d/" in name for name in refused)


def test_checkpoint_whose_metadata_say_another_number_is_refused(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, keep=3)
    checkpoints.save(1, make_state(1), examples_seen=1600, recipe={"boundaries": (1.0, 2.5), "dir": None})
    checkpoints.close()
    checkpoint = Checkpoints(tmp_path).restore(1, make_state(0))
    assert checkpoint.metadata["examples_seen"] == 1600
    path = tmp_path / "checkpoints" / "1" / "metadata" / "metadata"
    path.write_text(path.read_text().replace("1600", "1700"))
    with pytest.raises(ValueError, match="does not match its digest"):
        Checkpoints(tmp_path).restore(1, make_state(0))


def test_checkpoint_that_the_system_does_not_read_just_now_is_not_taken_for_damaged(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
):
    before, checkpoints = tree_of(workdir), Checkpoints(workdir, keep=3)
    refusal = mock.Mock(side_effect=OSError(errno.ESTALE, "an English sentence"))
    monkeypatch.setattr(checkpoints._manager, "restore", refusal)
    with pytest.raises(CheckpointError, match="checkpoints/3 cannot be read: Stale file handle") as told:
        checkpoints.restore_latest(make_state(0))
    assert told.value.errno == errno.ESTALE
    monkeypatch.undo()
    assert_equal(checkpoints.restore_latest(make_state(0)).state, make_state(3))
    assert tree_of(workdir) == before


def test_checkpoints_that_are_all_damaged_are_left_alone(workdir: Path):
    for step in (1, 2, 3):
        flip(largest(workdir / "checkpoints" / str(step)))
    before = tree_of(workdir)
    with pytest.raises(ValueError, match=r"no checkpoint is whole of \[3, 2, 1\]"):
        Checkpoints(workdir, keep=3).restore_latest(make_state(0))
    assert tree_of(workdir) == before


def test_checkpoint_that_is_damaged_twice_is_set_aside_twice(workdir: Path):
    for number in range(2):
        flip(largest(workdir / "checkpoints" / "3"))
        checkpoints = Checkpoints(workdir, keep=3)
        checkpoints.restore_latest(make_state(0))
        checkpoints.save(3, make_state(3))
        checkpoints.close()
        assert len(list((workdir / "checkpoints_damaged").iterdir())) == number + 1


def test_checkpoint_that_was_never_finished_is_ignored_and_removed(workdir: Path, caplog: pytest.LogCaptureFixture):
    folder = workdir / "checkpoints"
    left = [folder / "4.orbax-checkpoint-tmp", folder / "5.orbax-checkpoint-tmp-1700000000000000"]
    for path in left:
        shutil.copytree(folder / "3", path)
    assert Checkpoints(workdir).steps() == [1, 2, 3]
    assert all(path.exists() for path in left)
    checkpoints = Checkpoints(workdir, keep=3)
    assert_equal(checkpoints.restore_latest(make_state(0)).state, make_state(3))
    assert not [record for record in caplog.records if record.name.startswith("jaxtern")]
    checkpoints.save(4, make_state(4))
    checkpoints.close()
    assert not any(path.exists() for path in left)
    assert_equal(Checkpoints(workdir).restore_latest(make_state(0)).state, make_state(4))


@pytest.mark.parametrize("other", ["shape", "structure"])
def test_checkpoint_of_another_structure_is_refused(workdir: Path, other: str):
    like = make_state(0)
    if other == "shape":
        like.params["fc1"]["kernel"] = np.zeros((200, 51), np.float32)
    else:
        like = like._replace(optimizer=())
    with pytest.raises(ValueError, match="checkpoints/3"):
        Checkpoints(workdir).restore(3, like)


def test_checkpoints_of_a_new_folder_are_none(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    assert checkpoints.steps() == []
    assert checkpoints.restore_latest(make_state(0)) is None


@pytest.mark.slow
def test_steps_can_be_read_while_a_trainer_writes_and_deletes_checkpoints(workdir: Path):
    """What orbax does beside a reader, many times over: a checkpoint is renamed into place, and another one away."""
    place, away = workdir / "checkpoints" / "4", workdir / "4"
    shutil.copytree(workdir / "checkpoints" / "3", away)
    ended = threading.Event()

    def come_and_go() -> None:
        while not ended.is_set():
            away.rename(place)
            place.rename(away)

    reader = Checkpoints(workdir)
    trainer = threading.Thread(target=come_and_go)
    trainer.start()
    try:
        seen = [reader.steps() for _ in range(300)]
    finally:
        ended.set()
        trainer.join()
    assert set(map(tuple, seen)) <= {(1, 2, 3), (1, 2, 3, 4)}
    reader.close()


def test_checkpoint_holds_what_was_saved_though_its_arrays_change(tmp_path: Path):
    """Saving goes on beside training, which writes into the donated buffers."""
    state = make_state(1)
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, state)
    state.params["fc1"]["kernel"][:] = 0
    checkpoints.close()
    assert_equal(Checkpoints(tmp_path).restore(1, make_state(0)).state, make_state(1))


def test_digest_tells_apart_values_shapes_dtypes_and_names():
    trees = [
        {"a": np.zeros(4, np.float32)},
        {"b": np.zeros(4, np.float32)},
        {"a": np.full(4, -0.0, np.float32)},
        {"a": np.zeros((2, 2), np.float32)},
        {"a": np.zeros(4, np.int32)},
        {"a": np.zeros(2, np.float32), "b": np.zeros(2, np.float32)},
    ]
    assert len({digest(tree) for tree in trees}) == len(trees)
    assert digest(trees[0]) == digest({"a": np.zeros(8, np.float32)[::2]})


@hypothesis.settings(max_examples=12)
@hypothesis.given(data=st.data())
def test_checkpoint_that_rots_anywhere_is_whole_or_the_one_before_is_taken(
    original: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
):
    workdir = tmp_path_factory.mktemp("rotten") / "run"
    shutil.copytree(original, workdir)
    folder = workdir / "checkpoints" / "3"
    for name in data.draw(st.lists(st.sampled_from(sorted(tree_of(folder))), min_size=1, max_size=4, unique=True)):
        raw, kind = bytearray((folder / name).read_bytes()), data.draw(st.sampled_from(["gone", "cut", "flipped"]))
        if kind == "gone":
            (folder / name).unlink()
            continue
        place = data.draw(st.integers(0, max(len(raw) - 1, 0)))
        if kind == "flipped" and raw:
            raw[place] ^= 1 << data.draw(st.integers(0, 7))
        (folder / name).write_bytes(raw if kind == "flipped" else raw[:place])
    checkpoints = Checkpoints(workdir, keep=3, keep_best=1)
    checkpoint = checkpoints.restore_latest(make_state(0))
    assert_equal(checkpoint.state, make_state(3 if 3 in checkpoints.steps() else 2))
    checkpoints.close()


def save_scored(checkpoints: Checkpoints, scores: dict[int, float | None]) -> None:
    for step, score in scores.items():
        checkpoints.save(step, make_state(step), metrics=None if score is None else {"precision_at_1": score})
    checkpoints.close()


def test_best_checkpoints_are_kept_beside_the_last(tmp_path: Path):
    """Of equals the later; one that was not evaluated when it was saved is none of them; a new process knows them."""
    scores = {0: None, 1: 0.5, 2: 0.9, 3: None, 4: 0.7, 5: 0.1, 6: 0.2}
    save_scored(Checkpoints(tmp_path, keep=2, keep_best=2), scores)
    assert Checkpoints(tmp_path).steps() == [2, 4, 5, 6]
    assert Checkpoints(tmp_path).best_step() == 2
    save_scored(Checkpoints(tmp_path, keep=2, keep_best=2), {7: 0.7, 8: None})
    assert Checkpoints(tmp_path).steps() == [2, 7, 8]
    save_scored(Checkpoints(tmp_path, keep=2, keep_best=1), {9: 0.95, 10: 0.3})
    assert Checkpoints(tmp_path).steps() == [9, 10]
    assert Checkpoints(tmp_path).best_step() == 9


def test_best_checkpoint_is_none_where_none_was_evaluated(workdir: Path):
    assert Checkpoints(workdir).best_step() is None
    save_scored(Checkpoints(workdir, keep=3), {4: 0.5, 5: None, 6: None, 7: None})
    assert Checkpoints(workdir).steps() == [5, 6, 7]
    assert Checkpoints(workdir).best_step() is None


def test_best_checkpoint_that_does_not_say_so_any_more_is_no_candidate(tmp_path: Path):
    save_scored(Checkpoints(tmp_path, keep=1, keep_best=1), {1: 0.9, 2: 0.1})
    (tmp_path / "checkpoints" / "1" / "metadata" / "metadata").write_bytes(b"\xff{")
    assert Checkpoints(tmp_path).best_step() == 2
    save_scored(Checkpoints(tmp_path, keep=1, keep_best=1), {3: 0.0})
    assert Checkpoints(tmp_path).steps() == [2, 3]


LOSSES: dict[str, Damage] = {
    "moved": lambda folder: folder.rename(folder.with_name("elsewhere")),
    "with the run": lambda folder: shutil.rmtree(folder.parent),
    "a file": lambda folder: [shutil.rmtree(folder), folder.write_text("")],
    "another": lambda folder: [shutil.rmtree(folder), folder.mkdir()],
    "emptied": lambda folder: [shutil.rmtree(path) for path in folder.iterdir()],
}


@pytest.mark.parametrize("seen", ["save", "steps", "close"])
@pytest.mark.parametrize("loss", LOSSES)
def test_folder_that_is_lost_is_told_in_a_line_and_not_made_anew(workdir: Path, loss: str, seen: str):
    folder = workdir / "checkpoints"
    checkpoints = Checkpoints(workdir, keep=3)
    checkpoints.save(4, make_state(4))
    checkpoints.wait()
    LOSSES[loss](folder)
    left = tree_of(workdir)
    sees = {"save": lambda: checkpoints.save(5, make_state(5)), "steps": checkpoints.steps, "close": checkpoints.close}
    with pytest.raises(CheckpointError, match=f"^{folder}/4 cannot be written: its folder is gone$"):
        sees[seen]()
    with contextlib.suppress(CheckpointError):
        checkpoints.close()
    checkpoints.close()  # a second time it has nothing to say
    assert tree_of(workdir) == left


def test_folder_in_which_the_checkpoint_is_gone_from_which_the_run_went_on_is_told(workdir: Path):
    checkpoints = Checkpoints(workdir, keep=3)
    assert_equal(checkpoints.restore_latest(make_state(0)).state, make_state(3))
    shutil.rmtree(workdir / "checkpoints" / "3")
    with pytest.raises(CheckpointError, match="/3 cannot be written: its folder is gone"):
        checkpoints.save(4, make_state(4))
    checkpoints.close()


FULL = """
import pathlib, resource, signal, sys
import numpy as np
from jaxtern.training.saved.checkpoints import CheckpointError, Checkpoints

checkpoints = Checkpoints(pathlib.Path(sys.argv[1]), keep=3)
checkpoints.save(4, {"w": np.random.default_rng(0).standard_normal(100)})
checkpoints.steps()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))
try:
    checkpoints.save(5, {"w": np.random.default_rng(0).standard_normal(2**15)})
    checkpoints.close()
except CheckpointError as error:
    print(error)
    print(error.errno)
"""


def test_file_that_cannot_be_written_to_its_end_is_told_and_the_others_stay_whole(workdir: Path):
    """As on a full disk; in a process of its own, whose limit on the size of a file stands for it."""
    before = tree_of(workdir / "checkpoints" / "3")
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    script = [sys.executable, "-c", FULL, str(workdir)]
    result = subprocess.run(script, capture_output=True, text=True, env=environment, timeout=300, check=True)
    assert result.stdout == f"{workdir}/checkpoints/5 cannot be written: File too large\n{errno.EFBIG}\n"
    assert Checkpoints(workdir).steps() == [2, 3, 4]
    assert tree_of(workdir / "checkpoints" / "3") == before


ALONE = """
import pathlib, sys
import jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{sys.argv[2]}", 2, int(sys.argv[3]))
import numpy as np
from jaxtern.training.saved.checkpoints import Checkpoints

assert jax.process_count() == 2
if jax.process_index() == 0:
    like = {"w": np.arange(5.0), "count": np.int32(3)}
    checkpoints = Checkpoints(pathlib.Path(sys.argv[1]), keep=2, keep_best=1)
    for step in range(4):
        checkpoints.save(step, like, metrics={"precision_at_1": -step})
    checkpoints.close()
    checkpoints = Checkpoints(pathlib.Path(sys.argv[1]), keep=2, keep_best=1)
    restored = checkpoints.restore_latest(like)
    np.testing.assert_array_equal(restored.state["w"], like["w"])
    print(checkpoints.steps(), checkpoints.best_step(), Checkpoints(pathlib.Path(sys.argv[1])).steps())
    checkpoints.close()
"""


@pytest.mark.slow
def test_one_process_of_a_cluster_saves_and_restores_alone(tmp_path: Path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    arguments = [[sys.executable, "-c", ALONE, str(tmp_path), str(port), str(number)] for number in range(2)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    processes = [subprocess.Popen(command, **pipes) for command in arguments]
    try:
        outputs = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert outputs[0][0] == "[0, 2, 3] 0 [0, 2, 3]\n"
