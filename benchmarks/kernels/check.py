"""Whether the Mosaic kernels give the bits of their references on this device.

Nearly all of the time is the compilers', on the host, so comparisons run in several processes.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.kernels.cases import random_words
from benchmarks.timing import one_line
from jaxtern.kernels import (
    Segments,
    derive_key,
    moments,
    rotate,
    shard_sum,
    ternary_decode,
    ternary_encode,
)
from jaxtern.kernels.dither import Dither, dithered, nearest
from jaxtern.kernels.radix import RUN
from jaxtern.kernels.tuning import OPS

DTYPES = ("float32", "bfloat16", "float16")
SHAPES = (
    Segments((1,)),
    Segments((127,)),
    Segments((5120,)),
    Segments((2560, 2560, 2560)),
    Segments((20000, 1, 16385)),
    Segments((300, 200), 150),
    Segments((400, 0, 40001), 5000),
)
LEVELS = (1, 2, 7, 64, 127)
WORKERS = (1, 2, 3, 4, 8, 16)
NAMES = ("rotate", *OPS, "not finite")
MIXES = 15  # of the above, each next to the following one; not all with all, as every mix is compiled


def check() -> bool:
    """Whether Mosaic gives the bits of the reference, or a NaN where that has one; a line for every op."""
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # of the processes, which share the device
    processes = max(1, min(16, (os.cpu_count() or 1) - 1))
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        return compare_all(pool)


def compare_all(pool: Executor) -> bool:
    found = {name: [pool.submit(compare, name, number) for number in range(MIXES)] for name in NAMES}
    agreed = [report(name, [pair for each in futures for pair in each.result()]) for name, futures in found.items()]
    return all(agreed)


def report(name: str, found: list[tuple[str, str]]) -> bool:
    """Prints how many comparisons of an op agree, and which do not; whether all do."""
    failures = [f"{place}: {why}" for place, why in found if why]
    agreeing = len(found) - len(failures)
    print(f"check {name}: {'FAILED' if failures else 'ok'}, {agreeing} of {len(found)} agree", flush=True)
    for failure in failures:
        print(f"    {failure}", flush=True)
    return not failures


def compare(name: str, number: int) -> list[tuple[str, str]]:
    """Descriptions and differences of one mix's comparisons."""
    return [(place, find_difference(run, arrays)) for place, run, arrays in comparisons(name, number)]


def comparisons(op: str, number: int) -> Iterator[tuple[str, Callable, tuple[Any, ...]]]:
    """Of one mix: description, what to run, and its arguments."""
    segments, dtype = SHAPES[number % len(SHAPES)], DTYPES[number % len(DTYPES)]
    levels, workers = LEVELS[number % len(LEVELS)], WORKERS[number % len(WORKERS)]
    elements, radix, own_radix = segments.num_elements, 2 * levels * workers + 1, 2 * levels + 1
    gradient = (jax.random.normal(jax.random.key(number), (elements,)) + number % 4).astype(dtype)
    scales = jax.random.uniform(jax.random.key(number), (segments.num_scales,), minval=0.5, maxval=3)
    key, place = derive_key(3, 14, number), f"{segments}, {dtype}, levels={levels}, {workers} workers"
    codec: dict[str, Any] = {"segments": segments, "levels": levels}
    if op == "moments":
        yield place, partial(moments, segments=segments), (gradient,)
    elif op == "ternary_encode":
        run = partial(ternary_encode, radix=radix, offset=512 * number, **codec)
        yield place, run, (gradient, scales, (key, dithered(key, number, 2 * number + 1), nearest())[number // 3 % 3])
    elif op == "ternary_decode":
        dither = Dither(dithered(key, 0, workers), workers, 512 * number) if number % 4 else None
        for rows, each in ((workers, own_radix), (1, radix)):
            words = random_words(rows, elements, each)
            tile_scales = jnp.linspace(0.1, 2, words.shape[1] // RUN) if number % 3 == 0 else None
            run = partial(ternary_decode, num_workers=workers, radix=each, dither=dither, **codec)
            yield f"{place}, {rows} rows", partial(run, tile_scales=tile_scales), (words, scales)
    elif op == "shard_sum":
        words = random_words(workers, elements, own_radix)
        yield place, partial(shard_sum, num_elements=elements, levels=levels), (words,)
    elif op == "rotate":
        parts = jnp.split(gradient.astype(jnp.float32), [elements // 3])
        for is_inverse in (False, True):
            yield f"{place}, {is_inverse=}", partial(turn_all, is_inverse=is_inverse), (parts, key)
    else:
        bad, middle = (np.nan, np.inf, -np.inf)[number % 3], elements // 2
        owners = np.searchsorted(segments.bounds()[1:], np.arange(elements), side="right")
        arrays = gradient.at[middle].set(bad), key, jnp.asarray(owners == owners[middle])
        yield f"{place}, {bad}", partial(mean_of_one, codec=codec), arrays


def turn_all(tensors: list[jax.Array], key: jax.Array, is_inverse: bool, implementation: str) -> list[jax.Array]:
    return rotate(tensors, key, is_inverse=is_inverse, implementation=implementation)


def mean_of_one(
    gradient: jax.Array, key: jax.Array, is_bad: jax.Array, codec: dict[str, Any], implementation: str
) -> jax.Array:
    """All of the codec for one worker; the reference with NaN where it has to be."""
    codec = {**codec, "radix": 2 * codec["levels"] + 1, "implementation": implementation}
    scales = moments(gradient, codec["segments"], implementation=implementation).max_abs
    words = ternary_encode(gradient, scales, key, **codec)
    mean = ternary_decode(words[None], scales, num_workers=1, **codec)
    return jnp.where(is_bad, jnp.nan, mean) if implementation == "reference" else mean


def find_difference(run: Callable, arguments: tuple[jax.Array, ...]) -> str:
    """Between Mosaic and the reference, in words; nothing where there is none."""
    try:
        found, expected = (
            jax.tree.map(np.asarray, jax.tree.leaves(jax.jit(partial(run, implementation=implementation))(*arguments)))
            for implementation in ("mosaic", "reference")
        )
    except Exception as error:  # noqa: BLE001 as above; the next comparison may fare better
        return one_line(error)
    for got, want in zip(found, expected, strict=True):
        if (got.dtype, got.shape) != (want.dtype, want.shape):
            return f"{got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
        bits = f"uint{8 * got.itemsize}"
        places = np.flatnonzero((got.view(bits) != want.view(bits)) & ~(np.isnan(got) & np.isnan(want)))
        if places.size:
            return f"{places.size} of {got.size} differ, number {places[0]}: {got[places[0]]}, not {want[places[0]]}"
    return ""
