"""The section `optimizer` of a recipe."""

import dataclasses
import itertools
from typing import Annotated, Literal

from jaxtern.training.recipe.field_types import Natural, NonNegative, Pattern, Positive, Section, Share, between
from jaxtern.training.recipe.rates import is_rate_string, parse_rates

OVER_ALL_STEPS = ("polynomial", "cosine")  # schedules whose rates depend on run.num_steps
SCHEDULES = ("fixed", "exponential", "piecewise", *OVER_ALL_STEPS)


@dataclasses.dataclass(frozen=True)
class OptimizerSection(Section):
    """How the mean of the gradients moves the weights, and at which rate.

    Attributes:
      name: "sgd", "momentum", "nesterov", "adam", "adamw", "rmsprop", "lars" or "lamb".
      momentum: of "momentum", "nesterov" and "lars".
      trust_coefficient: of "lars".
      beta1: decay of the mean of gradients of "adam", "adamw" and "lamb".
      beta2: decay of the mean of their squares, likewise.
      rms_decay: of "rmsprop".
      epsilon: added to the root of that mean, or under it of "rmsprop"; None: 1e-8, of "lamb" 1e-6, of "rmsprop" 1.
      learning_rate: at the start.
      rate_batch_size: the batch that the rate is meant for: it is times batch_size / rate_batch_size; None: for any.
      schedule: "fixed", "exponential" (a staircase), "piecewise", "polynomial" or "cosine" (both to `end_rate` at the
        last step); or rates over epochs, in place of `learning_rate`: "5:0.01->0.4,30:0.4,60:0.04" rises to .4 in 5
        epochs ("->" linearly, "=>" exponentially), stays there until epoch 30, then is .04 (from 60 on, too).
      decay_epochs: epochs between the stairs of "exponential".
      boundaries: epochs at which "piecewise" has its stairs.
      decay_factor: by which each stair multiplies the rate.
      power: of "polynomial": rate (1 - t/T)^power.
      end_rate: of "polynomial" and "cosine".
      warmup_steps: in which the rate rises linearly from `warmup_rate` to `warmup_peak`; a run may end before.
      warmup_rate: rate at step 0 of the warm-up.
      warmup_peak: rate that it rises to; None: what the schedule has behind it, or `learning_rate` if the run ends.
      weight_decay: factor of L2 over what is decayed.
      weight_decay_mode: "loss": weight_decay * sum(w^2) / 2 is part of every worker's loss, so of what is compressed;
        "decoupled": rate * weight_decay * w is taken off the weights. "adamw", "lars" and "lamb" decay by themselves.
      decay: regular expressions; a tensor whose whole path matches one is decayed; none: as the network has it.
    """

    name: Literal["sgd", "momentum", "nesterov", "adam", "adamw", "rmsprop", "lars", "lamb"] = "momentum"
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
        """Refuses also rates that cannot be read, and stairs that do not rise."""
        super().__post_init__()
        if is_rate_string(self.schedule):
            parse_rates(self.schedule)
        is_known = is_rate_string(self.schedule) or self.schedule in SCHEDULES
        self.require(is_known, "schedule", f"must be one of {', '.join(SCHEDULES)}, or rates over epochs")
        has_stairs = bool(self.boundaries) or self.schedule != "piecewise"
        self.require(has_stairs, "boundaries", "must hold an epoch or more where schedule='piecewise'")
        rises = all(epoch > before for before, epoch in itertools.pairwise((0, *self.boundaries)))
        self.require(rises, "boundaries", "must be epochs that rise from above 0")
