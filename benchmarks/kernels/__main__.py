"""Speed of every kernel on this device, beside a copy, the reference, and plain jnp with JAX's own random bits.

    python -m benchmarks.kernels [--elements 2**20 2**28] [--dtypes float32] [--block_size 64] [--check] [--json F]
    python -m benchmarks.kernels --tune [OP ...] [--elements 2**28]

Every operation runs in turn with `jnp.copy` of as many float32 elements, so that a noisy machine disturbs both alike. A
row shows the median time of a call; GB/s of the bytes that must move, each input read once and each output written once
(`bytes_to_move` in cases.py); the median of its GB/s over those of the copy beside it, which reads and writes 4
bytes an element; and its speed over that of plain jnp: encode with `jax.random.uniform`, or moments as jnp has them.
Every implementation that can run here has a row: native on a CPU, Mosaic on a GPU, and the reference. With a block
size there is a scale for every so many elements; the scales' bytes do not count, and plain jnp has no rows.

What is timed is a compiled program that returns fresh arrays, as in training: one call on a CPU; on a GPU a batch of
calls of 10 ms or more, waited for once, whose arguments and results rotate through 256 MiB of memory, so that its cache
flatters no size. Dispatch is in the clock: below some 2^24 elements a GPU waits for the host, and the copy does too.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any
from unittest import mock

import jax

from benchmarks.commands import at_least, create_parser, output_file, parse_elements, save, say
from benchmarks.kernels.cases import Case, create_cases
from benchmarks.kernels.check import DTYPES, check
from benchmarks.timing import Program, machine, on_gpu, one_line, prepare, prepare_copy, summarize
from jaxtern.kernels.dispatch import why_not_mosaic
from jaxtern.kernels.tuning import DEFAULTS, OPS

ELEMENTS = {"cpu": (2**20, 2**25), "gpu": (2**20, 2**24, 2**28, 2**30)}
MAX_WORKERS = 2**15 - 1
BYTES_AN_ELEMENT = 48  # of memory: gradient, words, results, and what the slowest program writes in between
WARPGROUPS = (1, 2, 4)  # in a block
PLAIN = {"moments": "jnp", "ternary_encode": "jax.random"}  # names of what a case's `plain` is


def main() -> None:
    arguments = parse()
    why_not = why_not_mosaic()
    if arguments.tune is not None and why_not:
        sys.exit(f"--tune: {why_not}")
    record = {"machine": machine(), "device_kind": jax.devices()[0].device_kind, "jax": jax.__version__, "rows": []}
    record |= {"workers": arguments.workers, "repeats": arguments.repeats, "block_size": arguments.block_size}
    say(record["machine"])
    is_sound = True
    if arguments.check and why_not:
        say(f"check: nothing to compare: {why_not}")
    elif arguments.check:
        is_sound = check()
    if arguments.tune is not None:
        ops = arguments.tune or OPS
        record["rows"] = tune(ops, max(arguments.elements), arguments.dtypes[0], arguments.workers, arguments.repeats)
        save(record, arguments.json)
    else:
        for elements in arguments.elements:
            cases = create_cases(elements, arguments.dtypes, arguments.workers, arguments.block_size)
            for row in measure_size(elements, cases, arguments.repeats):
                say(as_line(row))
                record["rows"].append({"elements": elements, **row})
                save(record, arguments.json)
                is_sound = is_sound and "error" not in row
    sys.exit(0 if is_sound else 1)


def parse() -> argparse.Namespace:
    parser = create_parser(__doc__)
    parser.add_argument("--elements", type=parse_elements, nargs="+", help="of the gradient; 2**20 is understood")
    parser.add_argument("--dtypes", choices=DTYPES, nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--workers", type=int, default=4, help="whose words are decoded together")
    parser.add_argument("--block_size", type=at_least(1), help="elements under one scale; default: all")
    parser.add_argument("--repeats", type=at_least(1), default=9)
    parser.add_argument(
        "--check", action="store_true", help="first compare with the references; status 1 if bits differ"
    )
    parser.add_argument(
        "--tune", nargs="*", choices=OPS, metavar="OP", help="no table, but the best warpgroups for the largest size"
    )
    parser.add_argument("--json", type=output_file, help="file for the figures")
    arguments = parser.parse_args()
    if not 1 <= arguments.workers <= MAX_WORKERS:
        parser.error(f"--workers={arguments.workers}: must be from 1 to {MAX_WORKERS}")
    sizes = arguments.elements or ELEMENTS["gpu" if on_gpu() else "cpu"]
    limit = ((jax.devices()[0].memory_stats() or {}) if on_gpu() else {}).get("bytes_limit", math.inf)
    fitting = [elements for elements in sizes if BYTES_AN_ELEMENT * elements <= limit]
    if not fitting or (arguments.elements and len(fitting) < len(sizes)):
        needed = BYTES_AN_ELEMENT * max(sizes)
        parser.error(f"--elements={max(sizes)}: needs {needed / 1e9:.1f} GB, and JAX has {limit / 1e9:.1f} GB here")
    arguments.elements = sorted(set(fitting))
    arguments.dtypes = list(dict.fromkeys(arguments.dtypes))
    return arguments


def measure_size(elements: int, cases: Iterable[Case], repeats: int) -> Iterator[dict]:
    """Rows of the table of one size; the copy first."""
    say(f"\n{elements:,} elements\n\n{HEADING}")
    copy = prepare_copy(elements)
    yield {"operation": "copy", "dtype": "float32", "implementation": "jnp", **summarize(copy, copy, repeats)}
    for case in cases:
        yield from measure_case(case, copy, repeats)


def measure_case(case: Case, copy: Program, repeats: int) -> list[dict]:
    """A row for each implementation that can run here, and for plain jnp."""
    functions: dict[str, Callable] = {
        implementation: partial(case.run, implementation=implementation)
        for implementation in ("native", "mosaic", "reference")
        if not is_refused(case, implementation)
    }
    if case.plain:
        functions[PLAIN[case.op]] = case.plain
    rows: list[dict] = [
        {"operation": case.name, "dtype": case.dtype, "implementation": implementation}
        | measure(function, case, copy, repeats)
        for implementation, function in functions.items()
    ]
    if case.plain and "error" not in rows[-1]:
        for row in rows[:-1]:
            if "error" not in row:
                row["speed_over_plain"] = rows[-1]["milliseconds"] / row["milliseconds"]
    return rows


def is_refused(case: Case, implementation: str) -> bool:
    """Whether the op says that it cannot run so; another error ends up in the row."""
    try:
        jax.eval_shape(partial(case.run, implementation=implementation), *case.arguments)
    except Exception as error:  # noqa: BLE001 as below
        return str(error).startswith(f"{case.op}: implementation=")
    return False


def measure(function: Callable, case: Case, copy: Program, repeats: int) -> dict:
    """Figures of one program; where it fails, why, as the rest of a long run is still worth having."""
    try:
        return summarize(prepare(function, case.arguments, case.moved, case.in_place), copy, repeats)
    except Exception as error:  # noqa: BLE001 a compiler and a driver fail in many ways, all of which end up in the row
        return {"error": one_line(error)}


HEADING = """| operation | dtype | implementation | ms | GB/s | GB/s over copy's | speed over plain jnp |
| --- | --- | --- | ---: | ---: | ---: | ---: |"""


def as_line(row: dict) -> str:
    names = f"| {row['operation']} | {row['dtype']} | {row['implementation']} "
    if "error" in row:
        return names + f"| {row['error']} | | | |"
    speed = f"{row['speed_over_plain']:.2f}" if "speed_over_plain" in row else ""
    figures = f"{row['milliseconds']:.4g} | {row['gigabytes_per_second']:.4g} | {row['fraction_of_copy']:.2f}"
    return f"{names}| {figures} | {speed} |"


def tune(ops: Sequence[str], elements: int, dtype: str, workers: int, repeats: int) -> list[dict]:
    """Figures of every number of warpgroups, which are printed with what to put into kernels/tuning.py."""
    copy = prepare_copy(elements)
    cases, rows, best = list(create_cases(elements, [dtype], workers)), [], {}
    say(f"\n{elements:,} elements, {dtype}; bandwidth over that of a copy, geometric mean of an op's rows\n")
    for op in ops:
        of_op = [case for case in cases if case.op == op]
        own = [measure_warpgroups(warpgroups, of_op, copy, repeats) for warpgroups in WARPGROUPS]
        rows += own
        sound = [row for row in own if "error" not in row]
        best[op] = max(sound, key=lambda row: row["fraction_of_copy"])["warpgroups"] if sound else DEFAULTS[op]
        say(f"{op}, warpgroups in a block, now {DEFAULTS[op]}")
        for row in own:
            say(f"    {row['warpgroups']}: " + (row["error"] if "error" in row else f"{row['fraction_of_copy']:.3f}"))
    say("\nDEFAULTS = {\n" + "".join(f'    "{op}": {warpgroups},\n' for op, warpgroups in best.items()) + "}")
    return rows


def measure_warpgroups(warpgroups: int, cases: list[Case], copy: Program, repeats: int) -> dict:
    """Figures of one op with so many warpgroups in a block."""
    op = cases[0].op
    row: dict[str, Any] = {"op": op, "warpgroups": warpgroups}
    with mock.patch.dict(DEFAULTS, {op: warpgroups}):
        found = [measure(partial(case.run, implementation="mosaic"), case, copy, repeats) for case in cases]
    errors = [each["error"] for each in found if "error" in each]
    if errors:
        return row | {"error": errors[0]}
    fractions = {case.name: each["fraction_of_copy"] for case, each in zip(cases, found, strict=True)}
    return row | {"fraction_of_copy": statistics.geometric_mean(fractions.values()), "fractions": fractions}


if __name__ == "__main__":
    main()
