"""Loss and accuracy over a whole split, each target exactly once: an image's class, or every character of a text."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxtern.data.rendering import Share
from jaxtern.data.tasks import Task
from jaxtern.hosts.messages import gather_json
from jaxtern.training.step.loss import cross_entropy


class Evaluation(NamedTuple):
    """Of one set of weights on one split.

    Attributes:
      loss: mean cross-entropy.
      precision_at_1: share of targets for which the best class is right.
      recall_at_5: share of targets for which the right class is among the best five.
      num_examples: targets of the split: images; or of text the characters that are predicted.
    """

    loss: float
    precision_at_1: float
    recall_at_5: float
    num_examples: int


def evaluate(
    graph: Any,
    variables: Any,
    split: Any,
    task: Task,
    threads: int = 1,
    collect: Callable[[np.ndarray], None] | None = None,
    share: Share | None = None,
) -> Evaluation:
    """Evaluates a model on a split.

    Args:
      graph: static part of the model.
      variables: its weights and moments.
      split: of the task's examples.
      task: what the model is asked.
      threads: that decode images on disk at the same time.
      collect: is handed the float32[n, K] logits of every batch, in the order of the examples.
      share: of this process, where all processes evaluate a part each; None: it evaluates all.

    Returns:
      Sums over targets are exact counts; the loss is added in float64.

    Raises:
      DataError: naming the example, if one on disk cannot be read.
    """
    loss, first, five, count = 0.0, 0, 0, 0
    for examples, labels, mask in task.evaluation_batches(split, threads, share):
        logits = compute_logits(graph, task, variables, examples)
        if collect is not None:
            collect(np.asarray(logits)[mask])
        batch_loss, *counts = _compare(task, logits, examples, labels, mask)
        loss += float(np.sum(np.asarray(batch_loss, np.float64)))
        first, five, count = (total + int(n) for total, n in zip((first, five, count), counts, strict=True))
    if share is not None:
        loss, first, five, count = map(sum, zip(*gather_json([loss, first, five, count]), strict=True))
    return Evaluation(loss / count, first / count, five / count, count)


@functools.partial(jax.jit, static_argnums=(0, 1))
def compute_logits(graph: Any, task: Task, variables: Any, examples: jax.Array) -> jax.Array:
    """float32[B, K] of uint8[B, H, W, C] images, or [B, T, K] of uint8[B, T + 1] characters: the program that is
    evaluated, and the one that is exported.

    It is compiled alone, as the exported one is: with losses in it, it might have other bits.
    """
    inputs, _ = task.in_evaluation(examples, None)
    return nnx.merge(graph, variables)(inputs).astype(jnp.float32)


@functools.partial(jax.jit, static_argnums=0)
def _compare(
    task: Task, logits: jax.Array, examples: jax.Array, labels: Any, mask: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Losses of all targets, 0 where the example is masked; and of how many of the others the right class is first, is
    among five, and how many they are.
    """
    _, targets = task.in_evaluation(examples, labels)
    present = jnp.broadcast_to(jnp.expand_dims(mask, tuple(range(1, targets.ndim))), targets.shape)
    _, best = jax.lax.top_k(logits, min(5, logits.shape[-1]))
    right = (best == targets[..., None]) & present[..., None]
    losses = jnp.where(present, cross_entropy(logits, targets), 0.0)
    return losses, jnp.sum(right[..., 0]), jnp.sum(right), jnp.sum(present)
