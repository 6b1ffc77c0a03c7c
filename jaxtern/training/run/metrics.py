"""Where numbers go: a line of the log, metrics.jsonl, TensorBoard, a progress bar."""

import json
import sys
import time
from pathlib import Path
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue] made on import
from tensorboardX.summary import scalar
from tqdm import tqdm

from jaxtern.data.durable import replace_durably, sync
from jaxtern.data.json_files import parse_json

Scalars = dict[str, float]


class MetricWriter:
    """Appends records to `<workdir>/metrics.jsonl` and TensorBoard events to `<workdir>/tensorboard`.

    A resumed run drops the records after the step from which it resumes, so that none stands there twice.
    """

    def __init__(self, workdir: Path, first_step: int):
        """Opens both for records of steps after `first_step`.

        Raises:
          OSError: if that cannot be written, here and below.
        """
        self._path = workdir / "metrics.jsonl"
        kept = [record for record in read_metrics(workdir) if record["step"] <= first_step]
        replace_durably(self._path, "".join(json.dumps(record) + "\n" for record in kept))
        self._file = self._path.open("a")
        self._events = EventFile(workdir / "tensorboard", first_step + 1)

    def write(self, step: int, scalars: Scalars) -> None:
        """Writes the scalars of one step."""
        self._file.write(json.dumps({"step": step, **scalars}) + "\n")
        self._file.flush()
        self._events.write(step, scalars)

    def sync(self) -> None:
        """Waits until all records are on the disk, as they should be before a checkpoint that comes after them."""
        sync(self._file)

    def close(self) -> None:
        try:
            with self._file:
                self.sync()
        finally:
            self._events.close()


class EventFile:
    """TensorBoard's events of a start, written as they come.

    Not by tensorboardX's SummaryWriter, whose thread dies where the disk is full, and who adds to its queue waits on.
    """

    def __init__(self, folder: Path, first_step: int):
        """Has TensorBoard forget what older files in the folder have of `first_step` and after."""
        folder.mkdir(exist_ok=True)
        self._writer = EventsWriter(str(folder / "events"))
        self._writer.write_event(Event(step=first_step, file_version="brain.Event:2", wall_time=time.time()))
        start = SessionLog(status=SessionLog.START)
        self._writer.write_event(Event(step=first_step, session_log=start, wall_time=time.time()))

    def write(self, step: int, scalars: Scalars) -> None:
        """Writes the scalars of one step."""
        for name, value in scalars.items():
            self._writer.write_event(Event(step=step, summary=scalar(name, value), wall_time=time.time()))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def read_metrics(workdir: Path) -> list[dict]:
    """The records of `<workdir>/metrics.jsonl`; lines that are none, as one cut short by a kill, are left out."""
    path = workdir / "metrics.jsonl"
    if not path.exists():
        return []
    records = []
    for line in path.read_bytes().splitlines():
        try:
            record = parse_json(line)
        except ValueError:
            continue
        if _is_record(record):
            records.append(record)
    return records


def _is_record(value: Any) -> bool:
    """Whether it is what `MetricWriter` writes."""
    return (
        isinstance(value, dict)
        and type(value.get("step")) is int
        and all(isinstance(scalar, int | float) for scalar in value.values())
    )


class Progress:
    """A bar with loss, examples/s and the time left where a person watches, and lines of text anywhere, if at all."""

    def __init__(self, first_step: int, num_steps: int, shown: bool = True):
        self._shown = shown
        self._bar = tqdm(
            total=num_steps,
            initial=first_step,
            unit="step",
            dynamic_ncols=True,
            disable=not shown or not sys.stderr.isatty(),
        )

    def update(self, loss: float, examples_per_second: float, num_steps: int = 1) -> None:
        """Counts steps."""
        self._bar.set_postfix_str(f"loss {loss:.4f}, {examples_per_second:,.0f} examples/s", refresh=False)
        self._bar.update(num_steps)

    def print(self, line: str) -> None:
        """A line above the bar."""
        if self._shown:
            tqdm.write(line, file=sys.stdout)
            sys.stdout.flush()

    def close(self) -> None:
        self._bar.close()
