"""The section `mean` of a recipe."""

import dataclasses
from typing import Literal

from jaxtern.compression.buckets import BUCKET_SIZE
from jaxtern.compression.codecs import Ternary
from jaxtern.compression.cost import Network
from jaxtern.training.recipe.field_types import Natural, Pattern, Positive, Section


@dataclasses.dataclass(frozen=True)
class MeanSection(Section):
    """How the workers' gradients become their mean.

    Attributes:
      method: "ternary", or "float" for a plain mean.
      exchange: "auto" (fastest exact one), "gather", "sum", "scatter", "two_way" (fewest bits, more noise) or "float".
      float_epochs: F: every F-th epoch exchanges float gradients; 0: none does.
      compress_from: step from which on gradients are compressed; before, they are float.
      devices_per_worker: devices that share a worker's batch, whose gradients are averaged as floats first. None: 1, or
        where each of several processes has more devices than workers, as many as share one evenly.
      bucket_size: elements of the buckets in which gradients are exchanged, the last layers' first; None: all in one.
      delayed: whether the weights move by the mean of the step before, which is exchanged beside this step's work.
      latency: seconds a message takes between workers, for "auto"; None: measured at the start.
      bandwidth: bytes a second that a worker can send, likewise.
      clip_sigmas: clip gradients at so many standard deviations of their tensor; 0: do not.
      scale: "exact" or "pow2".
      block_size: elements under one scale; None: a whole tensor.
      levels: levels a side; 1 is ternary.
      min_size: tensors with fewer elements stay float.
      float_last_layer: whether the last layer's gradients stay float.
      exclude: regular expressions; a tensor whose whole path ("conv1/kernel") matches one stays float.
      statistics: also log zero trits, scale, and cosine to the float mean; costs a float exchange a step.
    """

    method: Literal["ternary", "float"] = "ternary"
    exchange: str = "auto"
    float_epochs: Natural = 0
    compress_from: Natural = 0
    devices_per_worker: Positive | None = None
    bucket_size: Positive | None = BUCKET_SIZE
    delayed: bool = False
    latency: float | None = None
    bandwidth: float | None = None
    clip_sigmas: float = 2.5
    scale: str = "exact"
    block_size: int | None = None
    levels: int = 1
    min_size: Positive = 1
    float_last_layer: bool = False
    exclude: tuple[Pattern, ...] = ()
    statistics: bool = False

    def __post_init__(self):
        super().__post_init__()
        try:  # whether they are used or not
            create_codec(self)
            Network(**self.links)
        except ValueError as error:
            raise ValueError(f"mean.{error}") from None
        for name in ("statistics", "float_epochs", "compress_from") if self.delayed else ():
            need = f"must be {getattr(MeanSection, name)} where mean.delayed=True, whose means come a step late"
            self.require(not getattr(self, name), name, need)

    @property
    def worker_devices(self) -> int:
        """`devices_per_worker`, 1 where it is left open."""
        return self.devices_per_worker or 1

    @property
    def links(self) -> dict[str, float]:
        """`latency` and `bandwidth`, where they are given."""
        return {name: given for name in ("latency", "bandwidth") if (given := getattr(self, name)) is not None}


def create_codec(mean: MeanSection) -> Ternary:
    """The section's ternary codec."""
    return Ternary(clip_sigmas=mean.clip_sigmas, scale=mean.scale, block_size=mean.block_size, levels=mean.levels)
