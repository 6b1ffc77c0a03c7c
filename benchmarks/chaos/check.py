"""Is a disturbed run what the undisturbed one is, to the last bit?"""

import contextlib
from pathlib import Path
from typing import Any

from jaxtern.training.run.metrics import read_metrics
from jaxtern.training.saved.checkpoints import Checkpoints
from jaxtern.training.saved.trees import digest

_TIMES = "examples_per_second", "steps_per_second"
_APART = (*_TIMES, "sent_bits_per_element", "sent_bytes_per_step")  # the links decide what is sent


def read_run(workdir: Path) -> dict[str, Any]:
    """What a run has left: {"digests": by step, "examples_seen": by step, "records"}.

    Raises:
      ValueError: for a checkpoint that is damaged.
    """
    checkpoints = Checkpoints(workdir)
    digests, seen = {}, {}
    for step in checkpoints.steps():
        saved = checkpoints.restore(step)
        digests[str(step)] = digest(saved.state)
        seen[str(step)] = saved.metadata["examples_seen"]
    records = [
        {name: value for name, value in record.items() if name not in _APART} for record in read_metrics(workdir)
    ]
    return {"digests": digests, "examples_seen": seen, "records": records}


def find_newest(workdir: Path) -> int:
    """Step of the newest checkpoint that is whole; 0 where there is none."""
    if not Checkpoints.exist(workdir):
        return 0
    checkpoints = Checkpoints(workdir)
    try:
        for step in reversed(checkpoints.steps()):
            with contextlib.suppress(ValueError):
                checkpoints.restore(step)
                return step
        return 0
    finally:
        checkpoints.close()


def differences(run: dict[str, Any], undisturbed: dict[str, Any], batch_size: int) -> list[str]:
    """What is wrong with a finished run, a line each."""
    last = max(undisturbed["digests"], key=int)
    wrong = [] if last in run["digests"] else [f"no checkpoint of the last step, {last}, but of {list(run['digests'])}"]
    for step, found in run["digests"].items():
        if found != undisturbed["digests"].get(step, found):
            wrong.append(f"the state of step {step} is another")
    for step, seen in run["examples_seen"].items():
        if seen != int(step) * batch_size:
            wrong.append(f"{seen} examples seen at step {step}, not {int(step) * batch_size}")
    for what, name in (("step", "loss"), ("evaluation", "test/loss")):
        mine, theirs = ([record for record in source["records"] if name in record] for source in (run, undisturbed))
        steps = [record["step"] for record in mine]
        if steps != [record["step"] for record in theirs]:
            wrong.append(f"records of {what}s {_odd(steps, [record['step'] for record in theirs])}")
        elif mine != theirs:
            first = next(record["step"] for record, other in zip(mine, theirs, strict=True) if record != other)
            wrong.append(f"records of {what}s differ from step {first} on")
    return wrong


def left_behind(workdir: Path) -> list[str]:
    """Files that nobody will look for: parts of checkpoints that were never finished."""
    return [
        f"left in the folder: {path.relative_to(workdir)}"
        for path in sorted(workdir.glob("checkpoints/*"))
        if not path.name.isdecimal()
    ]


def _odd(found: list[int], expected: list[int]) -> str:
    twice = sorted({step for step in found if found.count(step) > 1})
    missing = sorted(set(expected) - set(found))
    return f"twice: {twice}, missing: {missing}, of {len(expected)} there are {len(found)}"
