"""Strict dtypes for every test here, and what a compiled program puts on the wire."""

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

import pytest

COLLECTIVES = (
    "all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute|collective-broadcast|ragged-all-to-all"
)
OPERATION = re.compile(rf"= (?P<type>\(?[a-z].*?) (?P<name>{COLLECTIVES}|send|recv)(-start)?\((?P<rest>.*)")
ARRAY = re.compile(r"([a-z]+\d+)\[([\d,]*)\]")


@pytest.fixture(autouse=True, scope="module")
def _strict(strict_promotion: None) -> None:
    del strict_promotion


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective of a compiled program.

    Attributes:
      name: with the function of a reduction, as "all-gather" or "all-reduce maximum".
      dtype: of what it carries, as "u32".
      size: elements of its result.
    """

    name: str
    dtype: str
    size: int


def collectives(program: str) -> list[Collective]:
    """The collectives of an optimised HLO text, in its order."""
    found = []
    for line in program.splitlines():
        operation = OPERATION.search(line)
        if operation:
            arrays = ARRAY.findall(operation["type"])
            (dtype,) = {dtype for dtype, _ in arrays}
            size = sum(math.prod(int(n) for n in shape.split(",") if n) for _, shape in arrays)
            found.append(Collective((operation["name"] + _function(program, operation["rest"])).strip(), dtype, size))
    return found


def _function(program: str, operands: str) -> str:
    """The name of the operation at the root of the computation that a reduction applies."""
    applied = re.search(r"to_apply=(%[\w.-]+)", operands)
    if not applied:
        return ""
    body = program[program.index(f"\n{applied[1]} (") :]
    root = re.search(r"ROOT .*? = \w+\[\]\S* (\w+)\(", body)
    assert root is not None
    return " " + root[1]


@pytest.fixture(scope="session")
def wire() -> Callable[..., list[Collective]]:
    """The collectives that a jitted function compiles to for these arguments."""

    def read(jitted: Any, *arguments: Any) -> list[Collective]:
        return collectives(jitted.lower(*arguments).compile().as_text())

    return read
