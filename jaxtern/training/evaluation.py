"""Loss and accuracy over a whole split, each example exactly once. Knows nothing of training."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxtern.data.dataset import Records, Split
from jaxtern.data.feed import evaluation_batches
from jaxtern.data.preprocessing.families import Preprocessing
from jaxtern.data.rendering import evaluation_batch_size, whole_image_shape


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
    params: Any,
    split: Split | Records,
    preprocessing: Preprocessing,
    size: int | None = None,
    threads: int = 1,
    collect: Callable[[np.ndarray], None] | None = None,
) -> Evaluation:
    """Evaluates a model on a split.

    Args:
      graph: static part of the model.
      params: its weights.
      split: uint8 images and labels.
      preprocessing: of the images.
      size: pixels, side of the images after it; None: as the preprocessing has it.
      threads: that decode images on disk at the same time.
      collect: is handed the float32[n, K] logits of every batch, in the order of the examples.

    Returns:
      Sums over examples are exact counts; the loss is added in float64.

    Raises:
      DataError: naming the example, if one on disk cannot be read.
    """
    loss, first, five = 0.0, 0, 0
    whole = preprocessing.takes_whole_images
    height, width, _ = whole_image_shape(split) if whole else preprocessing.output_shape(None, size)
    batch_size = evaluation_batch_size(split.size, height, width)
    for images, labels, mask in evaluation_batches(split, batch_size, preprocessing, size, threads):
        logits = compute_logits(graph, preprocessing, size, params, images)
        if collect is not None:
            collect(np.asarray(logits)[mask])
        batch_loss, batch_first, batch_five = _compare(logits, labels, mask)
        loss += float(np.sum(np.asarray(batch_loss, np.float64)))
        first += int(batch_first)
        five += int(batch_five)
    return Evaluation(loss / split.size, first / split.size, five / split.size, split.size)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def compute_logits(
    graph: Any, preprocessing: Preprocessing, size: int | None, params: Any, images: jax.Array
) -> jax.Array:
    """float32[B, K] of uint8[B, H, W, C]: the program that is evaluated, and the one that is exported.

    It is compiled alone, as the exported one is: with losses in it, it might have other bits.
    """
    return nnx.merge(graph, params)(preprocessing.standardize(images, size)).astype(jnp.float32)


@jax.jit
def _compare(logits: jax.Array, labels: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """float32[B] losses, and how many of the unmasked examples have the right class first and among five."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    _, best = jax.lax.top_k(logits, min(5, logits.shape[-1]))
    right = (best == labels[:, None]) & mask[:, None]
    return jnp.where(mask, losses, 0.0), jnp.sum(right[:, 0]), jnp.sum(right)
