"""Evaluates loss and accuracy over a whole split, with each target (image or character) exactly once."""

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxtern.data.rendering import Share
from jaxtern.data.tasks import Task
from jaxtern.hosts.messages import gather_json
from jaxtern.training.step.loss import CROSS_ENTROPY, compute_losses, describe_loss


class Evaluation(NamedTuple):
    """Results for one set of weights on one split."""

    loss: float  # mean of the recipe's loss, without weight decay, smoothing and auxiliary logits
    precision_at_1: float  # share of targets whose highest logit is the right class
    recall_at_5: float  # share of targets whose right class is among the highest five
    num_examples: int  # targets of the split: images, or predicted characters
    # by name, means of the metrics of a user's own loss
    own: dict[str, float] = {}  # noqa: RUF012 - nobody adds to it

    @classmethod
    def from_scalars(cls, scalars: dict[str, Any]) -> "Evaluation":
        """The inverse of `scalars`; ignores other names."""
        own = {name: value for name, value in scalars.items() if name.startswith("metrics/")}
        return cls(**{name: scalars[name] for name in cls._fields[:-1]}, own=own)

    def scalars(self) -> dict[str, float]:
        """All numbers by name, as records have them."""
        *known, own = self
        return dict(zip(self._fields[:-1], known, strict=True)) | own

    def describe(self, split: str, loss: str) -> str:
        """Describes the results on a split, with the recipe's loss, in a line."""
        own = "".join(f", {name.removeprefix('metrics/')} {value:.4f}" for name, value in self.own.items())
        return (
            f"{split} loss {describe_loss(self.loss, {loss: self.loss})}, precision@1 {self.precision_at_1:.2%},"
            f" recall@5 {self.recall_at_5:.2%}{own}"
        )


def evaluate(
    graph: Any,
    variables: Any,
    split: Any,
    task: Task,
    threads: int = 1,
    collect: Callable[[np.ndarray], None] | None = None,
    share: Share | None = None,
    loss: str = CROSS_ENTROPY,
) -> Evaluation:
    """Evaluates a model on a split; counts are exact, and losses are added in float64.

    Args:
      graph: static part of the model.
      variables: its weights and moments.
      split: examples of the task.
      task: images or text.
      threads: number of threads that decode images.
      collect: receives the float32[n, K] logits of every batch, in the order of the examples.
      share: part of this process, if all processes evaluate a part each; None: all examples.
      loss: loss of the recipe.

    Raises:
      DataError: if an example cannot be read; names it.
    """
    totals: Counter[str] = Counter()
    for examples, labels, mask in task.evaluation_batches(split, threads, share):
        logits = compute_logits(graph, task, variables, examples)
        if collect is not None:
            collect(np.asarray(logits)[mask])
        for name, each in _compare(task, loss, logits, examples, labels, mask).items():
            totals[name] += np.sum(np.asarray(each, np.float64 if each.ndim else None)).item()
    sums: Counter[str] = Counter()
    for part in [totals] if share is None else gather_json(totals):
        sums.update(part)
    count = int(sums.pop("num_examples"))
    means = {name: total / count for name, total in sums.items()}
    return Evaluation.from_scalars(means | {"num_examples": count})


@functools.partial(jax.jit, static_argnums=(0, 1))
def compute_logits(graph: Any, task: Task, variables: Any, examples: jax.Array) -> jax.Array:
    """float32[B, K] logits of uint8[B, H, W, C] images, or [B, T, K] of uint8[B, T + 1] characters.

    This program is evaluated and exported. It is compiled alone, as it might have other bits together with losses.
    """
    inputs, _ = task.in_evaluation(examples, None)
    return nnx.merge(graph, variables)(inputs).astype(jnp.float32)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _compare(
    task: Task, loss: str, logits: jax.Array, examples: jax.Array, labels: Any, mask: jax.Array
) -> dict[str, jax.Array]:
    """Losses and metrics of all targets by name, 0 for masked examples; and counts over the others."""
    _, targets = task.in_evaluation(examples, labels)
    present = jnp.broadcast_to(jnp.expand_dims(mask, tuple(range(1, targets.ndim))), targets.shape)
    _, best = jax.lax.top_k(logits, min(5, logits.shape[-1]))
    right = (best == targets[..., None]) & present[..., None]
    losses = {name: jnp.where(present, each, 0.0) for name, each in compute_losses(loss, logits, targets).items()}
    own = {f"metrics/{name}": each for name, each in losses.items() if name != "loss"}
    counts = {"precision_at_1": jnp.sum(right[..., 0]), "recall_at_5": jnp.sum(right), "num_examples": jnp.sum(present)}
    return {"loss": losses["loss"]} | counts | own
