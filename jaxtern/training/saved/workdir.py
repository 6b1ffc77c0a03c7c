"""A run's folder: claims it for a recipe, and keeps the recipe and facts about the dataset and network."""

import contextlib
import dataclasses
import errno
import fcntl
import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from jaxtern.compression.network.links import Network
from jaxtern.data.durable import replace_durably
from jaxtern.data.facts import Facts
from jaxtern.data.json_files import read_json
from jaxtern.training.recipe.optimizer import OVER_ALL_STEPS
from jaxtern.training.recipe.recipe import Recipe

logger = logging.getLogger(__name__)
T = TypeVar("T")
WITHOUT_EFFECT = (  # fields that change no bit of a run
    "run.compare_every", "run.log_every", "run.histograms_every", "run.evaluate_every", "run.checkpoint_every",
    "run.keep_checkpoints", "run.keep_best", "data.decode_threads", "data.decode_processes",
)  # fmt: skip

_LASTING = errno.EACCES, errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.EPERM, errno.EROFS  # no second try helps
_NAMED = 4  # changes that an error names


def read_recipe(workdir: Path) -> Recipe:
    """Reads the recipe of a run; raises FileNotFoundError if there is no run, ValueError if it cannot be read."""
    path = workdir / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"workdir={str(workdir)!r}: holds no run (there is no config.json)")
    try:
        values = read_json(path)
        if "num_workers" in values:
            raise ValueError("it was written before recipes had sections; training goes on with --allow_config_change")
        before = {"rotation": False, "rounding": "stochastic"}  # the values of runs older than these fields
        return Recipe.from_dict(values | {"mean": before | values["mean"]} if "mean" in values else values)
    except (AttributeError, TypeError, ValueError) as error:  # not JSON, not an object, or fields of another type
        raise ValueError(f"{path}: cannot be read: {error}") from None


@contextlib.contextmanager
def claim_workdir(workdir: Path, recipe: Recipe, allow_change: bool) -> Iterator[None]:
    """Claims a folder for a run of this recipe; raises OSError if it cannot be made now.

    Raises ValueError if another process trains there, if it holds a run of another recipe and `allow_change` is false,
    or if its path cannot be a folder of checkpoints.
    """
    # Orbax does not read back what it saves there; a path with a scheme would be a folder "gs:" here.
    if re.search(r"[][\\\udc80-\udcff]", str(workdir.absolute())) or re.match(r"\w+:/", str(workdir)):
        raise ValueError(f"workdir={str(workdir)!r}: must be a local path in UTF-8 without [, ] and \\")
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        lock = (workdir / "lock").open("w")
    except OSError as error:
        if error.errno not in _LASTING:
            raise
        raise ValueError(f"workdir={str(workdir)!r}: cannot be made: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"workdir={str(workdir)!r}: another process is training there") from None
        if (workdir / "config.json").exists() or any((workdir / "checkpoints").glob("[0-9]*")):
            _take_over(workdir, recipe, allow_change)
        yield


def _take_over(workdir: Path, recipe: Recipe, allow_change: bool) -> None:
    """Raises ValueError if the folder's run has another recipe; with `allow_change` it tells what changes."""
    try:
        before = read_recipe(workdir)
    except (ValueError, FileNotFoundError):
        if allow_change:
            return
        raise
    kept = before.by_name()
    if recipe.optimizer.schedule not in OVER_ALL_STEPS and recipe.run.num_steps > before.run.num_steps:
        kept["run.num_steps"] = recipe.run.num_steps  # which changes no earlier step
    _require_none(workdir, "config", _find_changes(kept, recipe.by_name()), allow_change)


def write_run(workdir: Path, recipe: Recipe, network: Network | None = None) -> None:
    """Writes the recipe of a run, and the links by which it chose its exchange, if it did."""
    _write_json(workdir / "config.json", recipe.to_dict())
    if network is not None:
        _write_json(workdir / "network.json", dataclasses.asdict(network))


def read_facts(workdir: Path) -> Facts | None:
    """Reads the facts about a run's dataset; None if there are none, ValueError if they cannot be read."""
    path = workdir / "dataset.json"
    return _read(path, lambda values: Facts.from_dict(values, str(path)), "the dataset itself asked")


def keep_facts(workdir: Path, facts: Facts, allow_change: bool) -> None:
    """Writes the facts about a run's dataset, for those who use the run without it.

    Raises ValueError if the run had another dataset and `allow_change` is false, or if its facts cannot be read.
    """
    kept = read_facts(workdir)
    if kept is not None:
        kept = kept._replace(digest=kept.digest or facts.digest)
        _require_none(workdir, "dataset", _find_changes(kept.to_dict(), facts.to_dict()), allow_change)
    _write_json(workdir / "dataset.json", facts.to_dict())


def read_network(workdir: Path) -> Network | None:
    """Reads the links as they were when a run began; None if it has none, ValueError if they cannot be read."""
    return _read(workdir / "network.json", lambda values: Network(**values), "the links measured again")


def _read(path: Path, make: Callable[[Any], T], instead: str) -> T | None:
    """Applies `make` to a JSON file, if it exists; the error says what happens `instead` if it is removed."""
    if not path.exists():
        return None
    try:
        return make(read_json(path))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read: {error}; remove it to have {instead}") from None


def _write_json(path: Path, content: dict) -> None:
    replace_durably(path, json.dumps(content, indent=2) + "\n")


def _find_changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    changed = [name for name in before if before[name] != after[name] and name not in WITHOUT_EFFECT]
    return [f"{name} is {before[name]!r} there and {after[name]!r} here" for name in changed]


def _require_none(workdir: Path, kind: str, changes: list[str], allow_change: bool) -> None:
    """Raises ValueError if there are changes, or tells them if they are allowed."""
    if changes and allow_change:
        logger.info("the run goes on with another %s: %s", kind, "; ".join(changes))
    elif changes:
        named = "; ".join(changes[:_NAMED]) + (f"; and {len(changes) - _NAMED} more" if changes[_NAMED:] else "")
        raise ValueError(
            f"workdir={str(workdir)!r}: holds a run with another {kind} ({named});"
            f" take another --workdir, or continue it with this {kind} by --allow_config_change"
        )
