"""How wrong the answers of a network are."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class Measured(NamedTuple):
    """Means over all targets of some examples.

    Attributes:
      loss: float32 scalar, cross-entropy, with that of auxiliary logits where there are some.
      accuracy: float32 scalar, share of targets that have the highest logit.
    """

    loss: jax.Array
    accuracy: jax.Array


def cross_entropy(logits: jax.Array, targets: jax.Array, label_smoothing: float = 0.0) -> jax.Array:
    """-sum_k q_k log softmax(logits)_k, q = (1 - a) one-hot(target) + a / K (Szegedy et al. 2016, section 7).

    Args:
      logits: float[..., K]; the rest is done in float32.
      targets: int32[...], 0 to K - 1.
      label_smoothing: a, from 0 to 1.

    Returns:
      float32[...], one number a target.
    """
    logits = logits.astype(jnp.float32)
    if not label_smoothing:
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    right = jax.nn.one_hot(targets, logits.shape[-1], dtype=jnp.float32)
    return optax.softmax_cross_entropy(logits, optax.smooth_labels(right, label_smoothing))


def measure(outputs: Any, targets: jax.Array, label_smoothing: float = 0.0, auxiliary_weight: float = 0.0) -> Measured:
    """Loss and accuracy of what a network gives in training.

    Args:
      outputs: float[..., K] logits; or a pair of them and auxiliary logits of the same shape, whose cross-entropy,
        times `auxiliary_weight`, is part of the loss.
      targets: int32[...].
      label_smoothing: as for `cross_entropy`, of both.
      auxiliary_weight: the network's.
    """
    logits, *auxiliary = outputs if isinstance(outputs, tuple) else (outputs,)
    loss = jnp.mean(cross_entropy(logits, targets, label_smoothing))
    for each in auxiliary:
        loss += auxiliary_weight * jnp.mean(cross_entropy(each, targets, label_smoothing))
    right = jnp.argmax(logits.astype(jnp.float32), axis=-1) == targets
    return Measured(loss, jnp.mean(right.astype(jnp.float32)))
