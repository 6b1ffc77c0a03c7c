"""Maximum, mean and variance of every segment of a bucket: what a scale is made of."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from .dispatch import pick_implementation, require_floating
from .moments_reference import moments_reference
from .segments import Segments


class Moments(NamedTuple):
    """Of every segment; float32[num_scales] each."""

    max_abs: jax.Array
    mean: jax.Array
    variance: jax.Array


def moments(gradient: jax.Array, segments: Segments, *, implementation: str = "auto") -> Moments:
    """max|g|, mean and population variance of every segment.

    The sums run in one fixed order with products that are exact in float32, so the result depends on the values alone:
    not on batching, fusion, or the number of devices. To make the products exact, deviations are rounded to 12
    significant bits, which moves the variance by less than 2^-11 of itself.

    Args:
      gradient: float[n], a bucket; float32, bfloat16 or float16.
      segments: its layout.
      implementation: "auto" or "reference".

    Returns:
      Moments. A segment that holds a NaN or an infinity has a max_abs that is not finite.

    Raises:
      ValueError: if the gradient is not a floating-point vector of the layout's length.
    """
    require_floating(gradient, segments)
    pick_implementation("moments", implementation)
    return Moments(*moments_reference(gradient.astype(jnp.float32), segments))
