"""Recipes, the step, the run and what it saves; and losses and writers that a recipe's file may add by name.

Attributes:
  LOSSES: functions (float32[..., K] logits, int32[...] targets) -> dict of float[...], one number for each target:
    "loss", which training minimises, and metrics, whose means are logged; used in training and in evaluation.
  WRITERS: functions (the run's folder, its recipe as a dict) -> a function that receives every record in process 0, as
    a step and a dict of floats by name.
"""

from collections.abc import Callable
from typing import Any

LOSSES: dict[str, Callable[[Any, Any], dict[str, Any]]] = {}
WRITERS: dict[str, Callable[[Any, dict[str, Any]], Callable[[int, dict[str, float]], Any]]] = {}
