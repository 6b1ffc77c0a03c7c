"""The section `local` of a recipe."""

import dataclasses
from typing import Annotated

from jaxtern.compression.fragments import as_timing
from jaxtern.training.recipe.field_types import Natural, NonNegative, Positive, Section, Share, between


@dataclasses.dataclass(frozen=True)
class LocalSection(Section):
    """Whether workers train by themselves between exchanges (DiLoCo, local SGD), which `mean` then compresses.

    Attributes:
      steps: H, steps of each worker alone from one exchange of its weights' changes to the next; 0: gradients are
        exchanged in every step.
      outer_rate: by which the mean of the changes moves the shared weights.
      outer_momentum: Nesterov's, of these moves; with 0 and a rate of 1 it is local SGD.
      fragments: parts of the network that take turns, each exchanged every H steps.
      delay: steps from sending a fragment to merging its mean, below steps / fragments; from 1 on beside computation.
      mixing: share of its own weights that a worker keeps at a merging.
    """

    steps: Natural = 0
    outer_rate: NonNegative = 0.7
    outer_momentum: Share = 0.9
    fragments: Positive = 1
    delay: Natural = 0
    mixing: Annotated[float, between(0, 1)] = 0.0

    def __post_init__(self):
        super().__post_init__()
        if self.steps:
            try:
                as_timing(self.steps, self.fragments, self.delay)
            except ValueError as error:
                raise ValueError(f"local.{error}") from None
