"""Workers as their parent sees them: one on every host, asked all at once."""

import json
import select
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.netlab.lab import Lab

ROOT = Path(__file__).parents[2]


class WorkerError(RuntimeError):
    """What a worker failed with, in one line."""


class Team:
    """A worker on every host of a laboratory, which ends them."""

    def __init__(self, lab: Lab, command: Sequence[str], env: dict[str, str]):
        self._files = [tempfile.TemporaryFile("w+") for _ in range(lab.hosts)]  # noqa: SIM115 they live as long as we do
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
        self._workers = [lab.popen(host, command, env, stderr=file, **pipes) for host, file in enumerate(self._files)]

    def ask(self, order: str, timeout: float, **arguments: Any) -> list[dict]:
        """Gives all hosts an order and returns their answers.

        Raises:
          WorkerError: if one fails, ends, or does not answer in `timeout` seconds.
        """
        line = json.dumps({"do": order, **arguments}) + "\n"
        for host, worker in enumerate(self._workers):
            try:
                print(line, end="", file=worker.stdin, flush=True)
            except OSError:
                raise self._lost(host, "ended") from None
        answers: dict[int, dict] = {}
        deadline = time.monotonic() + timeout
        while len(answers) < len(self._workers):
            answers |= self._read_answers(deadline, [host for host in range(len(self._workers)) if host not in answers])
        return [answers[host] for host in range(len(self._workers))]

    def _read_answers(self, deadline: float, waiting: list[int]) -> dict[int, dict]:
        """Of the hosts that have something to say by now."""
        streams = {stream: host for host in waiting if (stream := self._workers[host].stdout)}
        ready, _, _ = select.select(list(streams), [], [], max(0, deadline - time.monotonic()))
        if not ready:
            raise self._lost(waiting[0], "does not answer")
        answers = {}
        for stream in ready:
            line = stream.readline()
            if not line:
                raise self._lost(streams[stream], "ended")
            answers[streams[stream]] = answer = json.loads(line)
            if "error" in answer:
                raise WorkerError(f"host {streams[stream]}: {answer['error']}")
        return answers

    def _lost(self, host: int, what: str) -> WorkerError:
        self._files[host].seek(0)
        lines = self._files[host].read().split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "without a word")
        return WorkerError(f"host {host} {what}: {last[:200]}")


def combine(answers: list[dict]) -> dict:
    """Figures of all hosts: a repeat lasts until the last host is done; bytes are those of the busiest host."""
    seconds = slowest([answer["seconds"] for answer in answers])
    alone = statistics.median(slowest([answer["alone"] for answer in answers])) if "alone" in answers[0] else 0.0
    milliseconds = [1e3 * (each - alone) for each in seconds]
    ways = ("sent", "received", "payload")
    sent, received, payload = ([statistics.median(answer[way]) for answer in answers] for way in ways)
    figures: dict[str, Any] = {
        "milliseconds": statistics.median(milliseconds),
        "min": min(milliseconds),
        "max": max(milliseconds),
        "sent_bytes": max(sent),
        "busiest_bytes": max(*sent, *received),
        "payload_bytes": max(payload),
        "peak_bytes": max(answer["peak_bytes"] for answer in answers),
        "seconds": seconds,
        "backward_alone_seconds": alone,
        "sent_bytes_of_hosts": sent,
        "received_bytes_of_hosts": received,
    }
    if "stages" in answers[0]:
        stages = {name: slowest([answer["stages"][name] for answer in answers]) for name in answers[0]["stages"]}
        figures["stages"] = {name: 1e3 * statistics.median(seconds) for name, seconds in stages.items()}
        figures["stages_seconds"] = stages
    return figures


def slowest(times: list[list[float]]) -> list[float]:
    """Of every repeat, over the hosts."""
    return [max(each) for each in zip(*times, strict=True)]
