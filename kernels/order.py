"""What is computed when: for collectives and memory that XLA would else order as it likes."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from .dispatch import pick_implementation
from .native.calls import follow_native


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
