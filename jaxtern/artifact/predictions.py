"""Turns logits into the best labels and their confidences, as a table or CSV."""

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxtern.data.durable import naming


class Predictions(NamedTuple):
    """The best classes of each example, the best one first."""

    keys: list[str]  # names of the examples
    labels: list[list[str]]  # the best labels of each example
    confidences: np.ndarray  # float32[n, top], softmax of the logits
    true: list[str] | None = None  # the right label of each example; None if not known

    @property
    def heads(self) -> dict[str, list[str]]:
        """The first columns of a table: key, and true if the right labels are known."""
        return {"key": self.keys} | ({} if self.true is None else {"true": self.true})

    @property
    def precision_at_1(self) -> float | None:
        """The fraction of examples whose best label is right; None if the right labels are not known."""
        if not self.true:
            return None
        return sum(best[0] == true for best, true in zip(self.labels, self.true, strict=True)) / len(self.true)


def rank(
    keys: Sequence[str], logits: np.ndarray, labels: tuple[str, ...], top: int, true: Sequence[int] | None = None
) -> Predictions:
    """Finds the best classes of each row; among equal ones the first comes first, as in evaluation.

    The softmax is NumPy's, in float32, so equal logits give equal bits wherever they were computed.

    Args:
      keys: names of the rows.
      logits: float32[n, K].
      labels: of the K classes.
      top: number of classes to return, at most K.
      true: the right class of each row, if known.
    """
    best = np.argsort(-logits, axis=1, kind="stable")[:, :top]
    powers = np.exp(logits - np.max(logits, axis=1, keepdims=True))
    confidences = powers / np.sum(powers, axis=1, keepdims=True)
    chosen = [[labels[place] for place in row] for row in best.tolist()]
    right = None if true is None else [labels[place] for place in true]
    return Predictions(list(keys), chosen, np.take_along_axis(confidences, best, axis=1), right)


def write_predictions(path: Path, predictions: Predictions) -> None:
    """Writes or replaces a CSV file with columns key, true (if known), label_1, confidence_1, label_2, ..."""
    places, heads = range(1, predictions.confidences.shape[1] + 1), predictions.heads
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # Names of files may be any bytes.
        with naming(path), temporary.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([*heads, *(f"{name}_{place}" for place in places for name in ("label", "confidence"))])
            for *head, labels, confidences in zip(*heads.values(), *predictions[1:3], strict=True):
                pairs = zip(labels, map(str, confidences), strict=True)
                writer.writerow([*head, *(value for pair in pairs for value in pair)])
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def format_table(predictions: Predictions) -> str:
    """Formats a table for people, with a line for each example."""
    heads = list(predictions.heads.values())
    widths = [max(map(len, column), default=0) for column in heads]
    longest = max((len(label) for labels in predictions.labels for label in labels), default=0)
    lines = []
    for *head, labels, confidences in zip(*heads, *predictions[1:3], strict=True):
        pairs = zip(labels, confidences, strict=True)
        named = [f"{confidence:7.2%} {label:<{longest}}" for label, confidence in pairs]
        lines.append("  ".join([*map(str.ljust, head, widths), *named]).rstrip())
    return "\n".join(lines)
