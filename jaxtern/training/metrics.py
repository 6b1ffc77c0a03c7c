"""Where numbers go: a line of the log, metrics.jsonl, TensorBoard, a progress bar."""

import json
import os
import sys
from pathlib import Path

from tensorboardX import SummaryWriter
from tqdm import tqdm

Scalars = dict[str, float]


class MetricWriter:
    """Appends records to `<workdir>/metrics.jsonl` and TensorBoard events to `<workdir>/tensorboard`.

    A resumed run drops the records after the step from which it resumes, so that none stands there twice.
    """

    def __init__(self, workdir: Path, first_step: int):
        """Opens both for records of steps after `first_step`."""
        self._path = workdir / "metrics.jsonl"
        kept = [record for record in read_metrics(workdir) if record["step"] <= first_step]
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(record) + "\n" for record in kept))
        os.replace(temporary, self._path)
        self._file = self._path.open("a")
        self._events = SummaryWriter(str(workdir / "tensorboard"), purge_step=first_step + 1, write_to_disk=True)

    def write(self, step: int, scalars: Scalars) -> None:
        """Writes the scalars of one step."""
        self._file.write(json.dumps({"step": step, **scalars}) + "\n")
        self._file.flush()
        for name, value in scalars.items():
            self._events.add_scalar(name, value, step)

    def close(self) -> None:
        self._file.close()
        self._events.close()


def read_metrics(workdir: Path) -> list[dict]:
    """The records of `<workdir>/metrics.jsonl`; a last line cut short by a kill is left out."""
    path = workdir / "metrics.jsonl"
    if not path.exists():
        return []
    records = []
    for line in path.read_text().splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return records


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
