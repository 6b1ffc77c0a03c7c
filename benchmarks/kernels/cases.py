"""What is measured: every op, what it runs on, the bytes that it must move, and the same in plain jnp."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxtern.kernels import (
    Segments,
    decode_span,
    derive_key,
    digits_per_word,
    moments,
    num_words,
    rotate,
    shard_sum,
    ternary_decode,
    ternary_encode,
)
from jaxtern.kernels.dither import Dither, dithered
from jaxtern.kernels.radix import RUN, pack_planes


class Case(NamedTuple):
    """An operation and what it runs on: `run(*arguments, implementation=...)`, of which the first is the large one."""

    op: str
    name: str
    dtype: str  # of the gradient, the mean or the words
    moved: int  # bytes, see `bytes_to_move`
    run: Callable
    arguments: tuple[jax.Array, ...]
    plain: Callable | None = None  # the same without jaxtern
    in_place: bool = False  # the result takes the first argument's memory


def bytes_to_move(op: str, elements: int, dtype: str, rows: int = 1, radix: int = 3) -> int:
    """Each input read once, each output written once; scales, keys and moments are few bytes and do not count.

    With n elements of b bytes and W(R) words, 20 elements each for R = 3, moments read the gradient, b n; encode reads
    it and writes 4 W(R); rotate reads and writes it; decode reads the rows, 4 W(R) each, and writes the mean, 4 n;
    shard_sum reads the rows, 4 W(3) each, and writes 4 W(R).
    """
    vector, words = elements * jnp.dtype(dtype).itemsize, 4 * num_words(elements, radix)
    return {
        "copy": 2 * vector,
        "rotate": 2 * vector,
        "moments": vector,
        "ternary_encode": vector + words,
        "ternary_decode": rows * words + 4 * elements,
        "shard_sum": rows * 4 * num_words(elements, 3) + words,
    }[op]


def create_cases(elements: int, dtypes: list[str], workers: int, block_size: int | None = None) -> Iterator[Case]:
    """All operations, dtype after dtype; plain jnp, which knows no blocks, only without."""
    radix, segments = 2 * workers + 1, Segments((elements,), block_size)
    rows, total = random_words(workers, elements, 3), random_words(1, elements, radix)
    for dtype in dtypes:
        for case in gradient_cases(segments, dtype, radix):
            yield case._replace(plain=case.plain if block_size is None else None)
    moved, vector = bytes_to_move("rotate", elements, "float32"), jnp.zeros(elements)
    for name, is_inverse in (("rotate", False), ("rotate back", True)):
        run, arguments = partial(turn, is_inverse=is_inverse), (vector, derive_key(0, 0, 0))
        in_place = jax.default_backend() == "cpu"  # Mosaic writes to other memory, and XLA would copy it back
        yield Case("rotate", name + ", in place" * in_place, "float32", moved, run, arguments, in_place=in_place)
    yield from decode_cases(rows, total, segments, radix)
    moved = bytes_to_move("shard_sum", elements, dtypes[0], workers, radix)
    run = partial(shard_sum, num_elements=elements)
    yield Case("shard_sum", f"sum {workers} workers' shards", "uint32", moved, run, (rows,))


def gradient_cases(segments: Segments, dtype: str, radix: int) -> Iterator[Case]:
    """What reads a gradient."""
    elements, scales, key = segments.num_elements, create_scales(segments), derive_key(0, 0, 0)
    gradient = jax.random.normal(jax.random.key(0), (elements,)).astype(dtype)
    moved = bytes_to_move("moments", elements, dtype)
    yield Case("moments", "moments", dtype, moved, partial(moments, segments=segments), (gradient,), plain_moments)
    for name, own in (("encode, radix 3", {}), (f"encode, radix {radix}", {"radix": radix})):
        moved = bytes_to_move("ternary_encode", elements, dtype, **own)
        run, plain = partial(ternary_encode, segments=segments, **own), partial(plain_encode, **own)
        yield Case("ternary_encode", name, dtype, moved, run, (gradient, scales, key), plain)


def decode_cases(rows: jax.Array, total: jax.Array, segments: Segments, radix: int) -> Iterator[Case]:
    """What writes a mean."""
    workers, elements = rows.shape[0], segments.num_elements
    for name, words, num_workers, own_radix in (
        ("decode one worker", rows[:1], 1, 3),
        (f"decode {workers} workers gathered", rows, workers, 3),
        (f"decode {workers} workers summed", total, workers, radix),
    ):
        moved = bytes_to_move("ternary_decode", elements, "float32", len(words), own_radix)
        options = {"segments": segments, "num_workers": num_workers, "radix": own_radix}
        arguments = words, create_scales(segments)
        run = partial(ternary_decode, **options)
        yield Case("ternary_decode", name, "float32", moved, run, arguments)
        own = dict(options, dither=Dither(dithered(derive_key(0, 0, 0), 0, num_workers), num_workers))
        yield Case(
            "ternary_decode", f"{name}, less a dither", "float32", moved, partial(ternary_decode, **own), arguments
        )
        if jax.devices()[0].platform == "cpu":  # GPUs have no kernel that decodes in place
            run = partial(decode_in_place, size=elements, **options)
            arguments = jnp.zeros(elements), *arguments
            yield Case("ternary_decode", f"{name}, in place", "float32", moved, run, arguments, in_place=True)


def create_scales(segments: Segments) -> jax.Array:
    return jnp.full(segments.num_scales, 2.5, jnp.float32)


def decode_in_place(vector: jax.Array, words: jax.Array, scales: jax.Array, **options: Any) -> jax.Array:
    """Decodes into a vector that is there, as the pieces of a mean on CPUs do."""
    return decode_span(words, scales, into=[vector], start=0, **options)[0]


def turn(vector: jax.Array, key: jax.Array, is_inverse: bool, implementation: str) -> jax.Array:
    return rotate([vector], key, is_inverse=is_inverse, implementation=implementation)[0]


def plain_moments(gradient: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    x = gradient.astype(jnp.float32)
    return jnp.max(jnp.abs(x)), jnp.mean(x), jnp.var(x)


def plain_encode(gradient: jax.Array, scales: jax.Array, key: jax.Array, radix: int = 3) -> jax.Array:
    x = gradient.astype(jnp.float32)
    uniform = jax.random.uniform(jax.random.wrap_key_data(key, impl="threefry2x32"), x.shape)
    trits = jnp.where(uniform < jnp.abs(x) / scales, jnp.sign(x), 0.0)
    return pack((trits + 1).astype(jnp.uint32), radix, fill=1)


def pack(digits: jax.Array, radix: int, fill: int) -> jax.Array:
    """uint32[n] digits to words; `fill` is the digit behind the last one."""
    depth, width = digits_per_word(radix), num_words(digits.size, radix)
    tiles = jnp.pad(digits, (0, width * depth - digits.size), constant_values=fill).reshape(-1, depth, RUN)
    return pack_planes([tiles[:, k] for k in range(depth)], radix).reshape(-1)


def random_words(rows: int, elements: int, radix: int) -> jax.Array:
    """uint32[rows, W] of random digits, as if of so many workers; behind the last, what stands for no level."""

    @jax.jit
    def row(key: jax.Array) -> jax.Array:
        digits = jax.random.bits(key, (elements,)) % jnp.uint32(radix)
        return pack(digits, radix, fill=radix // 2)

    return jnp.stack([row(key) for key in jax.random.split(jax.random.key(1), rows)])
