"""What XLA is kept from joining: collectives with one another, and a concatenation with what makes its parts."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from .dispatch import pick_implementation, why_not_float32
from .native.calls import concatenate_native, follow_native


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
    parts = [part for part in parts if part.size]
    if not parts:
        return jnp.zeros((0,), jnp.float32)
    if len(parts) == 1:
        return parts[0].reshape(-1)
    not_native = next(filter(None, (why_not_float32("part.dtype", part.dtype) for part in parts)), "")
    if pick_implementation("concatenate", implementation, sum(part.size for part in parts), not_native) == "native":
        return concatenate_native(parts)
    return jnp.concatenate([part.reshape(-1) for part in parts])


def follow(words: jax.Array, after: Sequence[jax.Array], *, implementation: str = "auto") -> jax.Array:
    """The same words, once `after` is there.

    XLA joins collectives that do not wait for one another, so that all would wait for the last of their words.

    Args:
      words: uint32 of any shape; handed on where they lie by "native", else copied.
      after: uint32 arrays of any shapes.
      implementation: "auto", "reference" or "native"; on GPUs XLA's code is used.
    """
    after = [each for each in after if each.size]
    if not after or not words.size:
        return words
    if pick_implementation("follow", implementation, words.size) == "native":
        return follow_native(words, after)
    firsts = jnp.stack([each.reshape(-1)[0] for each in after])
    return words + (jnp.max(firsts) >> 31 >> 1)  # zero, which the compiler does not know
