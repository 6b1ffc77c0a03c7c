"""Whether the values of a recipe's fields are of the types that it declares, and numbers that devices can hold."""

import types
import typing
from typing import Any

import numpy as np

_MAX_FLOAT = float(np.finfo(np.float32).max)
_BITS = 31  # of a step or size, which is an int32 on devices
_BITS_OF_SEED = 32
_NAMES = {int: "a whole number", float: "a number", str: "a string", bool: "True or False", type(None): "None"}


def require_types(recipe: Any) -> None:
    """Refuses a value that its field's annotation does not allow, or a number that int32 or float32 does not hold.

    Annotations are of bool, int, float, str, tuples of one of them, and None beside them. A whole number will do for a
    float, and True for neither.

    Raises:
      ValueError: naming the field, its value and the rule.
    """
    for name, kind in typing.get_type_hints(type(recipe)).items():
        value = getattr(recipe, name)
        if not _is_of(kind, value):
            raise ValueError(f"{name}={value!r}: must be {_describe(kind)}")
        for number in value if isinstance(value, tuple) else (value,):
            _require_held(name, number, is_float="float" in str(kind))


def _is_of(kind: Any, value: Any) -> bool:
    if isinstance(kind, types.UnionType):
        return any(_is_of(each, value) for each in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_is_of(typing.get_args(kind)[0], each) for each in value)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _describe(kind: Any) -> str:
    if isinstance(kind, types.UnionType):
        return " or ".join(_describe(each) for each in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return f"a list, each of which is {_NAMES[typing.get_args(kind)[0]]}"
    return _NAMES[kind]


def _require_held(name: str, value: Any, is_float: bool) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    bits = _BITS_OF_SEED if name == "seed" else _BITS
    if is_float and not abs(value) <= _MAX_FLOAT:  # nor is NaN
        raise ValueError(f"{name}={value!r}: must be finite in float32")
    if not is_float and not abs(value) < 2**bits:
        raise ValueError(f"{name}={value!r}: must be below 2^{bits}")
