"""How fast this machine compresses: the `CodecSpeed` of the planning model, measured."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxtern.compression.codecs import Codec
from jaxtern.kernels import derive_key
from jaxtern.planning.model import CodecSpeed

ELEMENTS = 2**22  # beyond most caches, as gradients are
ROWS = 4  # of words, beside one
TENSORS = 2  # that are joined


def measure_codec_speed(codec: Codec, seconds: float = 2.0, elements: int = ELEMENTS) -> CodecSpeed:
    """Seconds an element of every stage on this machine's first device.

    Each stage is a program of its own whose result takes the place of an argument, as it does inside a training step;
    the median of its calls counts.

    Args:
      codec: to measure.
      seconds: for all calls, compilation left out.
      elements: of the gradient.
    """
    sizes, key = (elements,), derive_key(0, 0, 0)
    gradient = jax.random.normal(jax.random.key(0), sizes)
    scales = codec.local_scales(gradient, sizes)
    words = jnp.stack([codec.encode(gradient, scales, derive_key(0, 0, w), sizes, 1) for w in range(ROWS)])
    width = codec.shard_words(words.shape[1], 1, ROWS)
    shard = jnp.pad(words, ((0, 0), (0, width - words.shape[1])))

    def decode(rows: int) -> tuple[Callable, tuple]:
        def run(_: Any, words: jax.Array, scales: jax.Array) -> jax.Array:
            return codec.decode(words, scales, sizes, 1, rows)

        return run, (gradient, words[:rows], scales)

    place = jnp.uint32(0)
    stages: dict[str, tuple[Callable, tuple]] = {
        "scales": (lambda _, g: codec.local_scales(g, sizes), (scales, gradient)),
        "encode": (lambda _, g, s, k: codec.encode(g, s, k, sizes, 1), (words[0], gradient, scales, key)),
        "decode": decode(1),
        "decode rows": decode(ROWS),
        "sum": (lambda _, w: codec.add_shards(w), (codec.add_shards(shard), shard)),
        "mean": (lambda _, w, k, p: codec.average_shards(w, k, p), (shard[0], shard, key, place)),
        "add": (lambda total, g: total + g, (gradient, gradient)),
    }
    if jax.default_backend() != "cpu":  # where tensors are compressed as they lie
        halves = (gradient[: elements // TENSORS], gradient[elements // TENSORS :])
        stages["flatten"] = (lambda _, a, b: jnp.concatenate([a, b]), (gradient, *halves))
    took = {name: _median_seconds(*stage, seconds / len(stages)) / elements for name, stage in stages.items()}
    row = max(0.0, (took["decode rows"] - took["decode"]) / (ROWS - 1))
    return CodecSpeed(
        flatten=took.get("flatten", 0.0),
        scales=took["scales"],
        encode=took["encode"],
        decode=max(0.0, took["decode"] - row),
        decode_row=row,
        sum_row=took["sum"] / ROWS,
        mean_row=took["mean"] / ROWS,
        add=took["add"],
    )


def _median_seconds(function: Callable, arguments: tuple, seconds: float) -> float:
    """Of a call, whose result is the first argument of the next."""
    program = jax.jit(function, donate_argnums=0, keep_unused=True)
    spare, others = jnp.copy(arguments[0]), arguments[1:]
    spare = jax.block_until_ready(program(spare, *others))
    times: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < deadline:
        begin = time.perf_counter()
        spare = jax.block_until_ready(program(spare, *others))
        times.append(time.perf_counter() - begin)
    return statistics.median(times)
