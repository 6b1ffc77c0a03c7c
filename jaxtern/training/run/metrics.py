"""Writes metrics to metrics.jsonl, TensorBoard and a user's own writers."""

import contextlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue] made on import

from jaxtern.data.durable import replace_durably, sync
from jaxtern.training import WRITERS
from jaxtern.training.recipe.recipe import Recipe

Scalars = dict[str, float]
_SCORES = {"test/loss": 0, "test/precision_at_1": 0}  # names only: TensorBoard compares runs by these scalars


class EventFile:
    """A file of TensorBoard events, written at once.

    tensorboardX's SummaryWriter, like TensorBoard's own, writes in a thread. If the disk is full, that thread dies, and
    whoever adds to its queue waits for ever. CLU's writer needs TensorFlow.
    """

    def __init__(self, folder: Path, first_step: int):
        """Opens a file for events after `first_step`; TensorBoard then ignores those of older files after that step."""
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventsWriter(str(folder / "events"))
        self._add(first_step + 1, file_version="brain.Event:2")
        self._add(first_step + 1, session_log=SessionLog(status=SessionLog.START))
        self.close = self._writer.close

    def write(self, step: int, scalars: Scalars) -> None:
        """Writes the scalars of one step."""
        self.add(step, *(summary.scalar(name, value) for name, value in scalars.items()))

    def add(self, step: int, *summaries: Any) -> None:
        """Writes summaries from `tensorboardX.summary`."""
        for each in summaries:
            self._add(step, summary=each)
        self._writer.flush()

    def _add(self, step: int, **content: Any) -> None:
        self._writer.write_event(Event(step=step, wall_time=time.time(), **content))


class MetricWriter:
    """Appends records to `<workdir>/metrics.jsonl` and TensorBoard events to `<workdir>/tensorboard`."""

    def __init__(self, workdir: Path, first_step: int, recipe: Recipe | None = None):
        """Opens both, and `WRITERS` for a recipe's run; drops records after `first_step`, from which the run resumes.

        All methods raise OSError if they cannot write.
        """
        self._path = workdir / "metrics.jsonl"
        kept = [record for record in read_metrics(workdir) if record["step"] <= first_step]
        replace_durably(self._path, "".join(json.dumps(record) + "\n" for record in kept))
        self._file = self._path.open("a")
        self._events, self._own = EventFile(workdir / "tensorboard", first_step), []
        if recipe is not None:
            fields = {name: str(own) if isinstance(own, list) else own for name, own in recipe.by_name().items()}
            text = "\n".join(f"    {name} = {value!r}" for name, value in fields.items())  # indented as code
            self._events.add(first_step, summary.text("recipe", text), *summary.hparams(fields, _SCORES))
            self._own = [open_own(workdir, recipe.to_dict()) for open_own in WRITERS.values()]

    def write(self, step: int, scalars: Scalars) -> None:
        """Writes the scalars of one step."""
        self._file.write(json.dumps({"step": step, **scalars}) + "\n")
        self._file.flush()
        self._events.write(step, scalars)
        for write in self._own:
            write(step, scalars)

    def write_histograms(self, step: int, names: Sequence[str], histograms: Any) -> None:
        """Writes the `Histograms` of the named tensors, and their shares of zeros as scalars."""
        self.write(step, {f"zeros/{name}": float(zeros) for name, zeros in zip(names, histograms.zeros, strict=True)})
        for name, counts, least, greatest in zip(names, *histograms[:3], strict=True):
            limits = np.linspace(least, greatest, len(counts) + 1, dtype=np.float64)
            middles, number = (limits[1:] + limits[:-1]) / 2, int(counts.sum())
            moments = float(counts @ middles), float(counts @ middles**2)  # only TensorBoard's tooltip shows them
            self._events.add(step, summary.histogram_raw(name, least, greatest, number, *moments, limits[1:], counts))

    def write_image(self, step: int, name: str, image: np.ndarray) -> None:
        """Writes a picture, float32[height, width, channels] from 0 to 1, for TensorBoard only."""
        self._events.add(step, summary.image(name, image, dataformats="HWC"))

    def sync(self) -> None:
        """Waits until all records are on the disk, as they must be before the checkpoint that follows them."""
        sync(self._file)

    def close(self) -> None:
        try:
            with self._file:
                self.sync()
        finally:
            self._events.close()


def read_metrics(workdir: Path) -> list[dict]:
    """The records of `<workdir>/metrics.jsonl`."""
    return read_records(workdir / "metrics.jsonl")


def read_records(path: Path, words: Sequence[str] = ()) -> list[dict]:
    """Reads the lines of a file that hold a step and other numbers, or strings of the names in `words`.

    It skips other lines, such as one that a kill cut short; without a file there are none.
    """
    records = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError, RecursionError):  # of lines nested too deeply
            record = json.loads(line)
            if isinstance(record, dict) and type(record.get("step")) is int:
                kinds = {name: str if name in words else int | float for name in record}
                if all(isinstance(record[name], kind) for name, kind in kinds.items()):
                    records.append(record)
    return records
