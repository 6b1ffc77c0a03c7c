"""Speed of the codec on this machine, beside a copy of the same gradient and the same codec with JAX's own random bits.

    python -m benchmarks.codec [--elements 33554432] [--repeats 9] [--json codec.json]

Every operation runs in turn with the copy, so that a noisy machine disturbs both alike; a row shows the median time,
GB/s of float32 gradient (4 bytes an element, whatever else moves), and the median of the ratios to the copy before it.
What is timed is one call of a compiled program that returns a fresh array, as in training.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxtern.kernels import Segments, derive_key, moments, pack, ternary_decode, ternary_encode

Operation = tuple[Callable, tuple]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=2**25, help="of the gradient")
    parser.add_argument("--workers", type=int, default=4, help="whose words are decoded together")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", help="file for the figures")
    arguments = parser.parse_args()
    times = measure(create_operations(arguments.elements, arguments.workers), arguments.repeats)
    rows = summarize(times, arguments.elements)
    print(f"{arguments.elements:,} elements, {machine()}\n\n{as_table(rows)}")
    if arguments.json:
        record = {"machine": machine(), "elements": arguments.elements, "rows": rows}
        Path(arguments.json).write_text(json.dumps(record, indent=2) + "\n")


def create_operations(elements: int, workers: int) -> dict[str, Operation]:
    """Compiled programs and their arguments, by the name of their row."""
    segments = Segments((elements,))
    gradient = jax.random.normal(jax.random.key(0), (elements,))
    scales = jnp.array([2.5], jnp.float32)
    keys = [derive_key(0, 0, worker) for worker in range(workers)]
    radix = 2 * workers + 1

    def encode(gradient: jax.Array, key: jax.Array, radix: int = 3) -> jax.Array:
        return ternary_encode(gradient, scales, key, segments, radix=radix)

    def encode_with_jax_random(gradient: jax.Array) -> jax.Array:
        uniform = jax.random.uniform(jax.random.key(1), gradient.shape)
        trits = jnp.where(uniform < jnp.abs(gradient) / scales, jnp.sign(gradient), 0.0)
        return pack((trits + 1).astype(jnp.uint32), 3, fill=1)

    def decode(words: jax.Array, radix: int = 3, added: int = 1) -> jax.Array:
        return ternary_decode(words, scales, segments, radix=radix, num_workers=words.shape[0] * added)

    rows = jnp.stack([encode(gradient, key) for key in keys])
    total = jnp.sum(jnp.stack([encode(gradient, key, radix) for key in keys]), axis=0, keepdims=True)
    operations = {
        "copy": (jnp.copy, (gradient,)),
        "moments": (lambda g: moments(g, segments), (gradient,)),
        "encode, radix 3": (encode, (gradient, keys[0])),
        f"encode, radix {radix}": (lambda g, key: encode(g, key, radix), (gradient, keys[0])),
        "encode with jax.random.uniform": (encode_with_jax_random, (gradient,)),
        "decode one worker": (decode, (rows[:1],)),
        f"decode {workers} workers gathered": (decode, (rows,)),
        f"decode {workers} workers summed": (lambda words: decode(words, radix, workers), (total,)),
    }
    return {name: (jax.jit(function), arguments) for name, (function, arguments) in operations.items()}


def measure(operations: dict[str, Operation], repeats: int) -> dict[str, list[tuple[float, float]]]:
    """(seconds of the operation, seconds of the copy before it) of every operation and repeat, compiled before."""
    times: dict[str, list[tuple[float, float]]] = {}
    for name, operation in operations.items():
        run_seconds(operation)
        times[name] = []
        for _ in range(repeats):
            copy = run_seconds(operations["copy"])
            times[name].append((run_seconds(operation), copy))
    return times


def run_seconds(operation: Operation) -> float:
    """Of one call."""
    function, arguments = operation
    start = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    return time.perf_counter() - start


def summarize(times: dict[str, list[tuple[float, float]]], elements: int) -> list[dict]:
    """Median milliseconds, GB/s of float32, and median time relative to the copy."""
    rows = []
    for name, pairs in times.items():
        median = statistics.median(seconds for seconds, _ in pairs)
        rows.append(
            {
                "operation": name,
                "milliseconds": 1e3 * median,
                "gigabytes_per_second": 4e-9 * elements / median,
                "time_over_copy": statistics.median(seconds / copy for seconds, copy in pairs),
            }
        )
    return rows


def as_table(rows: list[dict]) -> str:
    lines = ["| operation | ms | GB/s of float32 | time / copy |", "| --- | ---: | ---: | ---: |"]
    lines += [
        f"| {row['operation']} | {row['milliseconds']:.1f} | {row['gigabytes_per_second']:.1f} |"
        f" {row['time_over_copy']:.2f} |"
        for row in rows
    ]
    return "\n".join(lines)


def machine() -> str:
    """What ran it, in a line."""
    device = jax.devices()[0]
    kind = f"{len(os.sched_getaffinity(0))} cores" if device.platform == "cpu" else device.device_kind
    return f"{platform.machine()}, {kind}, JAX {jax.__version__}, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
