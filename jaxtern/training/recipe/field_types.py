"""The types of a recipe's fields: an annotation gives the type and further rules.

num_workers: Annotated[int, between(1)] = 4
"""

import math
import re
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np

_MAX_FLOAT = float(np.finfo(np.float32).max)
_NAMES = {int: "a whole number", float: "a number", str: "a string", bool: "True or False"}


def between(least: float, most: float = math.inf) -> Callable[[float], str | None]:
    """A rule that says what is wrong with a number outside `least` to `most`."""
    need = f"must be from {least:,} to {most:,}" if math.isfinite(most) else f"must be {least} or more"
    return lambda number: None if least <= number <= most else need


def is_expression(text: str) -> str | None:
    """A rule for regular expressions."""
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:  # of "a{99999999999}" and many brackets
        return f"is no regular expression: {error}"
    return None


Positive = Annotated[int, between(1)]
Natural = Annotated[int, between(0)]
NonNegative = Annotated[float, between(0)]
Share = Annotated[float, lambda number: None if 0 <= number < 1 else "must be 0 or more, and below 1"]
Density = Annotated[float, lambda number: None if 0 < number <= 1 else "must be above 0 and at most 1"]
Pattern = Annotated[str, is_expression]


class Section:
    """A section of a recipe: a dataclass that refuses values that do not fit its annotations.

    Types are bool, int, float, str, Literal, tuples of one of these, and any of them or None. An int may stand for a
    float, but a bool for neither. Numbers must fit int32 or float32; a seed may have 32 bits.
    """

    def __post_init__(self):
        for name, kind in typing.get_type_hints(type(self), include_extras=True).items():
            wrong = _find_wrong(kind, getattr(self, name), 32 if name == "seed" else 31)
            self.require(wrong is None, name, wrong)

    def require(self, holds: bool, name: str, need: str | None) -> None:
        """Raises a ValueError that names the field, its value and the rule, unless `holds`."""
        if not holds:
            section = type(self).__name__.removesuffix("Section").lower()
            raise ValueError(f"{section}.{name}={getattr(self, name)!r}: {need}")


def _find_wrong(kind: Any, value: Any, bits: int) -> str | None:
    """What a value must be to fit an annotation; None if it fits."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):  # with None
        wrong = None if value is None else _find_wrong(args[0], value, bits)
        return wrong and f"{wrong}, or None"
    if origin is Literal:
        return None if value in args else f"must be one of {', '.join(args)}"
    if origin is tuple:
        if not isinstance(value, tuple):
            return "must be a list"
        return next((f"{each!r} {wrong}" for each in value if (wrong := _find_wrong(args[0], each, bits))), None)
    if origin is Annotated:
        return _find_wrong(args[0], value, bits) or next(filter(None, (rule(value) for rule in args[1:])), None)
    if isinstance(value, bool) != (kind is bool) or not isinstance(value, (int, float) if kind is float else kind):
        return f"must be {_NAMES[kind]}"
    if kind is float and not abs(value) <= _MAX_FLOAT:  # also of NaN
        return "must be finite in float32"
    return f"must be below 2^{bits}" if kind is int and not abs(value) < 2**bits else None
