"""Recipes, the step, the run and what it saves; and what a recipe's file adds of its own, by name.

Attributes:
  LOSSES: (float32[..., K] logits, int32[...] targets) to a dict of float[...], one number a target: "loss", which
    training lessens, and metrics, of which the means are logged; both in training and in evaluation.
  WRITERS: (the run's folder, its recipe as a dict) to a function that is given every record, a step and a dict of
    floats by name, in process 0.
"""

from collections.abc import Callable
from typing import Any

LOSSES: dict[str, Callable[[Any, Any], dict[str, Any]]] = {}
WRITERS: dict[str, Callable[[Any, dict[str, Any]], Callable[[int, dict[str, float]], Any]]] = {}
