"""Random rotation of a tensor by random signs and Hadamard transforms of blocks.

A rotation keeps all norms and inner products, and spreads each element evenly over its block. Rotated elements are
almost Gaussian, however heavy the tails of the tensor are.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import noise
from .dispatch import pick_implementation, require_shape
from .native.calls import rotate_native
from .segments import split

BLOCK = 4096  # elements; a power of four, so that scaling by its root is exact
_LANES = 16  # columns of a block of 256 rows
_GROUP = 64  # elements whose signs come from one draw of noise


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
      implementation: "auto", "reference" or "native"; on GPUs XLA's code is used.

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
    if pick_implementation("rotate", implementation, sum(each.size for each in tensors)) == "native":
        return rotate_native(tensors, key, blocks, is_inverse)
    vectors = [each.reshape(-1) for each in tensors]
    for turn in (_turn_last, _turn_whole) if is_inverse else (_turn_whole, _turn_last):
        vectors = turn(vectors, blocks, key, is_inverse)
    return [vector.reshape(each.shape) for vector, each in zip(vectors, tensors, strict=True)]


def _turn_whole(vectors: list[jax.Array], blocks: list[int], key: jax.Array, is_inverse: bool) -> list[jax.Array]:
    """Turns the signs of all elements, and applies the transform to all whole blocks."""
    most = max((vector.size for vector in vectors), default=0)
    signs = _signs(key, jnp.arange(-(-most // _GROUP), dtype=jnp.uint32))
    return _turn(vectors, blocks, [signs[: vector.size] for vector in vectors], is_inverse)


def _turn_last(vectors: list[jax.Array], blocks: list[int], key: jax.Array, is_inverse: bool) -> list[jax.Array]:
    """Turns the last block of each vector that is no number of whole blocks, with signs that follow its own."""
    vectors = list(vectors)
    places = [i for i, block in enumerate(blocks) if vectors[i].size % block]
    if not places:
        return vectors
    sizes = [blocks[i] for i in places]
    lasts = [vectors[i][vectors[i].size - size :] for i, size in zip(places, sizes, strict=True)]
    firsts = [-(-vectors[i].size // _GROUP) for i in places]  # groups, behind those of the whole vector
    groups = [first + np.arange(-(-size // _GROUP)) for first, size in zip(firsts, sizes, strict=True)]
    drawn = split(
        _signs(key, jnp.asarray(np.concatenate(groups), jnp.uint32)), tuple(_GROUP * own.size for own in groups)
    )
    signs = [own[:size] for own, size in zip(drawn, sizes, strict=True)]
    for i, last in zip(places, _turn(lasts, sizes, signs, is_inverse), strict=True):
        vectors[i] = jnp.concatenate([vectors[i][: -last.size], last])
    return vectors


def _signs(key: jax.Array, groups: jax.Array) -> jax.Array:
    """uint32[64 G], the random sign bits of groups of elements."""
    halves = jnp.stack(noise.draw(key, groups), axis=1)[:, :, None]
    return (halves >> jnp.arange(_GROUP // 2, dtype=jnp.uint32)[None, None]).reshape(-1) << 31


def _turn(vectors: list[jax.Array], blocks: list[int], signs: list[jax.Array], is_inverse: bool) -> list[jax.Array]:
    """Turns signs, and applies the transform to all whole blocks."""

    def flip(x: jax.Array, signs: jax.Array) -> jax.Array:
        return lax.bitcast_convert_type(lax.bitcast_convert_type(x, jnp.uint32) ^ signs, jnp.float32)

    if not is_inverse:
        return _transform_all([*map(flip, vectors, signs)], blocks, is_inverse)
    vectors = [*map(flip, _transform_all(vectors, blocks, is_inverse), signs)]
    return [jnp.where(x == 0, 0.0, x) for x in vectors]  # makes zeros positive, as an all-reduce may lose their sign


def _transform_all(vectors: list[jax.Array], blocks: list[int], is_inverse: bool) -> list[jax.Array]:
    """Transforms the whole blocks of all vectors, all blocks of a size at once: a GPU launches few kernels for many."""
    vectors = list(vectors)
    for block in sorted(set(blocks)):
        places = [i for i, size in enumerate(blocks) if size == block]
        wholes = [vectors[i].size // block * block for i in places]
        joined = jnp.concatenate([vectors[i][:whole] for i, whole in zip(places, wholes, strict=True)])
        turned = split(_transform(joined.reshape(joined.size // block, block), is_inverse).reshape(-1), tuple(wholes))
        for i, whole, part in zip(places, wholes, turned, strict=True):
            vectors[i] = jnp.concatenate([part, vectors[i][whole:]])
    return vectors


def _transform(x: jax.Array, is_inverse: bool) -> jax.Array:
    """float32[blocks, size]: applies H to every block.

    A small block is multiplied by the Walsh-Hadamard matrix. A block of BLOCK is 256 rows of 16 columns: the rows are
    mixed, row r is shifted by r columns, and every 16 rows are mixed again. So each element reaches all others with
    equal weight, as with the whole matrix, and columns stay adjacent for vector instructions.
    """
    factor = jnp.float32(x.shape[1] ** -0.5)
    if x.shape[1] < BLOCK:
        return _mix(x[:, :, None]).reshape(x.shape) * factor
    rows = (x.shape[0], BLOCK // _LANES, _LANES)
    groups = (x.shape[0] * _LANES, _LANES, _LANES)
    row, column = np.arange(_LANES)[:, None], np.arange(_LANES)
    if is_inverse:
        x = _mix(x.reshape(groups))[:, row, (column - row) % _LANES]
        return _mix(x.reshape(rows)).reshape(-1, BLOCK) * factor
    x = _mix(x.reshape(rows)).reshape(groups)[:, row, (column + row) % _LANES]
    return _mix(x).reshape(-1, BLOCK) * factor


def _mix(x: jax.Array) -> jax.Array:
    """The unscaled Walsh-Hadamard transform over axis 1 of three, four rows at a time."""
    shape, step = x.shape, 1
    while step < shape[1]:
        x = x.reshape(shape[0], -1, 4, step, shape[2])
        a, b, c, d = (x[:, :, row] for row in range(4))
        a, b, c, d = a + b, a - b, c + d, c - d
        x = jnp.stack([a + c, b + d, a - c, b - d], axis=2)
        step *= 4
    return x.reshape(shape)
