"""The registry of methods: reducers by name, for recipes and command lines."""

import inspect
from collections.abc import Callable
from typing import Any

from jaxtern.compression.dgc import dgc
from jaxtern.compression.float_mean import float_mean
from jaxtern.compression.low_rank import low_rank
from jaxtern.compression.radix.reducer import quantized, ternary
from jaxtern.compression.reducer import Reducer
from jaxtern.compression.sign import sign
from jaxtern.compression.top_k import top_k

METHODS: dict[str, Callable[..., Reducer]] = {
    "float": float_mean,
    "ternary": ternary,
    "quantized": quantized,
    "top_k": top_k,
    "dgc": dgc,
    "low_rank": low_rank,
    "sign": sign,
}


def options_of(method: str) -> dict[str, Any]:
    """The options of a method and their defaults; an option without one has `inspect.Parameter.empty`.

    Raises:
      ValueError: for a method that does not exist.
    """
    if method not in METHODS:
        raise ValueError(f"method={method!r}: must be one of {', '.join(METHODS)}")
    return {name: each.default for name, each in inspect.signature(METHODS[method]).parameters.items()}


def as_reducer(reducer: Reducer | str) -> Reducer:
    """A reducer, or that of a method's name, with its defaults.

    Raises:
      ValueError: for what is neither, and for a method that has an option without a default.
    """
    if isinstance(reducer, Reducer):
        return reducer
    if not isinstance(reducer, str):
        raise ValueError(f"reducer={reducer!r}: must be a jaxtern.Reducer or one of {', '.join(METHODS)}")
    missing = [name for name, default in options_of(reducer).items() if default is inspect.Parameter.empty]
    if missing:
        raise ValueError(f"reducer={reducer!r}: has no default of {', '.join(missing)}; call jaxtern.{reducer}(...)")
    return METHODS[reducer]()
