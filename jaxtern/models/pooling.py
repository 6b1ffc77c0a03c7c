"""Max pooling whose gradient is also fast on CPUs."""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

# Sides, strides, and padding before and after; of rows and of columns.
_Windows = tuple[tuple[int, int], tuple[int, int], Sequence[tuple[int, int]]]


def max_pool(
    x: jax.Array,
    window_shape: tuple[int, int],
    strides: tuple[int, int] = (1, 1),
    padding: str | Sequence[tuple[int, int]] = "VALID",
) -> jax.Array:
    """The largest activation of every window; among equal ones, the gradient goes to the first.

    It is `nnx.max_pool` with another gradient on CPUs, where XLA scatters by arrays of indices. That gradient is the
    same, up to the order in which overlapping windows are added, and takes a third to a fifth of the time
    (benchmarks/training/pooling.py).

    Args:
      x: float[B, H, W, C] activations; a window with a NaN becomes NaN.
      window_shape: height and width.
      strides: rows and columns from window to window.
      padding: "VALID", "SAME", or a pair (before, after) for rows and one for columns.

    Returns:
      An array like `x` but for H and W.
    """
    flax_pool: Any = nnx.max_pool  # its annotation allows only strings as padding
    pool = functools.partial(flax_pool, window_shape=window_shape, strides=strides, padding=padding)
    if jax.default_backend() != "cpu":
        return pool(x)
    pads = lax.padtype_to_pads(x.shape[1:3], window_shape, strides, padding) if isinstance(padding, str) else padding
    windows = window_shape, strides, pads

    def pool_and_keep(x: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        pooled = pool(x)
        return pooled, (x, pooled)

    quick = jax.custom_vjp(pool)
    quick.defvjp(pool_and_keep, lambda kept, gradient: (_pull_back(windows, kept[0], kept[1], gradient),))
    return quick(x)


def _pull_back(windows: _Windows, x: jax.Array, pooled: jax.Array, gradient: jax.Array) -> jax.Array:
    """The gradient of the activations, from the gradient of the pooled ones.

    The pixels that lie whole strides apart form a phase, and have the same places in their windows. What the windows
    give to a phase are slices of one array, which XLA adds in one pass.
    """
    (height, width), (down, right), (pad_rows, pad_columns) = windows
    rows, columns = -(-(x.shape[1] + sum(pad_rows)) // down), -(-(x.shape[2] + sum(pad_columns)) // right)
    above, before = (height - 1) // down, (width - 1) // right
    around = [(0, 0, 0), (above, rows - pooled.shape[1], 0), (before, columns - pooled.shape[2], 0), (0, 0, 0)]
    places = lax.pad(_first_places(windows, x, pooled), jnp.int16(-1), around)
    gradient = lax.pad(gradient, jnp.zeros((), gradient.dtype), around)

    def given(row: int, column: int) -> jax.Array:
        """The gradient for a phase from the windows in which its pixels have this row and column."""
        first_row, first_column = above - row // down, before - column // right
        own = slice(None), slice(first_row, first_row + rows), slice(first_column, first_column + columns)
        return jnp.where(places[own] == row * width + column, gradient[own], 0)

    def phase(row: int, column: int) -> jax.Array:
        parts = [given(*place) for place in itertools.product(range(row, height, down), range(column, width, right))]
        return functools.reduce(jnp.add, parts) if parts else jnp.zeros_like(given(0, 0))

    phases = [jnp.stack([phase(row, column) for column in range(right)], axis=3) for row in range(down)]
    whole = jnp.stack(phases, axis=2)  # [B, rows, stride, columns, stride, C]
    whole = whole.reshape(x.shape[0], rows * down, columns * right, x.shape[3])
    (top, _), (left, _) = pad_rows, pad_columns
    return whole[:, top : top + x.shape[1], left : left + x.shape[2]]


def _first_places(windows: _Windows, x: jax.Array, pooled: jax.Array) -> jax.Array:
    """int16, shaped like `pooled`: the first place in each window, by rows, that holds its largest activation."""
    (height, width), (down, right), pads = windows
    around = [(0, 0, 0), *((*pad, 0) for pad in pads), (0, 0, 0)]
    padded = lax.pad(x, jnp.array(-jnp.inf, x.dtype), around)
    found = jnp.zeros(pooled.shape, jnp.int16)
    for place in reversed(range(height * width)):
        row, column = divmod(place, width)
        below, behind = row + pooled.shape[1] * down, column + pooled.shape[2] * right
        activations = padded[:, row:below:down, column:behind:right]
        found = jnp.where(activations == pooled, jnp.int16(place), found)
    return found
