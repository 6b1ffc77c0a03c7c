"""Checks of arguments; scalars of NumPy and JAX count as numbers, and some may be traced."""

import math
import operator
from typing import Any

from jax.core import Tracer


def refuse_traced(name: str, value: Any) -> None:
    """Raises ValueError for a traced number."""
    if isinstance(value, Tracer):
        raise ValueError(
            f"{name} is traced: must be known when a program is compiled; name it in the static_args of"
            " optax.inject_hyperparams"
        )


def as_integer(name: str, value: Any, least: int, most: int | None = None) -> int:
    """The value as an int; raises ValueError if it is not an integer from `least` to `most`, or is traced."""
    refuse_traced(name, value)
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        rule = f"of {least} or more" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name}={' '.join(repr(value).split())}: must be an integer {rule}")
    return number


def as_float(name: str, value: Any) -> float:
    """The value as a float, NaN if it is not a number; raises ValueError if it is traced."""
    refuse_traced(name, value)
    try:
        return math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError):
        return math.nan


def require_number(name: str, value: Any, least: float = 0.0, below: float | None = None) -> None:
    """Raises ValueError for anything but a finite number of `least` or more; accepts any traced number."""
    if isinstance(value, Tracer) or (least <= as_float(name, value) < (math.inf if below is None else below)):
        return
    rule = f"of {least:g} or more" if below is None else f"from {least:g} to below {below:g}"
    raise ValueError(f"{name}={value!r}: must be a finite number {rule}")
