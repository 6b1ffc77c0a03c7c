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

    A resumed run drops the records after the step from which it resumes, so that none stands there twice. Events are
    written as they come: tensorboardX's SummaryWriter leaves them to a thread, which dies where the disk is full, and
    whoever adds to its queue then waits for good.
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
        folder = workdir / "tensorboard"
        folder.mkdir(exist_ok=True)
        self._events = EventsWriter(str(folder / "events"))
        self._add_event(first_step + 1, file_version="brain.Event:2")
        # TensorBoard forgets what older files have of this step and after.
        self._add_event(first_step + 1, session_log=SessionLog(status=SessionLog.START))

    def write(self, step: int, scalars: Scalars) -> None:
        """Writes the scalars of one step."""
        self._file.write(json.dumps({"step": step, **scalars}) + "\n")
        self._file.flush()
        for name, value in scalars.items():
            self._add_event(step, summary=scalar(name, value))
        self._events.flush()

    def _add_event(self, step: int, **content: Any) -> None:
        self._events.write_event(Event(step=step, wall_time=time.time(), **content))

    def sync(self) -> None:
        """Waits until all records are on the disk, as they should be before a checkpoint that comes after them."""
        sync(self._file)

    def close(self) -> None:
        try:
            with self._file:
                self.sync()
        finally:
            self._events.close()


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
