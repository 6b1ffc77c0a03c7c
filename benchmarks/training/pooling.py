"""Milliseconds of max pooling and its gradient, by jaxtern's networks and by flax.

    python -m benchmarks.training.pooling [--repeats 15]

Layers of the networks: pooled activations, and the gradient that comes back, in turns; a ratio is the median over the
turns. What is pooled is computed, as in a network, by an operation before it that XLA may fuse.
"""

import functools
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from benchmarks.commands import create_parser
from benchmarks.timing import machine
from jaxtern.models.pooling import max_pool

LAYERS = {  # activations, side of the window, stride, padding
    "LeNet 1": ((64, 24, 24, 20), 2, 2, "VALID"),
    "LeNet 2": ((64, 8, 8, 50), 2, 2, "VALID"),
    "CifarNet 1": ((64, 24, 24, 64), 3, 2, "SAME"),
    "AlexNet 1": ((8, 55, 55, 96), 3, 2, "VALID"),
    "VGG 2": ((8, 112, 112, 128), 2, 2, "VALID"),
    "GoogLeNet 3a": ((8, 28, 28, 192), 3, 1, "SAME"),
}


def pull_back(pool: Callable, x: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The pooled activations, and the gradient of their sum with these weights."""
    pooled, pull = jax.vjp(lambda x: pool(nnx.relu(x)), x)
    return pooled, pull(weights)[0]


def measure(shape: tuple[int, ...], side: int, stride: int, padding: str, repeats: int) -> tuple[float, float, float]:
    """Milliseconds by jaxtern and by flax, and their ratio."""
    x = jax.random.normal(jax.random.key(0), shape)
    programs = []
    for pool in (max_pool, nnx.max_pool):
        pool = functools.partial(pool, window_shape=(side, side), strides=(stride, stride), padding=padding)
        weights = jnp.ones(jax.eval_shape(pool, x).shape)
        program = jax.jit(functools.partial(pull_back, pool))
        jax.block_until_ready(program(x, weights))
        programs.append((program, weights))
    times = [[_seconds(program, x, weights) for program, weights in programs] for _ in range(repeats)]
    own, theirs = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
    return own, theirs, statistics.median(b / a for a, b in times)


def _seconds(program: Callable, *arguments: jax.Array) -> float:
    start = time.perf_counter()
    jax.block_until_ready(program(*arguments))
    return time.perf_counter() - start


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    print(f"{machine()}\n")
    print("| layer | activations | window | jaxtern, ms | flax, ms | flax / jaxtern |")
    print("| --- | --- | --- | ---: | ---: | ---: |")
    for name, (shape, side, stride, padding) in LAYERS.items():
        own, theirs, ratio = measure(shape, side, stride, padding, arguments.repeats)
        size = "x".join(map(str, shape))
        print(f"| {name} | {size} | {side}x{side} by {stride} | {own:.2f} | {theirs:.2f} | {ratio:.1f} |", flush=True)


if __name__ == "__main__":
    main()
