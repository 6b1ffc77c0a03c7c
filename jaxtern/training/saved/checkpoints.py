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
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import PolicyCheckpointInfo

from jaxtern.training.saved.arrange import MisfitError, arrange
from jaxtern.training.saved.digests import digest_of_all

BEST_BY = "precision_at_1"
logger = logging.getLogger(__name__)
T = TypeVar("T")


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

    def __init__(self, workdir: Path, keep: int | None = None, keep_best: int = 0):
        """Opens the folder, making it if `keep` is given. Where there are other processes, they have no part in it.

        Args:
          workdir: of the run.
          keep: how many of the last checkpoints to keep; None to read only.
          keep_best: how many to keep besides, of the best by `BEST_BY`.

        Raises:
          CheckpointError: if the folder cannot be made.
        """
        self._directory = Path(workdir).absolute() / "checkpoints"
        self._damaged = Path(workdir).absolute() / "checkpoints_damaged"
        self._writes = keep is not None
        self._scores: dict[int, float | None] = {}
        self._opened: int | None = None  # the folder that is written to: no other can get its number while it is open
        self._last: int | None = None  # step of the checkpoint that must still be there
        options = ocp.CheckpointManagerOptions(
            create=False,
            read_only=not self._writes,
            preservation_policy=_LastAndBest(keep, keep_best, self._rank) if keep else None,
            multiprocessing_options=_this_process_alone(),
        )
        if self._writes:
            with self._reporting():
                self._directory.mkdir(parents=True, exist_ok=True)
                self._opened = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
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
        self._scores[step] = None if metrics is None else metrics[BEST_BY]
        with self._reporting():
            self._finish()  # orbax would make a folder that is gone anew, and train on without what was in it
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

    def _rank(self, steps: Iterable[int]) -> list[int]:
        """Sorts the evaluated ones of some steps, the best by `BEST_BY` first, of equals the later."""
        scored = [(score, step) for step in steps if (score := self._score(step)) is not None]
        return [step for _, step in sorted(scored, reverse=True)]

    def _score(self, step: int) -> float | None:
        """`BEST_BY` of a checkpoint; None where it was not evaluated, or does not say."""
        if step not in self._scores:
            try:
                metadata = json.loads((self._directory / str(step) / "metadata" / "metadata").read_text())
                self._scores[step] = float(metadata["metrics"][BEST_BY])
            except (OSError, ValueError, KeyError, TypeError):  # damaged, or without metrics
                self._scores[step] = None
        return self._scores[step]

    def restore(self, step: int, like: Any, refit: Refit | None = None) -> Checkpoint:
        """The checkpoint of `step`.

        Args:
          step: one of `steps()`.
          like: a state of the same structure, shapes and dtypes.
          refit: makes such a state of one that is otherwise; None: there is no other.

        Raises:
          MisfitError: if the state is another.
          ValueError: if the checkpoint is damaged.
        """
        saved = self._read(step)
        try:
            state = arrange(saved.state, like) if refit is None else refit(saved, like)
        except MisfitError as error:
            raise MisfitError(f"checkpoint {self._directory / str(step)} {error}") from None
        return Checkpoint(state, saved.metadata)

    def restore_as_saved(self, step: int) -> dict[str, Any]:
        """The state of `step`, whatever its structure, as dicts of NumPy arrays.

        Raises:
          ValueError: if the checkpoint is damaged.
        """
        return self._read(step).state

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

    def use_latest(self, use: Callable[[int], T]) -> T | None:
        """Calls `use` with the newest step for which it raises no ValueError; returns its result, or None without any.

        Nothing is moved: for those who read beside the run that writes.
        """
        for step in reversed(self.steps()):
            try:
                return use(step)
            except ValueError as error:
                logger.warning("%s; taking the one before it", error)
        return None

    def restore_latest(self, like: Any, refit: Refit | None = None) -> Checkpoint | None:
        """The newest checkpoint that is whole, or None where there is none; damaged newer ones are set aside.

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
            for newer in damaged:
                self._set_aside(newer)
            self._last = step
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

    def wait(self) -> None:
        """Waits until all is written.

        Raises:
          CheckpointError: if something could not be, or is gone.
        """
        with self._reporting():
            self._finish()

    def close(self) -> None:
        """Waits likewise, and lets go of the folder.

        Raises:
          CheckpointError: if something could not be written, or is gone.
        """
        with self._reporting():
            try:
                self._finish()
            finally:
                self._manager.close()
                if self._opened is not None:
                    os.close(self._opened)
                    self._opened = None

    def _finish(self) -> None:
        """Waits until all is written, and requires that it is where it was written."""
        last, self._last = self._last, None  # one that could not be written is told once
        self._manager.wait_until_finished()
        if self._opened is None:
            return
        if not os.path.samestat(os.fstat(self._opened), self._directory.stat()):
            raise FileNotFoundError("something else has taken the folder's place")
        if last is not None and not (self._directory / str(last)).is_dir():
            raise FileNotFoundError(f"the last one, of step {last}, is gone")
        self._last = last

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        """Says of what fails in writing, now or beside training, where that was and why."""
        try:
            yield
        except Exception as error:  # of orbax, tensorstore or the system
            told = CheckpointError(f"checkpoints cannot be written to {self._directory}: {_reason(error)}")
            told.errno = _number(error)
            raise told from error


class _LastAndBest(NamedTuple):
    """Tells orbax which checkpoints to preserve.

    Its own BestN takes metrics from a file beside the checkpoint that it reads before all else, so that a damaged one
    would bar the way to all checkpoints.
    """

    keep: int
    keep_best: int
    rank: Callable[[Iterable[int]], list[int]]

    def should_preserve(self, checkpoints: Sequence[PolicyCheckpointInfo], *, context: Any) -> list[bool]:
        steps = sorted(info.step for info in checkpoints)
        preserved = {*steps[-self.keep :], *self.rank(steps)[: self.keep_best]}
        return [info.step in preserved for info in checkpoints]


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
