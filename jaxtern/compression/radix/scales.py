"""One scale for each tensor (or block): what a digit of one is worth."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxtern.compression.radix.gaussian import MAGNITUDE, SHAPES, Code, scales_of, stretch_table
from jaxtern.kernels import Segments, moments

_MIN_ELEMENTS = 256  # of rotated ones; fewer are not clipped, as too few to be like a normal variable


class Measured(NamedTuple):
    """float32[num_scales] each, of one worker's own gradient.

    Attributes:
      scales: s.
      max_abs: max|x|.
      magnitude: E|x|, of a rotated gradient.
      energy: E[x^2] / E|x|, likewise.
    """

    scales: jax.Array
    max_abs: jax.Array
    magnitude: jax.Array
    energy: jax.Array


def measure(
    gradient: jax.Array | Sequence[jax.Array],
    segments: Segments,
    clip_sigmas: float,
    is_rotated: bool,
    implementation: str,
) -> Measured:
    """s = min(c sigma, max|g|), the maximum of the gradient clipped at c standard deviations (TernGrad, section 5).

    With c = 0, and where all elements are equal (sigma = 0), nothing is clipped: s = max|g|. Of a rotated gradient
    sqrt(2 / pi) E[x^2] / E|x| stands for sigma, which it is of a normal variable, and more where a part is nearly zero.

    Args:
      gradient: float32[n], one worker's bucket, or its tensors.
      segments: its layout.
      clip_sigmas: c, 0 or more.
      is_rotated: whether the gradient is.
      implementation: of the moments.

    Returns:
      Scales that are infinity where the segment holds a NaN or an infinity, so that a maximum over workers keeps
      it (engines may drop a NaN).
    """
    max_abs, mean, variance = moments(gradient, segments, of_magnitudes=is_rotated, implementation=implementation)
    energy = jnp.where(mean > 0, variance / mean, 0.0) + mean
    if is_rotated:
        clipped = jnp.float32(clip_sigmas * MAGNITUDE) * energy
        clipped = jnp.where(np.diff(segments.bounds()) < _MIN_ELEMENTS, 0.0, clipped)
    else:
        clipped = jnp.float32(clip_sigmas) * jnp.sqrt(variance)
    scales = jnp.where(clipped > 0, jnp.minimum(clipped, max_abs), max_abs)
    return Measured(jnp.where(jnp.isfinite(max_abs), scales, jnp.inf), max_abs, mean, energy)


def stretch(shared: jax.Array, measured: Measured, code: Code) -> jax.Array:
    """The scales that a worker encodes its rotated gradient with: s / a, where all decode with s.

    a makes up for what this worker loses by clipping, or by rounding to the nearest, as elements of such size and shape
    do (`Code`). What loses nothing is not stretched.
    """
    table = jnp.asarray(stretch_table(code))
    shape = _place(measured.magnitude / measured.energy, SHAPES)
    scale = _place(shared / measured.energy, scales_of(code))
    own = shared / table[shape, scale]
    return own if code.rounding == "nearest" else jnp.where(measured.max_abs <= shared, shared, own)


def _place(x: jax.Array, values: np.ndarray) -> jax.Array:
    """int32: the nearest of evenly spaced values; the first of a NaN, too."""
    step = values[1] - values[0]
    steps = (x - jnp.float32(values[0] - step / 2)) * jnp.float32(1 / step)
    return jnp.where(steps > 0, jnp.minimum(steps, len(values) - 1), 0).astype(jnp.int32)
