"""Calls the ops' C functions from XLA's code for CPUs; native.h has what they share."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from .. import radix as radix_lib
from ..dither import Dither, with_group
from ..moments_reference import Partials, chunk_counts
from ..segments import Segments
from .library import target_of

_NO_BLOCKS = 2**62  # a block size larger than any tensor
_BLOCKS_PER_ITEM = 4  # as in rotate.c


def moments_native(
    tensors: Sequence[jax.Array], segments: Segments, is_split: bool, of_magnitudes: bool = False
) -> tuple[Partials, jax.Array]:
    """As `partials_reference` and `centres_of`, for a vector or for separate tensors."""
    counts, layout = chunk_counts(segments), _layout(segments, is_split=is_split)
    before = np.concatenate([[0], np.cumsum(counts)])[layout["firsts"]]
    shapes = [((int(counts.sum()),), jnp.float32)] * 3 + [((segments.num_scales,), jnp.float32)]
    numbers = {"first_chunks": before, "of_magnitudes": of_magnitudes}
    max_abs, first, second, centres = call("moments", shapes, tensors, **numbers, **layout)
    return (max_abs, first, second), centres


def ternary_encode_native(
    tensors: Sequence[jax.Array],
    steps: jax.Array,
    key: jax.Array,
    segments: Segments,
    radix: int,
    levels: int,
    offset: int | jax.Array,
    span: tuple[int, int] | None = None,
    after: Sequence[jax.Array] = (),
) -> list[jax.Array]:
    """Encodes a vector; or a span (start, size) of separate tensors, returned after the words without a copy."""
    start, size = span or (0, segments.num_elements)
    numbers = {"radix": radix, "levels": levels, "start": start, "elements": size}
    kept = tensors if span else ()
    shapes = [((radix_lib.num_words(size, radix),), jnp.uint32), *((each.shape, jnp.float32) for each in kept)]
    aliases = {2 + number: 1 + number for number in range(len(kept))}
    layout = _layout(segments, is_split=span is not None)
    operands = [steps, with_group(key, offset), *tensors, *after]
    return call("ternary_encode", shapes, operands, aliases, **numbers, **layout)


def ternary_decode_native(
    words: jax.Array,
    units: jax.Array,
    segments: Segments,
    zero: int,
    radix: int,
    dither: Dither | None,
    tile_scales: jax.Array | None = None,
    into: Sequence[jax.Array] = (),
    span: tuple[int, int] | None = None,
    total: jax.Array | None = None,
    after: Sequence[jax.Array] = (),
) -> list[jax.Array]:
    """Decodes a vector; or a span (start, size) into separate tensors, in place if nothing else needs these."""
    start, size = span or (0, segments.num_elements)
    own = dither or Dither(jnp.zeros((4,), jnp.uint32), 0)
    numbers = {"count": own.count, "centre": own.centre, "radix": radix, "zero": zero, "start": start, "elements": size}
    shapes = [(each.shape, jnp.float32) for each in into] if span else [((size,), jnp.float32)]
    aliases = {5 + number: number for number in range(len(into))}
    total = jnp.zeros((1, 0), jnp.uint32) if total is None else total
    factors = jnp.zeros((0,)) if tile_scales is None else tile_scales
    operands = [words, units, with_group(own.bits, own.offset), total, factors, *into, *after]
    layout = _layout(segments, is_split=span is not None)
    return call("ternary_decode", shapes, operands, aliases, **numbers, **layout)


def concatenate_native(parts: Sequence[jax.Array]) -> jax.Array:
    """`concatenate`, for at least two parts, none of them empty."""
    layout = _layout(Segments(tuple(part.size for part in parts)))
    return call("concatenate", [((sum(part.size for part in parts),), jnp.float32)], parts, **layout)[0]


def rotate_native(
    tensors: Sequence[jax.Array], key: jax.Array, blocks: Sequence[int], is_inverse: bool
) -> list[jax.Array]:
    """`rotate`, for checked arguments and the block size of each tensor."""
    sizes = np.array([each.size for each in tensors])
    items = -(-(sizes // blocks) // _BLOCKS_PER_ITEM)
    numbers = {"sizes": sizes, "blocks": blocks, "first_items": np.cumsum(items) - items, "items": items.sum()}
    aliases = {1 + number: number for number in range(len(tensors))}
    shapes = [(each.shape, jnp.float32) for each in tensors]
    return call("rotate", shapes, [key, *tensors], aliases, is_inverse=is_inverse, **numbers)


def call(
    op: str,
    results: Sequence[tuple[tuple[int, ...], Any]],
    operands: Sequence[jax.Array],
    aliases: dict[int, int] | None = None,
    **attributes: int | np.ndarray,
) -> list[jax.Array]:
    """Calls an op; its results vary over all axes of `shard_map` that an operand varies over."""
    types = [jax.typeof(each).manual_axis_type for each in operands]
    union = frozenset().union(*(each.varying for each in types))
    missing = [tuple(union - each.varying) for each in types]
    operands = [lax.pcast(x, axes, to="varying") if axes else x for x, axes in zip(operands, missing, strict=True)]
    varying = jax.typeof(operands[0]).manual_axis_type
    # JAX refuses a varying type without a sharding; inside `shard_map` no axis of an array is sharded.
    mesh = jax.sharding.get_abstract_mesh()
    whole = NamedSharding(mesh, PartitionSpec()) if varying.varying else None
    shapes = [jax.ShapeDtypeStruct(*each, manual_axis_type=varying, sharding=whole) for each in results]
    run = jax.ffi.ffi_call(target_of(op), shapes, vmap_method="sequential", input_output_aliases=aliases)
    return list(run(*operands, **{name: np.asarray(value, np.int64)[()] for name, value in attributes.items()}))


def _layout(segments: Segments, *, is_split: bool = False) -> dict[str, int | np.ndarray]:
    """The attributes of native.h's Layout, and whether the tensors are separate arrays."""
    starts, firsts = (np.cumsum([0, *counts]) for counts in (segments.sizes, segments.scale_counts))
    return {"starts": starts, "firsts": firsts, "block": segments.block_size or _NO_BLOCKS, "is_split": is_split}
