"""Loss and accuracy over a whole split, each target exactly once: an image's class, or every character of a text."""

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
from jaxtern.training.step.loss import CROSS_ENTROPY, compare, describe_loss


class Evaluation(NamedTuple):
    """Of one set of weights on one split.

    Attributes:
      loss: mean of the recipe's loss, mostly cross-entropy, without weight decay, smoothing and auxiliary logits.
      precision_at_1: share of targets for which the best class is right.
      recall_at_5: share of targets for which the right class is among the best five.
      num_examples: targets of the split: images; or of text the characters that are predicted.
      own: means of the metrics that a loss of one's own gives, by name.
    """

    loss: float
    precision_at_1: float
    recall_at_5: float
    num_examples: int
    own: dict[str, float] = {}  # noqa: RUF012 - nobody adds to it

    @classmethod
    def from_scalars(cls, scalars: dict[str, Any]) -> "Evaluation":
        """Of what `scalars` gives, and perhaps more, which is left out."""
        own = {name: value for name, value in scalars.items() if name.startswith("metrics/")}
        return cls(**{name: scalars[name] for name in cls._fields[:-1]}, own=own)

    def scalars(self) -> dict[str, float]:
        """All of it by name, as records have it."""
        *known, own = self
        return dict(zip(self._fields[:-1], known, strict=True)) | own

    def describe(self, split: str, loss: str) -> str:
        """In a line, of a split by the recipe's loss."""
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
    """Evaluates a model on a split.

    Args:
      graph: static part of the model.
      variables: its weights and moments.
      split: of the task's examples.
      task: what the model is asked.
      threads: that decode images on disk at the same time.
      collect: is handed the float32[n, K] logits of every batch, in the order of the examples.
      share: of this process, where all processes evaluate a part each; None: it evaluates all.
      loss: a recipe's.

    Returns:
      Sums over targets are exact counts; losses are added in float64.

    Raises:
      DataError: naming the example, if one on disk cannot be read.
    """
    totals: Counter[str] = Counter()
    for examples, labels, mask in task.evaluation_batches(split, threads, share):
        logits = compute_logits(graph, task, variables, examples)
        if collect is not None:
            collect(np.asarray(logits)[mask])
        for name, each in _compare(task, loss, logits, examples, labels, mask).items():
            totals[name] += np.sum(np.asarray(each, np.float64 if each.ndim else None)).item()
    parts = [totals] if share is None else gather_json(totals)
    sums = {name: sum(part[name] for part in parts) for name in totals}
    count = int(sums.pop("num_examples"))
    means = {name: total / count for name, total in sums.items()}
    return Evaluation.from_scalars(means | {"num_examples": count})


@functools.partial(jax.jit, static_argnums=(0, 1))
def compute_logits(graph: Any, task: Task, variables: Any, examples: jax.Array) -> jax.Array:
    """float32[B, K] of uint8[B, H, W, C] images, or [B, T, K] of uint8[B, T + 1] characters: the program that is
    evaluated, and the one that is exported.

    It is compiled alone, as the exported one is: with losses in it, it might have other bits.
    """
    inputs, _ = task.in_evaluation(examples, None)
    return nnx.merge(graph, variables)(inputs).astype(jnp.float32)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _compare(
    task: Task, loss: str, logits: jax.Array, examples: jax.Array, labels: Any, mask: jax.Array
) -> dict[str, jax.Array]:
    """By name losses and metrics of all targets, 0 where the example is masked; and of how many of the others the right
    class is first, is among five, and how many they are.
    """
    _, targets = task.in_evaluation(examples, labels)
    present = jnp.broadcast_to(jnp.expand_dims(mask, tuple(range(1, targets.ndim))), targets.shape)
    _, best = jax.lax.top_k(logits, min(5, logits.shape[-1]))
    right = (best == targets[..., None]) & present[..., None]
    losses = {name: jnp.where(present, each, 0.0) for name, each in compare(loss, logits, targets).items()}
    own = {f"metrics/{name}": each for name, each in losses.items() if name != "loss"}
    counts = {"precision_at_1": jnp.sum(right[..., 0]), "recall_at_5": jnp.sum(right), "num_examples": jnp.sum(present)}
    return {"loss": losses["loss"]} | counts | own
