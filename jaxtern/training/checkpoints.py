"""Checkpoints with orbax: written beside training, found whole or not used.

orbax renames a checkpoint into place when it is complete, so a kill leaves none half-written. Bytes that rot later are
caught by a digest of all arrays and metadata, kept in the checkpoint and compared after reading.
"""

import functools
import hashlib
import json
import logging
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxtern.training.selection import path_of

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Checkpoint(NamedTuple):
    """What `Checkpoints.save` was given.

    Attributes:
      state: as numpy arrays.
      metadata: by name.
    """

    state: Any
    metadata: dict[str, Any]


class Checkpoints:
    """The checkpoints of a run, under `<workdir>/checkpoints/<step>/`."""

    def __init__(self, workdir: Path, keep: int | None = None):
        """Opens the folder, making it if `keep` is given.

        Args:
          workdir: of the run.
          keep: how many checkpoints to keep; None to read only.
        """
        self._directory = Path(workdir).absolute() / "checkpoints"
        self._damaged = Path(workdir).absolute() / "checkpoints_damaged"
        self._writes = keep is not None
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, create=self._writes, read_only=not self._writes)
        try:
            self._manager = ocp.CheckpointManager(self._directory, options=options)
        except RecursionError:  # of JSON in JSON, which orbax reads here
            raise ValueError(f"{self._directory}: cannot be read: metadata of a checkpoint is no JSON") from None

    @staticmethod
    def exist(workdir: Path) -> bool:
        """Whether a run has saved any, whole or not."""
        folder = Path(workdir) / "checkpoints"
        return folder.is_dir() and any(path.name.isdecimal() for path in folder.iterdir())

    def save(self, step: int, state: Any, **metadata: Any) -> None:
        """Starts to write `state`, and beside it `metadata` as JSON; returns once the arrays are copied."""
        arrays = jax.tree.map(np.array, jax.device_get(state))
        metadata["digest"] = digest({"state": arrays, "metadata": json.dumps(metadata, sort_keys=True)})
        self._manager.save(
            step, args=ocp.args.Composite(state=ocp.args.StandardSave(arrays), metadata=ocp.args.JsonSave(metadata))
        )

    def steps(self) -> list[int]:
        """Steps of the checkpoints that are complete on disk, rising; waits for one that is being written."""
        self._manager.wait_until_finished()
        while True:
            try:
                self._manager.reload()
                return sorted(self._manager.all_steps())
            except (FileNotFoundError, NotADirectoryError):  # one that a trainer deletes meanwhile
                if not self._directory.is_dir():
                    raise

    def restore(self, step: int, like: Any) -> Checkpoint:
        """The checkpoint of `step`.

        Args:
          step: one of `steps()`.
          like: a state of the same structure, shapes and dtypes.

        Raises:
          ValueError: if the checkpoint is damaged, or of another structure.
        """
        like = jax.tree.map(np.asarray, like)
        checkpoint = self._read(step, ocp.args.StandardRestore(like))
        if _shapes(checkpoint.state) != _shapes(like):  # orbax lets it pass
            raise ValueError(f"checkpoint {self._directory / str(step)} holds arrays of other shapes than this run's")
        return checkpoint

    def restore_as_saved(self, step: int) -> dict[str, Any]:
        """The state of `step`, whatever its structure, as dicts of NumPy arrays.

        Raises:
          ValueError: if the checkpoint is damaged.
        """
        return self._read(step, ocp.args.StandardRestore()).state

    def _read(self, step: int, how: Any) -> Checkpoint:
        """Arrays that match their digest."""
        _ignore_late_answers()
        try:
            restored = self._manager.restore(step, args=ocp.args.Composite(state=how, metadata=ocp.args.JsonRestore()))
            state, metadata = restored["state"], dict(restored["metadata"])
            expected = metadata.pop("digest")
            found = digest({"state": state, "metadata": json.dumps(metadata, sort_keys=True)})
        except Exception as error:  # orbax and tensorstore raise many kinds for unreadable files
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ValueError(f"checkpoint {self._directory / str(step)} cannot be read: {reason}") from error
        if found != expected:
            raise ValueError(f"checkpoint {self._directory / str(step)} is damaged: its arrays do not match its digest")
        return Checkpoint(state, metadata)

    def use_latest(self, use: Callable[[int], T]) -> T | None:
        """What `use` makes of the step of the newest checkpoint for which it raises no ValueError; None where none is.

        Nothing is moved: for those who read beside the run that writes.
        """
        for step in reversed(self.steps()):
            try:
                return use(step)
            except ValueError as error:
                logger.warning("%s; taking the one before it", error)
        return None

    def restore_latest(self, like: Any) -> Checkpoint | None:
        """The newest checkpoint that is whole, or None where there is none; damaged newer ones are set aside.

        Raises:
          ValueError: if there are checkpoints and none is whole.
        """
        damaged = []
        for step in reversed(self.steps()):
            try:
                checkpoint = self.restore(step, like)
            except ValueError as error:
                logger.warning("%s; taking the one before it", error)
                damaged.append(step)
                continue
            for newer in damaged:
                self._set_aside(newer)
            return checkpoint
        if damaged:
            raise ValueError(f"{self._directory}: no checkpoint is whole of {damaged}; start again in another workdir")
        return None

    def _set_aside(self, step: int) -> None:
        """Moves a damaged checkpoint out of the way of the one that will take its place."""
        self._damaged.mkdir(exist_ok=True)
        number = len(list(self._damaged.glob(f"{step}.*")))
        shutil.move(self._directory / str(step), self._damaged / f"{step}.{number}")
        self._manager.reload()

    def close(self) -> None:
        """Waits until all is written."""
        self._manager.wait_until_finished()
        self._manager.close()


@functools.cache
def _ignore_late_answers() -> None:
    """Where one file cannot be read, orbax closes an event loop to which tensorstore's threads still answer."""
    report = sys.unraisablehook

    def report_others(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            report(unraisable)

    sys.unraisablehook = report_others


def _shapes(tree: Any) -> list[tuple]:
    return [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]


def digest(tree: Any) -> str:
    """BLAKE2b of every array's path, dtype, shape and bytes, the same of NamedTuples and of dicts of their fields."""
    leaves = [(path_of(keys), np.asarray(leaf)) for keys, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]]
    state = hashlib.blake2b(digest_size=16)
    for path, array in sorted(leaves, key=lambda leaf: leaf[0]):
        state.update(f"{path} {array.dtype} {array.shape}".encode())
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()
