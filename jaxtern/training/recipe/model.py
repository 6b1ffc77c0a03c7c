"""The section `model` of a recipe."""

import dataclasses
from typing import Annotated, Literal

from jaxtern.training import LOSSES
from jaxtern.training.recipe.field_types import Pattern, Section, Share, between, is_expression
from jaxtern.training.recipe.masks import split_slice


@dataclasses.dataclass(frozen=True)
class ModelSection(Section):
    """The network, its precision and loss, its first weights, and which of them are trained.

    Attributes:
      name: network, one of those that `jaxtern.models.MODELS` and docs/api.md list.
      dropout_rate: share of activations that are dropped in training; None: the network's own.
      batch_norm: moments that normalise in training: "local" (each worker's own; the moving ones are averaged over the
        workers), "first" (likewise, but the moving ones are worker 0's) or "sync" (those of all workers' examples).
      precision: dtype of activations and products, "float32", "bfloat16" or "float16"; weights are float32. "float16"
        scales the loss, and skips steps whose gradients overflow on any worker, which schedules do not count.
      loss_scale: first scale of the loss, for "float16".
      loss: "cross_entropy", or one of your own that the recipe's file puts into `jaxtern.training.LOSSES`.
      label_smoothing: share of the target that is spread over all classes.
      init_from: a run's folder, one of its checkpoints, or a .safetensors file of torchvision's weights to start from.
      init_exclude: regular expressions; a tensor whose whole path matches one starts fresh.
      init_allow_missing: whether tensors that `init_from` lacks start fresh, too.
      train_only: regular expressions; only tensors whose whole path ("fc3/kernel") matches one are trained.
      freeze: regular expressions; a tensor whose whole path matches one is not trained. "conv2/kernel[:, :, 29, 13]"
        freezes only a slice; a final class of characters that looks like a slice is put in parentheses, "(w[12])".
      average_decay: decay of moving averages of weights and moments, which are evaluated in place of the last ones; in
        step t, counted from 1, it is min(average_decay, (1 + t) / (10 + t)). 0: none are kept.
    """

    name: str = "lenet"
    dropout_rate: Share | None = None
    batch_norm: Literal["local", "first", "sync"] = "local"
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    loss_scale: Annotated[float, between(1)] = 2.0**15
    loss: str = "cross_entropy"
    label_smoothing: Share = 0.0
    init_from: str | None = None
    init_exclude: tuple[Pattern, ...] = ()
    init_allow_missing: bool = False
    train_only: tuple[Pattern, ...] = ()
    freeze: tuple[Annotated[str, lambda entry: is_expression(split_slice(entry)[0])], ...] = ()
    average_decay: Share = 0.0

    def __post_init__(self):
        super().__post_init__()
        known = ("cross_entropy", *LOSSES)
        self.require(self.loss in known, "loss", f"must be one of {', '.join(known)}")
        fits = self.loss == known[0] or not self.label_smoothing
        self.require(fits, "label_smoothing", f"must be 0 of {self.loss!r}")
