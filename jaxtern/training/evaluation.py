"""Loss and accuracy over a whole split, each example exactly once. Knows nothing of training."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxtern.data.dataset import Split
from jaxtern.data.preprocess import normalize

_BATCH_SIZE = 500


class Evaluation(NamedTuple):
    """Of one set of weights on one split.

    Attributes:
      loss: mean cross-entropy.
      precision_at_1: share of examples whose best class is right.
      recall_at_5: share of examples whose right class is among the best five.
      num_examples: of the split.
    """

    loss: float
    precision_at_1: float
    recall_at_5: float
    num_examples: int


def evaluate(graph: Any, params: Any, split: Split) -> Evaluation:
    """Evaluates a model on a split.

    Args:
      graph: static part of the model.
      params: its weights.
      split: uint8 images and labels.

    Returns:
      Sums over examples are exact counts; the loss is added in float64.
    """
    loss, first, five = 0.0, 0, 0
    for start in range(0, split.size, _BATCH_SIZE):
        images, labels = split.images[start : start + _BATCH_SIZE], split.labels[start : start + _BATCH_SIZE]
        missing = _BATCH_SIZE - len(labels)
        mask = np.arange(_BATCH_SIZE) < len(labels)
        images = np.pad(images, [(0, missing), (0, 0), (0, 0), (0, 0)])
        batch_loss, batch_first, batch_five = _evaluate_batch(graph, params, images, np.pad(labels, (0, missing)), mask)
        loss += float(np.sum(np.asarray(batch_loss, np.float64)))
        first += int(batch_first)
        five += int(batch_five)
    return Evaluation(loss / split.size, first / split.size, five / split.size, split.size)


@functools.partial(jax.jit, static_argnums=0)
def _evaluate_batch(
    graph: Any, params: Any, images: jax.Array, labels: jax.Array, mask: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """float32[B] losses, and how many of the unmasked examples have the right class first and among five."""
    logits = nnx.merge(graph, params)(normalize(images))
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    _, best = jax.lax.top_k(logits, min(5, logits.shape[-1]))
    right = (best == labels[:, None]) & mask[:, None]
    return jnp.where(mask, losses, 0.0), jnp.sum(right[:, 0]), jnp.sum(right)
