"""Random rotation of a tensor by random signs and Hadamard transforms of blocks.

A rotation keeps all norms and inner products, and spreads each element evenly over its block. Rotated elements are
almost Gaussian, however heavy the tails of the tensor are.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import noise
from .barriers import concatenate
from .dispatch import pick_implementation, require_shape
from .native.calls import rotate_native
from .segments import split

BLOCK = 4096  # elements; a power of four, so that scaling by its root is exact
_COLUMNS = 16  # columns of a block of 256 rows
_GROUP = 64  # elements whose signs come from one draw of noise
_join = partial(concatenate, implementation="reference")


def block_of(num_elements: int) -> int:
    """The size of a tensor's blocks: BLOCK, or for a smaller tensor the largest power of four that fits."""
    size = BLOCK
    while size > max(num_elements, 1):
        size //= 4
    return size


def rotate(
    tensors: Sequence[jax.Array], key: jax.Array, *, is_inverse: bool = False, implementation: str = "auto"
) -> list[jax.Array]:
    """Rotates each tensor, x -> H D x, or rotates it back.

    D holds signs drawn from the key, the same for every tensor. H applies a Hadamard matrix, divided by the root of its
    size, to each block. Elements beyond the last whole block are rotated afterwards, in a block that ends with the
    tensor. Every implementation gives the same bits, as all add and subtract in the same order. An element that is not
    finite spoils its block.

    Args:
      tensors: float32 of any shapes.
      key: uint32[2], from `derive_key`.
      is_inverse: whether to rotate back.
      implementation: "auto", "reference", "native" or "mosaic".

    Returns:
      float32 of the same shapes; "native" works in place if nothing else needs the tensors.

    Raises:
      ValueError: for a shape, dtype or implementation that does not fit.

    Reference:
      Suresh et al., Distributed Mean Estimation with Limited Communication, ICML 2017, section 3.
    """
    require_shape("key", key, (2,), jnp.uint32)
    for each in tensors:
        require_shape("tensor", each, each.shape, jnp.float32)
    blocks = [block_of(each.size) for each in tensors]
    picked = pick_implementation("rotate", implementation, sum(each.size for each in tensors))
    if picked == "native":
        return rotate_native(tensors, key, blocks, is_inverse)
    turn = _turn_by_mosaic if picked == "mosaic" else _turn
    vectors = [each.reshape(-1) for each in tensors]
    for do in (_turn_last, turn) if is_inverse else (turn, _turn_last):
        vectors = do(vectors, blocks, key, is_inverse)
    return [vector.reshape(each.shape) for vector, each in zip(vectors, tensors, strict=True)]


def _turn_last(vectors: list[jax.Array], blocks: list[int], key: jax.Array, is_inverse: bool) -> list[jax.Array]:
    """Rotates the last block of each vector that is not a whole number of blocks, with signs drawn after its own.

    These few elements are not worth another Mosaic kernel, as lowering it takes the host half a second.
    """
    vectors = list(vectors)
    places = [i for i, block in enumerate(blocks) if vectors[i].size % block]
    sizes = [blocks[i] for i in places]
    lasts = [vectors[i][vectors[i].size - size :] for i, size in zip(places, sizes, strict=True)]
    firsts = [-(-vectors[i].size // _GROUP) for i in places]
    for i, last in zip(places, _turn(lasts, sizes, key, is_inverse, firsts), strict=True):
        vectors[i] = jnp.concatenate([vectors[i][: -last.size], last])
    return vectors


def _turn_by_mosaic(vectors: list[jax.Array], blocks: list[int], key: jax.Array, is_inverse: bool) -> list[jax.Array]:
    """As `_turn`; the kernel turns all blocks of BLOCK elements in one launch."""
    wholes = [vector.size // BLOCK * BLOCK for vector in vectors]
    if not sum(wholes):
        return _turn(vectors, blocks, key, is_inverse)
    from .mosaic.rotation import rotate_blocks_mgpu

    firsts = np.concatenate([np.arange(0, whole, BLOCK) // _GROUP for whole in wholes]).astype(np.uint32)
    cut = [split(vector, (whole, vector.size - whole)) for vector, whole in zip(vectors, wholes, strict=True)]
    heads, rests = zip(*cut, strict=True)
    turned = rotate_blocks_mgpu(_join(heads).reshape(-1, BLOCK), key, firsts, is_inverse).reshape(-1)
    rests = _turn(rests, blocks, key, is_inverse, [whole // _GROUP for whole in wholes])
    return [_join(pair) for pair in zip(split(turned, tuple(wholes)), rests, strict=True)]


def _turn(
    vectors: Sequence[jax.Array], blocks: list[int], key: jax.Array, is_inverse: bool, firsts: list[int] | None = None
) -> list[jax.Array]:
    """Flips signs, drawn from groups `firsts` (or 0) on, and transforms all whole blocks; the inverse flips last."""
    alike: dict[tuple[int, int, int], list[int]] = {}  # places of vectors of one layout, such as those of all workers
    for place, (vector, block, first) in enumerate(zip(vectors, blocks, firsts or [0] * len(vectors), strict=True)):
        alike.setdefault((vector.size, block, first), []).append(place)
    stacks = [jnp.stack([vectors[place] for place in places]) for places in alike.values()]
    signs = _signs(key, [first for _, _, first in alike], [size for size, _, _ in alike])

    def flip(x: jax.Array, signs: jax.Array) -> jax.Array:
        return lax.bitcast_convert_type(lax.bitcast_convert_type(x, jnp.uint32) ^ signs[None], jnp.float32)

    stacks = stacks if is_inverse else [*map(flip, stacks, signs)]
    stacks = _transform_all(stacks, [block for _, block, _ in alike], is_inverse)
    if is_inverse:  # makes zeros positive, as an all-reduce may lose their sign
        stacks = [jnp.where(x == 0, 0.0, x) for x in map(flip, stacks, signs)]
    turned = {}
    for places, stack in zip(alike.values(), stacks, strict=True):
        turned |= zip(places, jnp.unstack(stack), strict=True)
    return [turned[place] for place in range(len(vectors))]


def _signs(key: jax.Array, firsts: list[int], sizes: list[int]) -> list[jax.Array]:
    """uint32 of each size, random sign bits from the groups `firsts` on; all are drawn at once."""
    counts = [-(-size // _GROUP) for size in sizes]
    groups = [jnp.arange(n, dtype=jnp.uint32) + np.uint32(first) for first, n in zip(firsts, counts, strict=True)]
    halves = jnp.stack(noise.draw(key, jnp.concatenate([*groups, jnp.arange(0, dtype=jnp.uint32)])), axis=1)[:, :, None]
    drawn = (halves >> jnp.arange(_GROUP // 2, dtype=jnp.uint32)[None, None]).reshape(-1) << 31
    parts = split(drawn, tuple(_GROUP * count for count in counts))
    return [part[:size] for part, size in zip(parts, sizes, strict=True)]


def _transform_all(stacks: list[jax.Array], blocks: list[int], is_inverse: bool) -> list[jax.Array]:
    """Transforms the whole blocks of all rows, all those of one size at once, so that a GPU launches few kernels."""
    stacks = list(stacks)
    for block in sorted(set(blocks)):
        places = [i for i, size in enumerate(blocks) if size == block]
        wholes = [stacks[i][:, : stacks[i].shape[1] // block * block] for i in places]
        if (joined := _join(wholes)).size:
            turned = _transform(joined.reshape(-1, block), is_inverse).reshape(-1)
            parts = split(turned, tuple(whole.size for whole in wholes))
            for i, whole, part in zip(places, wholes, parts, strict=True):
                rest = stacks[i][:, whole.shape[1] :]
                stacks[i] = jnp.concatenate([part.reshape(whole.shape), rest], axis=1)
    return stacks


def _transform(x: jax.Array, is_inverse: bool) -> jax.Array:
    """float32[blocks, size]: applies H to every block.

    A small block is multiplied by the Walsh-Hadamard matrix. A block of BLOCK is 256 rows of 16 columns: the rows are
    mixed, row r is shifted by r columns, and every 16 rows are mixed again. So each element reaches all others with
    equal weight, as with the whole matrix, and columns stay adjacent for vector instructions.
    """
    factor = jnp.float32(x.shape[1] ** -0.5)
    if x.shape[1] < BLOCK:
        return _mix(x[:, :, None]).reshape(x.shape) * factor
    rows = (x.shape[0], BLOCK // _COLUMNS, _COLUMNS)
    groups = (x.shape[0] * _COLUMNS, _COLUMNS, _COLUMNS)
    row, column = np.arange(_COLUMNS)[:, None], np.arange(_COLUMNS)
    if is_inverse:
        x = _mix(x.reshape(groups))[:, row, (column - row) % _COLUMNS]
        return _mix(x.reshape(rows)).reshape(-1, BLOCK) * factor
    x = _mix(x.reshape(rows)).reshape(groups)[:, row, (column + row) % _COLUMNS]
    return _mix(x).reshape(-1, BLOCK) * factor


def _mix(x: jax.Array) -> jax.Array:
    """The unscaled Walsh-Hadamard transform over axis 1 of three, four rows at a time."""
    shape, step = x.shape, 1
    while step < shape[1]:
        x = x.reshape(shape[0], -1, 4, step, shape[2])
        a, b, c, d = jnp.unstack(x, axis=2)
        a, b, c, d = a + b, a - b, c + d, c - d
        x = jnp.stack([a + c, b + d, a - c, b - d], axis=2)
        step *= 4
    return x.reshape(shape)
