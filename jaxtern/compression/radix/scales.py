"""One scale for each tensor (or block): what a digit of one is worth."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from jaxtern.kernels import Segments, moments

ROUNDINGS = ("exact", "pow2")


def local_scales(
    gradient: jax.Array | Sequence[jax.Array], segments: Segments, clip_sigmas: float, implementation: str
) -> jax.Array:
    """s = min(c sigma, max|g|), the maximum of the gradient clipped at c standard deviations (TernGrad, section 5).

    With c = 0, and where all elements are equal (sigma = 0), nothing is clipped: s = max|g|.

    Args:
      gradient: float32[n], one worker's bucket, or its tensors.
      segments: its layout.
      clip_sigmas: c, 0 or more.
      implementation: of the moments.

    Returns:
      float32[num_scales]; infinity where the segment holds a NaN or an infinity, so that a maximum over workers keeps
      it (engines may drop a NaN).
    """
    max_abs, _, variance = moments(gradient, segments, implementation=implementation)
    clipped = jnp.float32(clip_sigmas) * jnp.sqrt(variance)
    scales = jnp.where(clipped > 0, jnp.minimum(clipped, max_abs), max_abs)
    return jnp.where(jnp.isfinite(max_abs), scales, jnp.inf)


def round_scales(scales: jax.Array, rounding: str) -> jax.Array:
    """Finishes shared scales: "exact" keeps them, "pow2" rounds them up to powers of two; not finite becomes NaN.

    Multiplying by a power of two is exact, so with pow2 and 2^k workers the whole mean is.
    """
    finite = jnp.isfinite(scales)
    if rounding == "pow2":
        bits = lax.bitcast_convert_type(scales, jnp.uint32)
        scales = lax.bitcast_convert_type((bits + jnp.uint32(0x7FFFFF)) & jnp.uint32(0xFF800000), jnp.float32)
    return jnp.where(finite & jnp.isfinite(scales), scales, jnp.nan)
