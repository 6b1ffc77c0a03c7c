"""The section `local` of a recipe."""

import dataclasses
from typing import Annotated, Any

from jaxtern.compression.fragments import as_timing
from jaxtern.training.recipe.field_types import Natural, NonNegative, Positive, Section, Share, between


@dataclasses.dataclass(frozen=True)
class LocalSection(Section):
    """Local steps (DiLoCo, local SGD): workers train by themselves and exchange weight changes, compressed by `mean`.

    Attributes:
      steps: H, steps from one exchange of weight changes to the next; 0: gradients are exchanged in every step.
      outer_rate: rate at which the mean of the changes moves the shared weights.
      outer_momentum: Nesterov momentum of these moves; 0 with outer_rate 1 is local SGD.
      fragments: parts of the network that take turns, each exchanged every H steps.
      delay: steps between sending a fragment and merging its mean, below steps / fragments; 1 or more hides the wire.
      mixing: share of its own weights that a worker keeps when it merges.
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

    @property
    def exchanged(self) -> str:
        """What workers exchange, in words."""
        return f"weight changes every {self.steps} steps" if self.steps else "gradients"

    @property
    def report_options(self) -> dict[str, Any]:
        """Arguments of `wire_report`."""
        return {"local_steps": self.steps or 1, "fragments": self.fragments if self.steps else 1}
