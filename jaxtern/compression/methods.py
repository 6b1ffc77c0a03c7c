"""The registry of methods: reducers by name."""

import inspect
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtern.compression.dgc import dgc
from jaxtern.compression.float_mean import float_mean
from jaxtern.compression.low_rank import low_rank
from jaxtern.compression.network.links import Network
from jaxtern.compression.radix.reducer import quantized, ternary, terngrad
from jaxtern.compression.reducer import Reducer
from jaxtern.compression.sign import sign
from jaxtern.compression.top_k import top_k

METHODS: dict[str, Callable[..., Reducer]] = {
    "float": float_mean,
    "ternary": ternary,
    "terngrad": terngrad,
    "quantized": quantized,
    "top_k": top_k,
    "dgc": dgc,
    "low_rank": low_rank,
    "sign": sign,
}

_OWN = tuple(METHODS)  # methods that a program adds keep the defaults of their options
_OF_PROGRAMS = ("network", "implementation")  # options that recipes do not have


class Option(NamedTuple):
    """A keyword of one or more methods."""

    kind: Any  # its annotation
    default: Any  # its default, the same in all methods
    methods: tuple[str, ...]  # names of the methods
    meaning: str  # from the docstring of the first method that describes it


def list_options() -> dict[str, Option]:
    """The options of this package's methods, from their signatures, without those that only programs set."""
    options: dict[str, Option] = {}
    for method in _OWN:
        meanings = _read_meanings(inspect.getdoc(METHODS[method]) or "")
        for name, each in inspect.signature(METHODS[method]).parameters.items():
            if name not in _OF_PROGRAMS:
                known = options.get(name, Option(each.annotation, each.default, (), ""))
                methods, meaning = (*known.methods, method), known.meaning or meanings.get(name, "")
                options[name] = known._replace(methods=methods, meaning=meaning)
    return options


def _read_meanings(docstring: str) -> dict[str, str]:
    """The descriptions in the "Args:" section of a docstring, by name."""
    arguments = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", docstring, re.MULTILINE | re.DOTALL)
    entries = re.split(r"^  (?=\w)", arguments[1], flags=re.MULTILINE) if arguments else []
    parts = (" ".join(entry.split()).partition(": ") for entry in entries)
    return {name: meaning for name, _, meaning in parts}


def create_reducer(method: str, network: Network | None = None, **options: Any) -> Reducer:
    """Creates the reducer of a method in METHODS; raises ValueError for an unknown method or a bad value.

    `network` is for methods that choose by the links. Options that the method does not have are ignored.
    """
    if not callable(METHODS.get(method)):
        known = ", ".join(METHODS)
        raise ValueError(f"method={method!r}: must be one of {known}, or what a recipe or --networks adds to them")
    own = inspect.signature(METHODS[method]).parameters
    given = options | {"network": network}
    return as_reducer(METHODS[method](**{name: value for name, value in given.items() if name in own}))


def as_reducer(reducer: Reducer | str) -> Reducer:
    """A reducer, or that of a method's name with its defaults; raises ValueError for anything else."""
    if isinstance(reducer, Reducer):
        return reducer
    if not isinstance(reducer, str) or reducer not in METHODS:
        raise ValueError(f"reducer={reducer!r}: must be a jaxtern.Reducer, or one of {', '.join(METHODS)}")
    return create_reducer(reducer)
