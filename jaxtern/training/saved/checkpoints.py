"""Checkpoints with orbax, written while training goes on.

orbax renames a checkpoint into place when it is complete, so a kill leaves none half-written. A digest of all arrays
and metadata, kept in the checkpoint and compared after reading, finds later damage.
"""

import contextlib
import errno
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

from jaxtern.training.saved.trees import MisfitError, arrange, digest

BEST_BY = "precision_at_1"
_DAMAGE = None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR  # None: no system error; other errors may pass, as ESTALE
logger = logging.getLogger(__name__)


class CheckpointError(OSError):
    """A checkpoint cannot be written, or cannot be read now but may be whole; `errno` is the system's, if any."""


class Checkpoint(NamedTuple):
    """The state, as NumPy arrays, and the metadata, by name, that `Checkpoints.save` was given."""

    state: Any
    metadata: dict[str, Any]


Refit = Callable[[Checkpoint, Any], Any]


class Checkpoints:
    """The checkpoints of a run, under `<workdir>/checkpoints/<step>/`."""

    def __init__(self, workdir: Path, keep: int = 0, keep_best: int = 0):
        """Opens the folder, and makes it unless `keep` is 0. Other processes of a cluster take no part.

        Args:
          workdir: of the run.
          keep: how many of the last checkpoints to keep; 0: only read.
          keep_best: how many of the best by `BEST_BY` to keep in addition.

        Raises:
          CheckpointError: if the folder cannot be made.
        """
        self._directory = Path(workdir).absolute() / "checkpoints"
        self._damaged = Path(workdir).absolute() / "checkpoints_damaged"
        self._keep, self._keep_best = keep, keep_best
        self._last: int | None = None  # step of the checkpoint that must still be there
        own = jax.process_index()  # orbax must not wait for the other processes of a cluster
        options = ocp.CheckpointManagerOptions(
            create=False,
            read_only=not keep,
            cleanup_tmp_directories=keep > 0,
            preservation_policy=self if keep else None,
            multiprocessing_options=ocp.options.MultiprocessingOptions(primary_host=own, active_processes={own}),
        )
        if keep:
            with self._reporting(None):
                self._directory.mkdir(parents=True, exist_ok=True)
        try:
            self._manager = ocp.CheckpointManager(self._directory, options=options)
        except RecursionError:  # from deeply nested JSON, which orbax reads here
            raise ValueError(f"{self._directory}: cannot be read: metadata of a checkpoint is no JSON") from None

    @staticmethod
    def exist(workdir: Path) -> bool:
        """Whether a run has saved any checkpoint, whole or not."""
        folder = Path(workdir) / "checkpoints"
        return folder.is_dir() and any(path.name.isdecimal() for path in folder.iterdir())

    def save(self, step: int, state: Any, metrics: dict[str, Any] | None = None, **metadata: Any) -> None:
        """Starts to write a state and its metadata.

        Args:
          step: of the state.
          state: NumPy arrays, which must not change any more.
          metrics: of an evaluation of this state; None: it cannot be the best.
          metadata: must be JSON.

        Raises:
          CheckpointError: if this checkpoint or the one before cannot be written, or that one or the folder is gone.
        """
        _ignore_late_answers()
        arrays = jax.tree.map(np.asarray, state)
        metadata["metrics"] = metrics
        metadata["digest"] = _digest(arrays, metadata)
        items = ocp.args.Composite(state=ocp.args.StandardSave(arrays), metadata=ocp.args.JsonSave(metadata))
        self.wait()  # finds out if the folder is gone, which orbax would make again, without its checkpoints
        with self._reporting(step):
            self._manager.save(step, args=items)
        self._last = step

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, rising; waits for one that is being written, with errors as `wait`."""
        self.wait()
        while True:
            try:
                self._manager.reload()
                return sorted(self._manager.all_steps())
            except (FileNotFoundError, NotADirectoryError):  # a trainer has just deleted one
                if not self._directory.is_dir():
                    raise

    def best_step(self) -> int | None:
        """The step of best `BEST_BY` among the checkpoints evaluated when they were saved; None if there is none."""
        return next(iter(self._rank(self.steps())), None)

    def should_preserve(self, checkpoints: Sequence[PolicyCheckpointInfo], *, context: Any) -> list[bool]:
        """Tells orbax which checkpoints to preserve: the last ones and, once they are on disk, the best.

        orbax's own BestN reads metrics from a file whose damage would make all checkpoints unreadable.
        """
        steps = sorted(info.step for info in checkpoints)
        preserved = {*steps[-self._keep :], *self._rank(steps)[: self._keep_best]}
        return [info.step in preserved for info in checkpoints]

    def _rank(self, steps: Sequence[int]) -> list[int]:
        """Sorts the evaluated steps, the best by `BEST_BY` first, among equals the latest."""
        scores = []
        for step in steps:
            # Skips a checkpoint that is damaged or was not evaluated.
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                metadata = json.loads((self._directory / str(step) / "metadata" / "metadata").read_text())
                scores.append((float(metadata["metrics"][BEST_BY]), step))
        return [step for _, step in sorted(scores, reverse=True)]

    def restore(self, step: int, like: Any = None, refit: Refit | None = None) -> Checkpoint:
        """Reads the checkpoint of a step.

        Args:
          step: one of `steps()`.
          like: a state whose structure, shapes and dtypes the result gets; None: dicts, as saved.
          refit: (checkpoint, like) -> state; None: `arrange`, which requires the same shapes and dtypes.

        Raises:
          MisfitError: if the saved state does not fit.
          CheckpointError: if the system refuses to read it.
          ValueError: if the checkpoint is damaged.
        """
        saved = self._read(step)
        if like is None:
            return saved
        try:
            state = arrange(saved.state, like) if refit is None else refit(saved, like)
        except ValueError as error:  # also of a method's own `resize`
            raise MisfitError(f"checkpoint {self._directory / str(step)} {error}") from None
        return Checkpoint(state, saved.metadata)

    def _read(self, step: int) -> Checkpoint:
        """Reads arrays, in dicts and lists, and compares their digest."""
        _ignore_late_answers()
        place = self._directory / str(step)
        items = ocp.args.Composite(state=ocp.args.StandardRestore(), metadata=ocp.args.JsonRestore())
        try:
            restored = self._manager.restore(step, args=items)
            state, metadata = restored["state"], dict(restored["metadata"])
            expected = metadata.pop("digest")
            found = _digest(state, metadata)
        except Exception as error:  # orbax and tensorstore raise many types for unreadable files
            if isinstance(error, MemoryError) or _number(error) not in _DAMAGE:
                raise _failure(place, "read", error) from error
            raise ValueError(f"checkpoint {place} cannot be read: {_reason(error)}") from error
        if found != expected:
            raise ValueError(f"checkpoint {place} is damaged: it does not match its digest")
        return Checkpoint(state, metadata)

    def restore_latest(self, like: Any = None, refit: Refit | None = None) -> Checkpoint | None:
        """Reads the newest whole checkpoint, as `restore` does; None if there are no checkpoints.

        It sets damaged newer ones aside, unless checkpoints are only read. Raises MisfitError and CheckpointError as
        `restore` does, and ValueError if there are checkpoints but none is whole.
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
        """Moves damaged checkpoints away, as new ones of the same steps will be written."""
        for step in steps:
            self._damaged.mkdir(exist_ok=True)
            number = len(list(self._damaged.glob(f"{step}.*")))
            shutil.move(self._directory / str(step), self._damaged / f"{step}.{number}")
        self._manager.reload()

    def wait(self) -> None:
        """Waits until all is written; raises CheckpointError if writing failed, or the last checkpoint is gone."""
        last, self._last = self._last, None  # so that a failure is reported only once
        with self._reporting(last):
            self._manager.wait_until_finished()
            if last is not None and not (self._directory / str(last)).is_dir():
                raise FileNotFoundError("its folder is gone")
        self._last = last

    def close(self) -> None:
        """Waits as `wait`, and ends orbax's threads."""
        try:
            self.wait()
        finally:
            self._manager.close()

    @contextlib.contextmanager
    def _reporting(self, step: int | None) -> Iterator[None]:
        """Turns a failure to write a checkpoint, now or in the background, into a CheckpointError."""
        try:
            yield
        except Exception as error:  # from orbax, tensorstore or the system
            place = self._directory if step is None else self._directory / str(step)
            raise _failure(place, "written", error) from error


def _digest(state: Any, metadata: dict[str, Any]) -> str:
    return digest({"state": state, "metadata": json.dumps(metadata, sort_keys=True)})


def _failure(place: Path, verb: str, error: BaseException) -> CheckpointError:
    told = CheckpointError(f"{place} cannot be {verb}: {_reason(error)}")
    told.errno = _number(error)
    return told


def _reason(error: BaseException) -> str:
    """The system's description of an error, if it has one, else the first line of the message."""
    number = _number(error)
    if number is not None:
        return os.strerror(number)
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _number(error: BaseException) -> int | None:
    """The system's number of an error, if it has one."""
    if isinstance(error, OSError):
        return error.errno
    code = re.search(r"os_error_code='(\d+)'", str(error))  # in tensorstore's messages
    return int(code[1]) if code else None


@functools.cache
def _ignore_late_answers() -> None:
    """Silences errors of tensorstore's threads, which answer to an event loop that orbax has closed after a failure."""
    report = sys.unraisablehook

    def report_others(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            report(unraisable)

    sys.unraisablehook = report_others
