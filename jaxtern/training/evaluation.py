"""Loss and accuracy over a whole split, each example exactly once. Knows nothing of training."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxtern.data.dataset import Records, Split
from jaxtern.data.feed import evaluation_batches
from jaxtern.data.preprocessing.families import Preprocessing
from jaxtern.data.rendering import whole_image_shape

_BATCH_SIZE = 500
_BATCH_PIXELS = 1 << 23


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


def evaluate(
    graph: Any,
    variables: Any,
    split: Split | Records,
    preprocessing: Preprocessing,
    size: int | None = None,
    threads: int = 1,
) -> Evaluation:
    """Evaluates a model on a split.

    Args:
      graph: static part of the model.
      variables: its weights and moments.
      split: uint8 images and labels.
      preprocessing: of the images.
      size: pixels, side of the images after it; None: as the preprocessing has it.
      threads: that decode images on disk at the same time.

    Returns:
      Sums over examples are exact counts; the loss is added in float64.

    Raises:
      DataError: naming the example, if one on disk cannot be read.
    """
    loss, first, five = 0.0, 0, 0
    whole = preprocessing.takes_whole_images
    height, width, _ = whole_image_shape(split) if whole else preprocessing.output_shape(None, size)
    batch_size = max(1, min(_BATCH_SIZE, _BATCH_PIXELS // (height * width)))
    for batch in evaluation_batches(split, batch_size, preprocessing, size, threads):
        batch_loss, batch_first, batch_five = _evaluate_batch(graph, preprocessing, size, variables, *batch)
        loss += float(np.sum(np.asarray(batch_loss, np.float64)))
        first += int(batch_first)
        five += int(batch_five)
    return Evaluation(loss / split.size, first / split.size, five / split.size, split.size)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _evaluate_batch(
    graph: Any, preprocessing: Preprocessing, size: int | None, variables: Any,
    images: jax.Array, labels: jax.Array, mask: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:  # fmt: skip
    """float32[B] losses, and how many of the unmasked examples have the right class first and among five."""
    logits = nnx.merge(graph, variables)(preprocessing.standardize(images, size))
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    _, best = jax.lax.top_k(logits, min(5, logits.shape[-1]))
    right = (best == labels[:, None]) & mask[:, None]
    return jnp.where(mask, losses, 0.0), jnp.sum(right[:, 0]), jnp.sum(right)
