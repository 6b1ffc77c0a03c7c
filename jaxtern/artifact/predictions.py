"""Logits to the best labels and their confidences, as a table or CSV."""

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Predictions(NamedTuple):
    """The best classes of each example, the best one first.

    Attributes:
      keys: of the examples.
      labels: as many a key as were asked for, or as there are classes.
      confidences: float32[n, top], softmax of the logits.
    """

    keys: list[str]
    labels: list[list[str]]
    confidences: np.ndarray


def rank(keys: Sequence[str], logits: np.ndarray, labels: tuple[str, ...], top: int) -> Predictions:
    """Finds the best classes of each row; of equal ones the first, as evaluation does.

    The softmax is NumPy's, in float32: the same bits for the same logits, wherever these were computed.

    Args:
      keys: of the rows.
      logits: float32[n, K].
      labels: of the K classes.
      top: how many to give, at most K.
    """
    best = np.argsort(-logits, axis=1, kind="stable")[:, :top]
    powers = np.exp(logits - np.max(logits, axis=1, keepdims=True))
    confidences = powers / np.sum(powers, axis=1, keepdims=True)
    chosen = [[labels[place] for place in row] for row in best.tolist()]
    return Predictions(list(keys), chosen, np.take_along_axis(confidences, best, axis=1))


def require_writable(path: Path) -> None:
    """Refuses a file that `write_predictions` could not write once all else is done."""
    if path.suffix.lower() != ".csv":
        raise ValueError(f"{str(path)!r}: must end in .csv")
    if not path.parent.is_dir():
        raise ValueError(f"{str(path)!r}: there is no folder {path.parent}")


def write_predictions(path: Path, predictions: Predictions) -> None:
    """Writes CSV in place of what may be there: columns key, label_1, confidence_1, label_2 and so on.

    float32s have the digits that tell one from the next.
    """
    places = range(1, predictions.confidences.shape[1] + 1)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["key", *(f"{name}_{place}" for place in places for name in ("label", "confidence"))])
        for key, labels, confidences in zip(*predictions, strict=True):
            pairs = zip(labels, map(str, confidences), strict=True)
            writer.writerow([key, *(value for pair in pairs for value in pair)])
    os.replace(temporary, path)


def format_table(predictions: Predictions) -> str:
    """Formats a line for each example, for people."""
    width = max(map(len, predictions.keys), default=0)
    longest = max((len(label) for labels in predictions.labels for label in labels), default=0)
    lines = []
    for key, labels, confidences in zip(*predictions, strict=True):
        pairs = zip(labels, confidences, strict=True)
        named = "  ".join(f"{confidence:7.2%} {label:<{longest}}" for label, confidence in pairs)
        lines.append(f"{key:<{width}}  {named}".rstrip())
    return "\n".join(lines)
