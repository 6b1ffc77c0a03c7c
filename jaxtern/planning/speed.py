"""Measures how fast this machine compresses, for the planning model."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxtern.compression.collectives import Axes
from jaxtern.compression.radix.quantizer import Quantizer, Received
from jaxtern.compression.reducer import Group, Layout, Reducer, State, Tensors
from jaxtern.kernels import derive_key, rotate
from jaxtern.kernels.dither import Dither, dithered
from jaxtern.kernels.radix import RUN
from jaxtern.planning.model import QuantizerSpeed

_AXIS = "workers"
_ELEMENTS = 2**22  # larger than most caches, as gradients are
_ROWS = 4  # of words, compared with one row


def measure_quantizer_speed(quantizer: Quantizer, seconds: float = 2.0, elements: int = _ELEMENTS) -> QuantizerSpeed:
    """Measures the seconds of every stage for an element, on this machine's first device.

    Each stage is a program whose result replaces one of its arguments, as inside a training step. Its time is the
    median of its calls. All calls together take about `seconds`, without compilation.
    """
    sizes, key = (elements,), derive_key(0, 0, 0)
    gradient = jax.random.normal(jax.random.key(0), sizes)

    def scale(_: Any, gradient: jax.Array, key: jax.Array) -> jax.Array:
        return quantizer.measure(turn(gradient, key, False), sizes).scales

    def turn(x: jax.Array, key: jax.Array, is_inverse: bool) -> jax.Array:
        options = {"is_inverse": is_inverse, "implementation": quantizer.implementation}
        return rotate([x], key, **options)[0] if quantizer.rotation else x

    scales = scale(None, gradient, key)
    words = jnp.stack([quantizer.encode(gradient, scales, derive_key(0, 0, w), sizes, 1) for w in range(_ROWS)])
    width = quantizer.shard_words(words.shape[1], 1, _ROWS)
    shard = jnp.pad(words, ((0, 0), (0, width - words.shape[1])))

    def decode(_: Any, words: jax.Array, scales: jax.Array, key: jax.Array) -> jax.Array:
        dither = Dither(dithered(key, 0, len(words)), len(words)) if quantizer.rounding == "dither" else None
        return turn(quantizer.decode(Received(words, 1, len(words)), scales, sizes, dither), key, True)

    def round_again(_: Any, words: jax.Array, key: jax.Array) -> jax.Array:
        dithers = [Dither(dithered(key, 0, count), count) for count in (len(words), 1)]
        first = dithers[0] if quantizer.rounding == "dither" else None
        return quantizer.round_again(words, jnp.ones((words.shape[1] // RUN,), bool), first, dithers[1])[0]

    stages: dict[str, tuple[Callable, Any, tuple]] = {  # function, the argument that its result replaces, the others
        "scales": (scale, scales, (gradient, key)),
        "encode": (lambda _, g, s, k: quantizer.encode(g, s, k, sizes, 1), words[0], (gradient, scales, key)),
        "decode": (decode, gradient, (words[:1], scales, key)),
        "decode_row": (decode, gradient, (words, scales, key)),
        "sum_row": (lambda _, w: quantizer.add_shards(w), quantizer.add_shards(shard), (shard,)),
        "mean_row": (round_again, shard[0], (shard, key)),
        "add": (lambda total, g: total + g, gradient, (gradient,)),
    }
    if jax.default_backend() != "cpu":  # on CPUs, tensors are compressed in place
        stages["flatten"] = (lambda _, a, b: jnp.concatenate([a, b]), gradient, tuple(jnp.split(gradient, 2)))
    took = {name: _median_seconds(*stage, seconds / len(stages)) / elements for name, stage in stages.items()}
    row = max(0.0, (took["decode_row"] - took["decode"]) / (_ROWS - 1))
    took |= {"decode": max(0.0, took["decode"] - row), "decode_row": row}
    return QuantizerSpeed(**took | {name: took[name] / _ROWS for name in ("sum_row", "mean_row")})


def measure_reduce_seconds(reducer: Reducer, layout: Layout, seconds: float = 2.0) -> float:
    """Measures one `reduce` of one worker, of random tensors, on this machine's first device.

    It returns the median of calls that together take about `seconds`, without compilation.
    """

    def reduce(last: tuple[Tensors, State], tensors: Tensors, step: jax.Array) -> tuple[Tensors, State]:
        shared, local = last[1]
        reduced = reducer.reduce([tensors], State(shared, [local]), Group(layout, Axes((_AXIS,)), 1, 0, step))
        mean = [each.astype(tensor.dtype) for each, tensor in zip(reduced.mean, tensors, strict=True)]
        return mean, State(reduced.state.shared, reduced.state.local[0])

    everywhere = PartitionSpec()
    mesh = Mesh(np.array(jax.devices()[:1]), (_AXIS,))
    run = jax.shard_map(reduce, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False)
    keys = jax.random.split(jax.random.key(0), len(layout.shapes))
    tensors = [jax.random.normal(*each) for each in zip(keys, layout.shapes, layout.dtypes, strict=True)]
    return _median_seconds(run, (tensors, reducer.init(layout, 1)), (tensors, jnp.int32(0)), seconds)


def _median_seconds(function: Callable, first: Any, others: tuple, seconds: float) -> float:
    """The median seconds of a call; the result of each call becomes the first argument of the next."""
    program = jax.jit(function, donate_argnums=0, keep_unused=True)
    last = jax.block_until_ready(program(jax.tree.map(jnp.copy, first), *others))
    times: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < deadline:
        begin = time.perf_counter()
        last = jax.block_until_ready(program(last, *others))
        times.append(time.perf_counter() - begin)
    return statistics.median(times)
