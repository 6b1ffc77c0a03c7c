"""Losses."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxtern.training import LOSSES
from jaxtern.training.recipe.model import ModelSection

CROSS_ENTROPY = "cross_entropy"


class LossError(ValueError):
    """A user's own loss returns something other than it must."""


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


def compute_losses(
    loss: str, logits: jax.Array, targets: jax.Array, label_smoothing: float = 0.0
) -> dict[str, jax.Array]:
    """Computes "loss" and metrics by name, float32[...], one number for each target.

    Args:
      loss: "cross_entropy" or one of `LOSSES`, which must return such a dict (else LossError).
      logits: float[..., K].
      targets: int32[...].
      label_smoothing: for the cross-entropy.
    """
    if loss == CROSS_ENTROPY:
        return {"loss": cross_entropy(logits, targets, label_smoothing)}
    given = LOSSES[loss](logits.astype(jnp.float32), targets)
    shapes = {name: jnp.shape(each) for name, each in given.items()} if isinstance(given, dict) else {}
    if "loss" not in shapes or any(shape != targets.shape for shape in shapes.values()):
        need = f"must give a dict with 'loss', all of the targets' shape {targets.shape}"
        raise LossError(f"model.loss={loss!r}: {need}, not {shapes or type(given).__name__}")
    return {name: jnp.asarray(each, jnp.float32) for name, each in given.items()}


def measure(
    model: ModelSection, outputs: Any, targets: jax.Array, auxiliary_weight: float = 0.0
) -> dict[str, jax.Array]:
    """Means over all targets of a network's training outputs, float32 scalars.

    Args:
      model: section of the recipe, which names the loss.
      outputs: float[..., K] logits; or a tuple of them and auxiliary logits of the same shape.
      targets: int32[...].
      auxiliary_weight: factor of the auxiliary logits' loss, which is added to the loss.

    Returns:
      "loss", and its parts by name ("loss/cross_entropy", "loss/auxiliary"); "accuracy", the share of targets with the
      highest logit; and the loss's own metrics ("metrics/NAME").
    """
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    own, *others = (compute_losses(model.loss, each, targets, model.label_smoothing) for each in outputs)
    measured = {f"metrics/{name}": jnp.mean(each) for name, each in own.items()}
    loss = measured[f"loss/{'smoothed_' * bool(model.label_smoothing)}{model.loss}"] = measured.pop("metrics/loss")
    auxiliary = [auxiliary_weight * jnp.mean(each["loss"]) for each in others]
    if auxiliary:
        measured["loss/auxiliary"] = sum(auxiliary, start=jnp.zeros(()))
    right = jnp.argmax(outputs[0].astype(jnp.float32), axis=-1) == targets
    return measured | {"loss": sum(auxiliary, start=loss), "accuracy": jnp.mean(right.astype(jnp.float32))}


def describe_loss(loss: float, parts: dict[str, float]) -> str:
    """Formats a loss and its parts: "0.4312 (cross entropy 0.3012, weight decay 0.1300)"; one part only by its name."""
    named = [f"{name.replace('_', ' ')}{f' {part:.4f}' * (len(parts) > 1)}" for name, part in parts.items()]
    return f"{loss:.4f} ({', '.join(named)})" if named else f"{loss:.4f}"
