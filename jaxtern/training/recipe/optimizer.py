"""The section `optimizer` of a recipe."""

import dataclasses
import itertools
from typing import Annotated, Literal

from jaxtern.training.recipe.field_types import Natural, NonNegative, Pattern, Positive, Section, Share, between
from jaxtern.training.recipe.rates import parse_rates

OVER_ALL_STEPS = ("polynomial", "cosine")  # schedules whose rates depend on run.num_steps
SCHEDULES = ("fixed", "exponential", "piecewise", *OVER_ALL_STEPS)


@dataclasses.dataclass(frozen=True)
class OptimizerSection(Section):
    """The optimiser, and its learning rates.

    Attributes:
      name: "sgd", "momentum", "nesterov", "adam", "adamw", "rmsprop", "lars", "lamb" or "muon".
      momentum: momentum of "momentum", "nesterov", "lars" and "muon", whose author has 0.95.
      trust_coefficient: trust coefficient of "lars".
      beta1: decay of the mean of gradients, for "adam", "adamw", "lamb" and "muon".
      beta2: decay of the mean of their squares, likewise.
      rms_decay: decay of the mean of squares, for "rmsprop".
      epsilon: added to the root of that mean; for "rmsprop" under the root. None: 1e-8, "lamb" 1e-6, "rmsprop" 1.
      learning_rate: first learning rate.
      rate_batch_size: batch size for which rates are meant; they are multiplied by batch_size / rate_batch_size. None:
        not multiplied.
      schedule: "fixed", "exponential" (a staircase), "piecewise", "polynomial" or "cosine" (both to `end_rate` after
        the last step); or rates over epochs instead of `learning_rate`: "5:0.01->0.4,30:0.4,60:0.04" rises to 0.4 in 5
        epochs ("->" linearly, "=>" exponentially), stays there until epoch 30, and is 0.04 from then on.
      decay_epochs: epochs between the stairs of "exponential".
      boundaries: epochs at which "piecewise" has its stairs.
      decay_factor: factor by which each stair multiplies the rate.
      power: power in "polynomial": rate (1 - t/T)^power.
      end_rate: rate at the end of "polynomial" and "cosine".
      warmup_steps: steps in which the rate rises linearly from `warmup_rate` to `warmup_peak`; a run may end before.
      warmup_rate: rate at step 0 of the warm-up.
      warmup_peak: rate at the end of the warm-up; None: the schedule's, or `learning_rate` if the run ends before.
      weight_decay: weight decay (L2).
      weight_decay_mode: "loss": weight_decay * sum(w^2) / 2 is part of each worker's loss, and so compressed;
        "decoupled": weights lose rate * weight_decay * w. "adamw", "lars", "lamb" and "muon" decay by themselves.
      decay: regular expressions; a tensor whose whole path matches one is decayed; (): the network's own.
    """

    name: Literal["sgd", "momentum", "nesterov", "adam", "adamw", "rmsprop", "lars", "lamb", "muon"] = "momentum"
    momentum: Share = 0.9
    trust_coefficient: NonNegative = 0.001
    beta1: Share = 0.9
    beta2: Share = 0.999
    rms_decay: Share = 0.9
    epsilon: Annotated[float, between(1e-30)] | None = None
    learning_rate: NonNegative = 0.01
    rate_batch_size: Positive | None = None
    schedule: str = "fixed"
    decay_epochs: Annotated[float, between(1e-9)] = 20.0
    boundaries: tuple[float, ...] = ()
    decay_factor: NonNegative = 0.1
    power: NonNegative = 0.5
    end_rate: NonNegative = 0.0
    warmup_steps: Natural = 0
    warmup_rate: NonNegative = 0.0
    warmup_peak: NonNegative | None = None
    weight_decay: NonNegative = 0.0
    weight_decay_mode: Literal["loss", "decoupled"] = "loss"
    decay: tuple[Pattern, ...] = ()

    def __post_init__(self):
        """Also refuses rates that cannot be read, and boundaries that do not rise."""
        super().__post_init__()
        is_known = bool(parse_rates(self.schedule)) if ":" in self.schedule else self.schedule in SCHEDULES
        self.require(is_known, "schedule", f"must be one of {', '.join(SCHEDULES)}, or rates over epochs")
        has_stairs = bool(self.boundaries) or self.schedule != "piecewise"
        self.require(has_stairs, "boundaries", "must hold an epoch or more where schedule='piecewise'")
        rises = all(epoch > before for before, epoch in itertools.pairwise((0, *self.boundaries)))
        self.require(rises, "boundaries", "must be epochs that rise from above 0")
