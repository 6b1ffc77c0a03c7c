"""What a field of a recipe takes: a value of its annotated type that devices can hold, by the rules beside the type.

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
_BITS = 31  # of a step or size, which is an int32 on devices
_BITS_OF_SEED = 32
_NAMES = {int: "a whole number", float: "a number", str: "a string", bool: "True or False", type(None): "None"}

Rule = Callable[[Any], str | None]  # a value to what is wrong with it


def between(least: float, most: float = math.inf) -> Rule:
    """For a number from `least` to `most`."""

    def check(number: float) -> str | None:
        if not number >= least:
            return f"must be {least} or more"
        return None if number <= most else f"must be {most:,} or less"

    return check


def below_one(number: float) -> str | None:
    """For a share of something."""
    return None if 0 <= number < 1 else "must be 0 or more, and below 1"


def is_expression(text: str) -> str | None:
    """For a regular expression."""
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:  # of "a{99999999999}" and many brackets
        return f"is no regular expression: {error}"
    return None


Positive = Annotated[int, between(1)]
Natural = Annotated[int, between(0)]
NonNegative = Annotated[float, between(0)]
Share = Annotated[float, below_one]
Pattern = Annotated[str, is_expression]


class Section:
    """Fields of a recipe that one part of the trainer owns; a dataclass of this kind refuses wrong values."""

    def __post_init__(self):
        """Checks each field.

        Annotations are of bool, int, float, str, Literal, tuples of one of them, and None beside them. A whole number
        will do for a float, and True for neither. No number may be more than int32 or float32 holds.

        Raises:
          ValueError: naming the field with its section, its value and the rule.
        """
        kinds, annotations = typing.get_type_hints(type(self)), typing.get_type_hints(type(self), include_extras=True)
        for name, kind in kinds.items():
            field, value = f"{section_name(type(self))}.{name}", getattr(self, name)
            if not _is_of(kind, value):
                raise ValueError(f"{field}={value!r}: must be {_describe(kind)}")
            for each in value if isinstance(value, tuple) else (value,):
                for rule in (_held_as(name, kind), *_rules_of(annotations[name])):
                    if each is not None and (wrong := rule(each)):
                        raise ValueError(f"{field}={each!r}: {wrong}")


def section_name(section: type) -> str:
    """What a recipe calls a section of this class: "run" of RunSection."""
    return section.__name__.removesuffix("Section").lower()


def optional_kinds(section: type) -> dict[str, type]:
    """Of each field that may be None, the type that it has otherwise."""
    parts = {name: typing.get_args(kind) for name, kind in typing.get_type_hints(section).items()}
    return {name: args[0] for name, args in parts.items() if type(None) in args}


def _is_of(kind: Any, value: Any) -> bool:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return any(_is_of(each, value) for each in args)
    if origin is Literal:
        return value in args
    if origin is tuple:
        return isinstance(value, tuple) and all(_is_of(args[0], each) for each in value)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _describe(kind: Any) -> str:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_describe(each) for each in args)
    if origin is Literal:
        return f"one of {', '.join(args)}"
    return f"a list, each of which is {_NAMES[args[0]]}" if origin is tuple else _NAMES[kind]


def _rules_of(annotation: Any) -> list[Rule]:
    """All rules beside its types, however deep."""
    own = list(getattr(annotation, "__metadata__", ()))
    return own + [rule for part in typing.get_args(annotation) for rule in _rules_of(part)]


def _held_as(name: str, kind: Any) -> Rule:
    """For what int32 or float32 holds; a seed has a bit more."""
    bits, is_float = _BITS_OF_SEED if name == "seed" else _BITS, "float" in str(kind)

    def check(value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        if is_float:
            return None if abs(value) <= _MAX_FLOAT else "must be finite in float32"  # nor is NaN
        return None if abs(value) < 2**bits else f"must be below 2^{bits}"

    return check
