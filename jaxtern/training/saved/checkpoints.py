"""Checkpoints with orbax: written beside training, found whole or not used.

orbax renames a checkpoint into place when it is complete, so a kill leaves none half-written. Bytes that rot later are
caught by a digest of all arrays and metadata, kept in the checkpoint and compared after reading.
"""

import contextlib
import functools
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import PolicyCheckpointInfo

from jaxtern.training.saved.arrange import MisfitError, arrange
from jaxtern.training.saved.digests import digest_of_all

BEST_BY = "precision_at_1"
logger = logging.getLogger(__name__)


class CheckpointError(OSError):
    """A checkpoint cannot be written; `errno` is the system's reason, where it has one."""


class Checkpoint(NamedTuple):
    """What `Checkpoints.save` was given.

    Attributes:
      state: as numpy arrays.
      metadata: by name.
    """

    state: Any
    metadata: dict[str, Any]


Refit = Callable[[Checkpoint, Any], Any]


class Checkpoints:
    """The checkpoints of a run, under `<workdir>/checkpoints/<step>/`."""

    def __init__(self, workdir: Path, keep: int = 0, keep_best: int = 0):
        """Opens the folder, making it if `keep` is given. Where there are other processes, they have no part in it.

        Args:
          workdir: of the run.
          keep: how many of the last checkpoints to keep; 0 to read only.
          keep_best: how many to keep besides, of the best by `BEST_BY`.

        Raises:
          CheckpointError: if the folder cannot be made.
        """
        self._directory = Path(workdir).absolute() / "checkpoints"
        self._damaged = Path(workdir).absolute() / "checkpoints_damaged"
        self._keep, self._keep_best = keep, keep_best
        self._last: int | None = None  # step of the checkpoint that must still be there
        options = ocp.CheckpointManagerOptions(
            create=False,
            read_only=not keep,
            preservation_policy=self if keep else None,
            multiprocessing_options=_this_process_alone(),
        )
        if keep:
            with self._reporting():
                self._directory.mkdir(parents=True, exist_ok=True)
        try:
            self._manager = ocp.CheckpointManager(self._directory, options=options)
        except RecursionError:  # of JSON in JSON, which orbax reads here
            raise ValueError(f"{self._directory}: cannot be read: metadata of a checkpoint is no JSON") from None

    @staticmethod
    def exist(workdir: Path) -> bool:
        """Whether a run has saved any, whole or not."""
        folder = Path(workdir) / "checkpoints"
        return folder.is_dir() and any(path.name.isdecimal() for path in folder.iterdir())

    def save(self, step: int, state: Any, metrics: dict[str, Any] | None = None, **metadata: Any) -> None:
        """Starts to write `state`, and beside it `metadata` as JSON.

        Args:
          step: of the state.
          state: NumPy arrays that nobody changes any more.
          metrics: of an evaluation of this state; None: it is no candidate for the best.
          metadata: what JSON can hold.

        Raises:
          CheckpointError: if it cannot be written, the one before could not, or that or the folder is gone.
        """
        _ignore_late_answers()
        arrays = jax.tree.map(np.asarray, state)
        metadata["metrics"] = metrics
        metadata["digest"] = digest_of_all(arrays, metadata)
        items = ocp.args.Composite(state=ocp.args.StandardSave(arrays), metadata=ocp.args.JsonSave(metadata))
        self.wait()  # orbax would make a folder that is gone anew, and train on without what was in it
        with self._reporting():
            self._manager.save(step, args=items)
        self._last = step

    def steps(self) -> list[int]:
        """Steps of the checkpoints that are complete on disk, rising; waits for one that is being written.

        Raises:
          CheckpointError: if that could not be written.
        """
        self.wait()
        while True:
            try:
                self._manager.reload()
                return sorted(self._manager.all_steps())
            except (FileNotFoundError, NotADirectoryError):  # one that a trainer deletes meanwhile
                if not self._directory.is_dir():
                    raise

    def best_step(self) -> int | None:
        """The step of best `BEST_BY` among those that were evaluated when they were saved; None where none was."""
        return next(iter(self._rank(self.steps())), None)

    def should_preserve(self, checkpoints: Sequence[PolicyCheckpointInfo], *, context: Any) -> list[bool]:
        """Which checkpoints orbax is to preserve: the last ones and, as soon as they are on disk, the best.

        Its own BestN takes metrics from a file beside the checkpoint that it reads before all else, so that a damaged
        one would bar the way to all checkpoints.
        """
        steps = sorted(info.step for info in checkpoints)
        preserved = {*steps[-self._keep :], *self._rank(steps)[: self._keep_best]}
        return [info.step in preserved for info in checkpoints]

    def _rank(self, steps: Sequence[int]) -> list[int]:
        """Sorts the evaluated ones of some steps, the best by `BEST_BY` first, of equals the later."""
        scores = []
        for step in steps:
            # a checkpoint that is damaged, or was not evaluated, is no candidate
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                metadata = json.loads((self._directory / str(step) / "metadata" / "metadata").read_text())
                scores.append((float(metadata["metrics"][BEST_BY]), step))
        return [step for _, step in sorted(scores, reverse=True)]

    def restore(self, step: int, like: Any = None, refit: Refit | None = None) -> Checkpoint:
        """The checkpoint of `step`.

        Args:
          step: one of `steps()`.
          like: a state of the same structure, shapes and dtypes; None: it is given as it was saved, in dicts.
          refit: makes such a state of one that is otherwise; None: there is no other.

        Raises:
          MisfitError: if the state is another.
          ValueError: if the checkpoint is damaged.
        """
        saved = self._read(step)
        if like is None:
            return saved
        try:
            state = arrange(saved.state, like) if refit is None else refit(saved, like)
        except MisfitError as error:
            raise MisfitError(f"checkpoint {self._directory / str(step)} {error}") from None
        return Checkpoint(state, saved.metadata)

    def _read(self, step: int) -> Checkpoint:
        """Arrays that match their digest, in dicts and lists."""
        _ignore_late_answers()
        items = ocp.args.Composite(state=ocp.args.StandardRestore(), metadata=ocp.args.JsonRestore())
        try:
            restored = self._manager.restore(step, args=items)
            state, metadata = restored["state"], dict(restored["metadata"])
            expected = metadata.pop("digest")
            found = digest_of_all(state, metadata)
        except Exception as error:  # orbax and tensorstore raise many kinds for unreadable files
            raise ValueError(f"checkpoint {self._directory / str(step)} cannot be read: {_reason(error)}") from error
        if found != expected:
            raise ValueError(f"checkpoint {self._directory / str(step)} is damaged: it does not match its digest")
        return Checkpoint(state, metadata)

    def restore_latest(self, like: Any = None, refit: Refit | None = None) -> Checkpoint | None:
        """The newest checkpoint that is whole, or None where there is none.

        Damaged newer ones are set aside, unless these checkpoints are only read.

        Args:
          like, refit: as in `restore`.

        Raises:
          MisfitError: if that is of another state.
          ValueError: if there are checkpoints and none is whole.
        """
        damaged = []
        for step in reversed(self.steps()):
            try:
                checkpoint = self.restore(step, like, refit)
            except MisfitError:
                raise
            except ValueError as error:
                logger.warning("%s; taking the one before it", error)
                damaged.append(step)
                continue
            if self._keep:
                self._set_aside(damaged)
                self._last = step
            return checkpoint
        if damaged:
            raise ValueError(f"{self._directory}: no checkpoint is whole of {damaged}; start again in another workdir")
        return None

    def _set_aside(self, steps: Sequence[int]) -> None:
        """Moves damaged checkpoints out of the way of those that will take their places."""
        for step in steps:
            self._damaged.mkdir(exist_ok=True)
            number = len(list(self._damaged.glob(f"{step}.*")))
            shutil.move(self._directory / str(step), self._damaged / f"{step}.{number}")
        self._manager.reload()

    def wait(self) -> None:
        """Waits until all is written, and requires that the last one is where it was written.

        Raises:
          CheckpointError: if something could not be written, or is gone.
        """
        last, self._last = self._last, None  # one that could not be written is told once
        with self._reporting():
            self._manager.wait_until_finished()
            if last is not None and not (self._directory / str(last)).is_dir():
                raise FileNotFoundError(f"the last one, of step {last}, is gone")
        self._last = last

    def close(self) -> None:
        """Waits likewise, and ends orbax's threads."""
        try:
            self.wait()
        finally:
            self._manager.close()

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        """Says of what fails in writing, now or beside training, where that was and why."""
        try:
            yield
        except Exception as error:  # of orbax, tensorstore or the system
            told = CheckpointError(f"checkpoints cannot be written to {self._directory}: {_reason(error)}")
            told.errno = _number(error)
            raise told from error


def _this_process_alone() -> ocp.options.MultiprocessingOptions:
    """Options by which orbax waits for no other process of a cluster."""
    if jax.process_count() == 1:
        return ocp.options.MultiprocessingOptions()
    own = jax.process_index()
    return ocp.options.MultiprocessingOptions(primary_host=own, active_processes={own})


def _reason(error: BaseException) -> str:
    """The first line of what went wrong, in the system's own words where it says."""
    number = _number(error)
    if number is not None:
        return os.strerror(number)
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _number(error: BaseException) -> int | None:
    """The system's number of an error, where it has one."""
    if isinstance(error, OSError):
        return error.errno
    code = re.search(r"os_error_code='(\d+)'", str(error))  # tensorstore's, behind all paths that it had to do with
    return int(code[1]) if code else None


@functools.cache
def _ignore_late_answers() -> None:
    """Silences tensorstore's threads, which still answer to an event loop that orbax closes where a file fails."""
    report = sys.unraisablehook

    def report_others(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            report(unraisable)

    sys.unraisablehook = report_others
