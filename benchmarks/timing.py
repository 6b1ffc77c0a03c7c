"""Time of compiled programs, each beside that of a copy."""

import collections
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

BATCH_SECONDS, MAX_CALLS = 0.01, 4096  # of a batch on a GPU
ROTATED_BYTES, MAX_COPIES = 2**28, 256  # of arguments and results, beyond any cache


class Program(NamedTuple):
    """Compiled, with the arguments that its calls take in turn, and how many calls make a batch."""

    function: Callable
    arguments: list[tuple[jax.Array, ...]]
    moved: int
    calls: int = 1
    in_place: bool = False


def prepare(function: Callable, arguments: tuple[jax.Array, ...], moved: int, in_place: bool = False) -> Program:
    """Compiles it, and finds out how many calls take long enough.

    In place: the first argument is donated to every call, and its result is the next one's.
    """
    copies = min(-(-ROTATED_BYTES // moved), MAX_COPIES) if on_gpu() else 1
    rotated = [(jnp.copy(arguments[0]), *arguments[1:]) for _ in range(copies)]
    program = Program(jax.jit(function, donate_argnums=0 if in_place else ()), rotated, moved, in_place=in_place)
    call_seconds(program)
    while on_gpu() and program.calls < MAX_CALLS and call_seconds(program) * program.calls < BATCH_SECONDS:
        program = program._replace(calls=2 * program.calls)
    return program


def prepare_copy(elements: int) -> Program:
    vector = jax.random.normal(jax.random.key(0), (elements,))
    return prepare(jnp.copy, (vector,), 8 * elements)


def call_seconds(program: Program) -> float:
    """Of one call in a batch; as many results are kept as there are arguments, so that memory rotates too."""
    function, rotated, _, calls, in_place = program
    kept = collections.deque(maxlen=len(rotated))
    start = time.perf_counter()
    for call in range(calls):
        arguments = rotated[call % len(rotated)]
        kept.append(function(*arguments))
        if in_place:
            rotated[call % len(rotated)] = kept[-1], *arguments[1:]
    jax.block_until_ready(list(kept))
    return (time.perf_counter() - start) / calls


def summarize(program: Program, copy: Program, repeats: int) -> dict:
    """Medians over batches, each behind one of the copy, and what they are made of."""
    times = []
    for _ in range(repeats):
        seconds_of_copy = call_seconds(copy)
        times.append((call_seconds(program), seconds_of_copy))
    median = statistics.median(seconds for seconds, _ in times)
    moved, calls = program.moved, program.calls
    fractions = [moved / copy.moved * of_copy / seconds for seconds, of_copy in times]
    return {
        "milliseconds": 1e3 * median,
        "gigabytes_per_second": 1e-9 * moved / median,
        "fraction_of_copy": statistics.median(fractions),
        "bytes": moved,
        "calls": calls,
        "seconds": [seconds for seconds, _ in times],
        "seconds_of_copy": [of_copy for _, of_copy in times],
    }


def on_gpu() -> bool:
    return jax.devices()[0].platform == "gpu"


def one_line(error: Exception) -> str:
    """What went wrong, fit for a table."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".replace("|", "/")


def machine() -> str:
    """What ran it, in a line."""
    device = jax.devices()[0]
    kind = f"{len(os.sched_getaffinity(0))} cores" if device.platform == "cpu" else device.device_kind
    return f"{platform.machine()}, {kind}, JAX {jax.__version__}, Python {platform.python_version()}"
