"""Examples for disturbed runs: so few that a run takes all of them several times, and which each step took."""

import json
import struct
from pathlib import Path
from typing import Any

from jaxtern.data.idx import FILES, load_mnist

EXAMPLES = "JAXTERN_CHAOS_EXAMPLES"  # in the environment: what the names of their files begin with
FEW = {"train": 1500, "test": 500}


def take_few(source: str, folder: Path) -> None:
    """Writes the first examples of both splits of MNIST to a folder, in the same format."""
    folder.mkdir(parents=True, exist_ok=True)
    dataset = load_mnist(source)
    for split, (images_name, labels_name) in FILES.items():
        images, labels = getattr(dataset, split).images[: FEW[split], ..., 0], getattr(dataset, split).labels
        (folder / images_name).write_bytes(struct.pack(">I3I", 0x803, *images.shape) + images.tobytes())
        own = labels[: FEW[split]].astype("u1")
        (folder / labels_name).write_bytes(struct.pack(">II", 0x801, len(own)) + own.tobytes())


def read_examples(prefix: Path, processes: int) -> list[list[dict[str, Any]]]:
    """What each process has noted of its steps, in the order in which it took them, also those taken again."""
    paths = [Path(f"{prefix}.{process}") for process in range(processes)]
    return [[json.loads(line) for line in path.read_text().splitlines()] if path.exists() else [] for path in paths]


def find_faults(noted: list[list[dict[str, Any]]], num_steps: int) -> list[str]:
    """What is wrong with the examples of a finished run, a line each.

    A step that was taken again, as those after a checkpoint are, counts once, and must have had the same examples. In
    each epoch every example is to come once; in the last one, which may be cut short, none twice.
    """
    wrong, taken = [], [{} for _ in noted]
    for process, lines in enumerate(noted):
        again = [
            line for line in lines if taken[process].setdefault(line["step"], line["examples"]) != line["examples"]
        ]
        wrong += [f"process {process} took step {line['step']} again with other examples" for line in again]
        if sorted(taken[process]) != list(range(1, num_steps + 1)):
            wrong.append(f"process {process} took {len(taken[process])} steps of {num_steps}")
    if wrong:
        return wrong
    sequence = [example for step in range(1, num_steps + 1) for own in taken for example in own[step]]
    size = noted[0][0]["epoch_size"]
    for epoch, start in enumerate(range(0, len(sequence), size)):
        own = sequence[start : start + size]
        if len(set(own)) != len(own) or not set(own) <= set(range(size)):
            wrong.append(
                f"epoch {epoch}: {len(own)} examples, but {len(set(own) & set(range(size)))} of {size} there are"
            )
    return wrong
