"""The ops as C functions that XLA calls in the middle of its own code on a CPU: see native.h for what they share."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from . import radix as radix_lib
from .moments_reference import Partials, chunk_counts
from .native_library import target_of
from .segments import Segments

_NO_BLOCKS = 2**62  # elements of a block that no tensor reaches


def partials_native(gradient: jax.Array, segments: Segments) -> Partials:
    """As `partials_reference`."""
    counts = chunk_counts(segments)
    before = np.concatenate([[0], np.cumsum(counts)])[_firsts(segments)]
    shape = (int(counts.sum()),)
    results = _call("moments", [(shape, jnp.float32)] * 3, [gradient], first_chunks=before, **_layout(segments))
    return results[0], results[1], results[2]


def ternary_encode_native(
    gradient: jax.Array,
    steps: jax.Array,
    key: jax.Array,
    segments: Segments,
    radix: int,
    levels: int,
    offset: int,
    start: int,
) -> jax.Array:
    """`ternary_encode` without a residual, its arguments checked; steps turn g into fixed point."""
    numbers = {"radix": radix, "levels": levels, "offset": offset, "start": start}
    shape = (segments.num_words(radix),)
    return _call("ternary_encode", [(shape, jnp.uint32)], [gradient, steps, key], **numbers, **_layout(segments))[0]


def encode_span_native(
    gradient: jax.Array,
    steps: jax.Array,
    key: jax.Array,
    segments: Segments,
    radix: int,
    levels: int,
    offset: int,
    start: int,
    after: Sequence[jax.Array],
) -> tuple[jax.Array, jax.Array]:
    """`encode_span`, its arguments checked; the gradient is handed on where it lies."""
    numbers = {"radix": radix, "levels": levels, "offset": offset, "start": start}
    shapes = [((segments.num_words(radix),), jnp.uint32), (gradient.shape, jnp.float32)]
    words, gradient = _call(
        "ternary_encode", shapes, [gradient, steps, key, *after], {0: 1}, **numbers, **_layout(segments)
    )
    return words, gradient


def ternary_decode_native(
    words: jax.Array,
    units: jax.Array,
    segments: Segments,
    zero: int,
    radix: int,
    into: jax.Array | None,
    start: int,
) -> jax.Array:
    """`ternary_decode` to float32, its arguments checked; in place where nobody else needs `into`."""
    numbers = {"radix": radix, "zero": zero, "start": start}
    operands = [words, units] if into is None else [words, units, into]
    shape = (segments.num_elements,) if into is None else into.shape
    aliases = None if into is None else {2: 0}
    return _call("ternary_decode", [(shape, jnp.float32)], operands, aliases, **numbers, **_layout(segments))[0]


def shard_sum_native(words: jax.Array, num_elements: int, levels: int, radix: int) -> jax.Array:
    """`shard_sum`, its arguments checked."""
    numbers = {"radix": radix, "levels": levels, "elements": num_elements}
    return _call("shard_sum", [((radix_lib.num_words(num_elements, radix),), jnp.uint32)], [words], **numbers)[0]


def shard_mean_native(words: jax.Array, key: jax.Array, position: jax.Array, radix: int) -> jax.Array:
    """`shard_mean`, its arguments checked."""
    return _call("shard_mean", [(words.shape[1:], jnp.uint32)], [words, key, position], radix=radix)[0]


def concatenate_native(parts: Sequence[jax.Array]) -> jax.Array:
    """`concatenate` of two parts or more, none of them empty."""
    layout = _layout(Segments(tuple(part.size for part in parts)))
    return _call("concatenate", [((sum(part.size for part in parts),), jnp.float32)], parts, **layout)[0]


def _call(
    op: str,
    results: Sequence[tuple[tuple[int, ...], Any]],
    operands: Sequence[jax.Array],
    aliases: dict[int, int] | None = None,
    **attributes: int | np.ndarray,
) -> Sequence[jax.Array]:
    """Results vary over all axes of `shard_map` that an operand varies over."""
    operands = _vary_alike(operands)
    varying = jax.typeof(operands[0]).manual_axis_type
    # A type that varies is refused without a sharding; inside `shard_map` no axis of an array is sharded any more.
    mesh = jax.sharding.get_abstract_mesh()
    whole = NamedSharding(mesh, PartitionSpec(None)) if varying.varying else None
    shapes = [jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=varying, sharding=whole) for shape, dtype in results]
    call = jax.ffi.ffi_call(target_of(op), shapes, vmap_method="sequential", input_output_aliases=aliases)
    return call(*operands, **{name: np.asarray(value, np.int64)[()] for name, value in attributes.items()})


def _vary_alike(operands: Sequence[jax.Array]) -> list[jax.Array]:
    own = [jax.typeof(each).manual_axis_type.varying for each in operands]
    union = frozenset().union(*own)
    return [
        lax.pcast(each, tuple(union - axes), to="varying") if union - axes else each
        for each, axes in zip(operands, own, strict=True)
    ]


def _firsts(segments: Segments) -> np.ndarray:
    """The first segment of every tensor, and the number of all."""
    return np.cumsum([0, *segments.scale_counts])


def _layout(segments: Segments) -> dict[str, int | np.ndarray]:
    """What native.h calls a layout."""
    block = segments.block_size or _NO_BLOCKS
    return {"starts": np.cumsum([0, *segments.sizes]), "firsts": _firsts(segments), "block": block}
