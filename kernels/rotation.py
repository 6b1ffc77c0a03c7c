"""Random rotation of a tensor: signs and Hadamard transforms of blocks, after which elements are almost Gaussian.

A rotation keeps every norm and every inner product, and spreads each element evenly over its block. What is rounded
afterwards has no tails, however heavy those of the tensor are.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import noise
from .dispatch import pick_implementation, require_shape
from .native.calls import rotate_native

BLOCK = 4096  # elements, a power of four: its root is a power of two, by which a product is exact
_LANES = 16  # columns of a block of 256 rows
_GROUP = 64  # elements whose signs are one draw of noise


def block_of(num_elements: int) -> int:
    """Elements of the blocks of a tensor: BLOCK, or in a smaller one the largest power of four that fits."""
    size = BLOCK
    while size > max(num_elements, 1):
        size //= 4
    return size


def rotate(
    tensors: Sequence[jax.Array], key: jax.Array, *, is_inverse: bool = False, implementation: str = "auto"
) -> list[jax.Array]:
    """Turns each tensor by a random rotation: x becomes H D x, and back.

    D has signs drawn from the key, the same for every tensor, H Hadamard matrices of blocks, divided by the root of
    their size. What is left over behind the last block forms one more with the elements before it, which is turned
    behind the others. Elements are only added and subtracted, in a fixed order, so every implementation gives the same
    bits. An element that is not finite makes its block so.

    Args:
      tensors: float32 of any shapes.
      key: uint32[2], from `derive_key`.
      is_inverse: whether to turn back.
      implementation: "auto", "reference" or "native"; on GPUs XLA's code is used.

    Returns:
      float32 of the same shapes; "native" turns them in place where nobody else needs them.

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
    pairs = zip(tensors, blocks, strict=True)
    return [_rotate(x.reshape(-1), block, key, is_inverse).reshape(x.shape) for x, block in pairs]


def _rotate(x: jax.Array, block: int, key: jax.Array, is_inverse: bool) -> jax.Array:
    """`rotate` of a vector."""
    start, last_group = x.size - block, -(-x.size // _GROUP)

    def turn_last(x: jax.Array) -> jax.Array:
        if x.size % block == 0:
            return x
        return jnp.concatenate([x[:start], _turn(x[start:], block, key, last_group, is_inverse)])

    if is_inverse:
        return _turn(turn_last(x), block, key, 0, is_inverse)
    return turn_last(_turn(x, block, key, 0, is_inverse))


def _turn(x: jax.Array, block: int, key: jax.Array, first_group: int, is_inverse: bool) -> jax.Array:
    """Signs of all elements, which begin at a draw, and transforms of all whole blocks."""

    def flip(x: jax.Array) -> jax.Array:
        groups = jnp.arange(-(-x.size // _GROUP), dtype=jnp.uint32) + jnp.uint32(first_group)
        halves = jnp.stack(noise.draw(key, groups), axis=1)[:, :, None]
        signs = (halves >> jnp.arange(_GROUP // 2, dtype=jnp.uint32)[None, None]).reshape(-1)[: x.size] << 31
        return lax.bitcast_convert_type(lax.bitcast_convert_type(x, jnp.uint32) ^ signs, jnp.float32)

    x = x if is_inverse else flip(x)
    whole = x.size // block * block
    turned = _transform(x[:whole].reshape(-1, block), is_inverse).reshape(-1)
    x = jnp.concatenate([turned, x[whole:]])
    if not is_inverse:
        return x
    x = flip(x)
    return jnp.where(x == 0, 0.0, x)  # no zero of a sign, which an all-reduce may lose


def _transform(x: jax.Array, is_inverse: bool) -> jax.Array:
    """float32[blocks, size]: H of every block.

    A small block is mixed by Walsh and Hadamard's matrix. One of BLOCK is 256 rows of 16 columns: the rows are mixed,
    row r is shifted by r columns, and every 16 rows are mixed once more. So an element reaches all others with
    one weight, as in the whole matrix, and the columns stay side by side for vector instructions.
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
    """Walsh and Hadamard's sums over axis 1 of three, four rows at a time."""
    shape, step = x.shape, 1
    while step < shape[1]:
        x = x.reshape(shape[0], -1, 4, step, shape[2])
        a, b, c, d = (x[:, :, row] for row in range(4))
        a, b, c, d = a + b, a - b, c + d, c - d
        x = jnp.stack([a + c, b + d, a - c, b - d], axis=2)
        step *= 4
    return x.reshape(shape)
