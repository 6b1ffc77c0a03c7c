"""Tensors one behind the other in one vector: how a bucket is made."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from .dispatch import pick_implementation, why_not_float32
from .native.calls import concatenate_native


def concatenate(parts: Sequence[jax.Array], *, implementation: str = "auto") -> jax.Array:
    """The elements of all parts, in their order and each in row-major order.

    On a CPU, XLA computes what makes the parts inside of its own concatenation, element by element, which can take many
    times longer than by itself (sums over a batch, as gradients of biases are). "native" copies what is there already.

    Args:
      parts: float32 of any shapes.
      implementation: "auto", "reference" or "native"; on GPUs XLA's code is used.

    Returns:
      float32[n], n the number of all elements; of one part no copy.
    """
    size = sum(math.prod(part.shape) for part in parts)
    if not size:
        return jnp.zeros((0,), jnp.float32)
    parts = [part for part in parts if part.size]
    if len(parts) == 1:
        return parts[0].reshape(-1)
    not_native = next(filter(None, (why_not_float32("part.dtype", part.dtype) for part in parts)), "")
    if pick_implementation("concatenate", implementation, size, not_native) == "native":
        return concatenate_native(parts)
    return jnp.concatenate([part.reshape(-1) for part in parts])
