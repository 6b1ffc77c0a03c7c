"""The scales: the largest value of each tensor or block."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxtern.compression.radix.gaussian import MAGNITUDE, SHAPES, Code, scales_of, stretch_table
from jaxtern.kernels import Segments, moments
from jaxtern.kernels.rounding import settle

_MIN_ELEMENTS = 256  # fewer rotated elements are too few to be like a normal variable, and are not clipped


class Measured(NamedTuple):
    """Measurements of one worker's own gradient, float32[num_scales] each."""

    scales: jax.Array  # s
    max_abs: jax.Array  # max|x|
    magnitude: jax.Array  # E|x| of a rotated gradient
    energy: jax.Array  # E[x^2] / E|x| of a rotated gradient


def measure(
    gradient: jax.Array | Sequence[jax.Array],
    segments: Segments,
    clip_sigmas: float,
    is_rotated: bool,
    implementation: str,
) -> Measured:
    """s = min(c sigma, max|g|), the maximum of the gradient clipped at c standard deviations (TernGrad, section 5).

    With c = 0, or if all elements are equal (sigma = 0), s = max|g|. For a rotated gradient, sigma is
    sqrt(2 / pi) E[x^2] / E|x|, which is exact for a normal variable, and larger if a part is nearly zero. A scale is
    infinity if the segment holds a NaN or an infinity, as a maximum over workers may drop a NaN.

    Args:
      gradient: float32[n], one worker's bucket, or its tensors.
      segments: layout of the bucket.
      clip_sigmas: c, 0 or more.
      is_rotated: whether the gradient is rotated.
      implementation: implementation of `moments`.
    """
    max_abs, mean, variance = moments(gradient, segments, of_magnitudes=is_rotated, implementation=implementation)
    energy = jnp.where(mean > 0, variance / mean, 0.0) + mean
    if is_rotated:
        clipped = jnp.float32(clip_sigmas * MAGNITUDE) * energy
        is_unclipped = (np.diff(segments.bounds()) < _MIN_ELEMENTS) | (max_abs < 2.0**-55)  # or squares underflow
        clipped = jnp.where(is_unclipped, 0.0, clipped)
    else:
        clipped = jnp.float32(clip_sigmas) * jnp.sqrt(variance)
    scales = jnp.where(clipped > 0, jnp.minimum(clipped, max_abs), max_abs)
    return Measured(jnp.where(jnp.isfinite(max_abs), scales, jnp.inf), max_abs, mean, energy)


def stretch(shared: jax.Array, measured: Measured, code: Code) -> jax.Array:
    """The scales s / a with which a worker encodes its rotated gradient, while all decode with s.

    a makes up for what clipping, or rounding to the nearest, takes from elements of such size and shape (see `Code`).
    """
    table = jnp.asarray(stretch_table(code))
    shape = _place(measured.magnitude / measured.energy, SHAPES)
    scale = _place(shared / measured.energy, scales_of(code))
    own = shared / table[shape, scale]
    return own if code.rounding == "nearest" else jnp.where(measured.max_abs <= shared, shared, own)


def clip_again(
    mean: jax.Array, tile: int, code: Code | None, may_clip: jax.Array, implementation: str
) -> tuple[jax.Array, jax.Array]:
    """Where each tile of a rotated mean is clipped, and the scale by which clipped elements are then decoded.

    With z the decoded values and y the clipped x, the scale is the limit times E[x^2] / E[x y]: so E[x z] = E[x^2], for
    tiles of any shape. Here E[x y] = E[y^2] + limit (E|x| - E|y|).

    Args:
      mean: float32[n], whole tiles.
      tile: elements of a tile.
      code: how normal variables are clipped; None: not at all.
      may_clip: bool[tiles], tiles that are clipped.
      implementation: implementation of `moments`.

    Returns:
      float32[tiles] twice.
    """
    segments = Segments((mean.size,), tile)
    whole = measure(mean, segments, code.scale if code else 0.0, True, implementation)
    if code is None:
        return whole.max_abs, whole.max_abs
    limits = jnp.where(may_clip, whole.scales, whole.max_abs)
    rows = mean.reshape(-1, tile)
    clipped = jnp.clip(rows, -limits[:, None], limits[:, None]).reshape(-1)
    part = measure(clipped, segments, 0.0, True, implementation)
    lost = settle(limits * (whole.magnitude - part.magnitude))
    gain = settle(whole.energy * whole.magnitude) / (settle(part.energy * part.magnitude) + lost)
    return limits, jnp.where(whole.max_abs > limits, limits * gain, limits)


def fit(x: jax.Array, digits: jax.Array, tile: int, implementation: str) -> jax.Array:
    """float32[tiles], the scales by which digits in [-1, 1] with the signs of x come nearest to x: E[x q] / E[q^2]."""
    segments = Segments((x.size,), tile)
    both = measure(settle(x * digits), segments, 0.0, True, implementation)
    own = measure(digits, segments, 0.0, True, implementation)
    energy = settle(own.energy * own.magnitude)
    return jnp.where(energy > 0, both.magnitude / energy, 0.0)


def _place(x: jax.Array, values: np.ndarray) -> jax.Array:
    """int32, the index of the nearest of evenly spaced values; 0 for a NaN."""
    step = values[1] - values[0]
    steps = (x - jnp.float32(values[0] - step / 2)) * jnp.float32(1 / step)
    return jnp.where(steps > 0, jnp.minimum(steps, len(values) - 1), 0).astype(jnp.int32)
