"""Max pooling whose gradient is quick on CPUs, too."""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax


class _Windows(NamedTuple):
    """Sides and strides in rows and columns, and the padding of both, before and behind."""

    sides: tuple[int, int]
    strides: tuple[int, int]
    pads: Sequence[tuple[int, int]]


def max_pool(
    x: jax.Array,
    window_shape: tuple[int, int],
    strides: tuple[int, int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
) -> jax.Array:
    """The largest activation of every window; its gradient goes to the first of those that are as large.

    `nnx.max_pool`, but for the gradient on CPUs, where XLA computes it of arrays of indices and scatters it: there it
    is the same up to the order in which the gradients of overlapping windows are added, at a third to a fifth of the
    time (benchmarks/training/pooling.py).

    Args:
      x: float[B, H, W, C] activations; a window with a NaN becomes NaN.
      window_shape: height and width.
      strides: rows and columns from window to window; None: 1 and 1.
      padding: "VALID", "SAME", or pairs of rows and of columns before and behind.

    Returns:
      An array like `x` but for H and W.
    """
    strides = strides or (1, 1)
    flax_pool: Any = nnx.max_pool  # declares padding as a string, but takes pixels, too
    pool = functools.partial(flax_pool, window_shape=window_shape, strides=strides, padding=padding)
    if jax.default_backend() != "cpu":
        return pool(x)
    pads = lax.padtype_to_pads(x.shape[1:3], window_shape, strides, padding) if isinstance(padding, str) else padding
    windows = _Windows(window_shape, strides, pads)

    def pool_and_keep(x: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        pooled = pool(x)
        return pooled, (x, pooled)

    def pull_back(kept: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array]:
        return (_pull_back(windows, *kept, gradient),)

    quick = jax.custom_vjp(pool)
    quick.defvjp(pool_and_keep, pull_back)
    return quick(x)


def _pull_back(windows: _Windows, x: jax.Array, pooled: jax.Array, gradient: jax.Array) -> jax.Array:
    """The gradient of activations, of that of what was pooled from them.

    Pixels that are whole strides apart, a phase, have the same places in their windows. What the windows give to a
    phase are slices of one array, which XLA adds in one pass.
    """
    (_, height, width, _), (top, _), (left, _) = x.shape, *windows.pads
    sizes = height + sum(windows.pads[0]), width + sum(windows.pads[1])
    rows, columns = (math.ceil(size / stride) for size, stride in zip(sizes, windows.strides, strict=True))
    above, before = ((side - 1) // stride for side, stride in zip(windows.sides, windows.strides, strict=True))
    below, behind = rows - pooled.shape[1], columns - pooled.shape[2]
    around = [(0, 0, 0), (above, below, 0), (before, behind, 0), (0, 0, 0)]
    places = lax.pad(_first_places(windows, x, pooled), jnp.int16(-1), around)
    gradient = lax.pad(gradient, jnp.zeros((), gradient.dtype), around)

    def given(row: int, column: int) -> jax.Array:
        """Gradient that a phase gets from the windows in which it has that row and column."""
        first_row, first_column = above - row // windows.strides[0], before - column // windows.strides[1]
        own = slice(None), slice(first_row, first_row + rows), slice(first_column, first_column + columns)
        return jnp.where(places[own] == row * windows.sides[1] + column, gradient[own], 0)

    def phase(row: int, column: int) -> jax.Array:
        own_rows = range(row, windows.sides[0], windows.strides[0])
        own_columns = range(column, windows.sides[1], windows.strides[1])
        parts = [given(*place) for place in itertools.product(own_rows, own_columns)]
        return functools.reduce(jnp.add, parts) if parts else jnp.zeros_like(given(0, 0))

    phases = [[phase(row, column) for column in range(windows.strides[1])] for row in range(windows.strides[0])]
    whole = jnp.stack([jnp.stack(line, axis=3) for line in phases], axis=2)  # [B, rows, stride, columns, stride, C]
    whole = whole.reshape(x.shape[0], rows * windows.strides[0], columns * windows.strides[1], x.shape[3])
    return whole[:, top : top + height, left : left + width]


def _first_places(windows: _Windows, x: jax.Array, pooled: jax.Array) -> jax.Array:
    """int16, like `pooled`: the first place of each window, by rows, that holds its largest activation."""
    padding = [(0, 0, 0), *((*pads, 0) for pads in windows.pads), (0, 0, 0)]
    padded = lax.pad(x, jnp.array(-jnp.inf, x.dtype), padding)
    (height, width), (rows, columns) = windows.sides, windows.strides
    found = jnp.zeros(pooled.shape, jnp.int16)
    for place in reversed(range(height * width)):
        row, column = divmod(place, width)
        ends = row + (pooled.shape[1] - 1) * rows + 1, column + (pooled.shape[2] - 1) * columns + 1
        limits = x.shape[0], *ends, x.shape[3]
        activations = lax.slice(padded, (0, row, column, 0), limits, (1, rows, columns, 1))
        found = jnp.where(activations == pooled, jnp.int16(place), found)
    return found
