"""Keeps XLA from fusing a concatenation with its inputs, and from merging collectives."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from .dispatch import pick_implementation, why_not_float32
from .native.calls import call, concatenate_native


def concatenate(parts: Sequence[jax.Array], *, implementation: str = "auto") -> jax.Array:
    """Concatenates the elements of all parts, each in row-major order.

    On a CPU, XLA fuses the operations that make the parts into its concatenation, where sums over a batch, such as
    gradients of biases, can take many times longer. "native" copies the finished parts.

    Args:
      parts: float32 of any shapes.
      implementation: "auto", "reference" or "native"; on GPUs XLA's code is used.

    Returns:
      float32[n], n the number of all elements; a single part is not copied.
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


def follow(
    words: jax.Array, after: Sequence[jax.Array], *, apart: bool = False, implementation: str = "auto"
) -> jax.Array:
    """Returns the words once `after` is computed.

    XLA merges collectives that do not depend on one another; the first would then wait for the words of the last.

    Args:
      words: uint32 of any shape; "native" does not copy them.
      after: uint32 arrays of any shapes.
      apart: whether another thread is to do what waits for the words. A thread of XLA does all that becomes ready at
        once, one after another; so what is not urgent could hold up a collective. "reference" ignores it.
      implementation: "auto", "reference" or "native"; on GPUs XLA's code is used.
    """
    after = [each for each in after if each.size]
    if not after or not words.size:
        return words
    if pick_implementation("follow", implementation, words.size) == "native":
        return call("follow", [(words.shape, words.dtype)], [words, *after], {0: 0}, apart=int(apart))[0]
    firsts = jnp.stack([each.reshape(-1)[0] for each in after])
    return words + (jnp.max(firsts) >> 31 >> 1)  # adds zero, but the compiler cannot know that
