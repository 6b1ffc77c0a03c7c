"""The section `mean` of a recipe: its own fields, and the options of all methods."""

import dataclasses
from typing import Any

from jaxtern.compression.methods import create_reducer, list_options
from jaxtern.compression.network.links import Network
from jaxtern.compression.reducer import Reducer
from jaxtern.training.recipe.field_types import Density, Natural, Pattern, Positive, Section


@dataclasses.dataclass(frozen=True)
class _MeanSection(Section):
    """The mean of the workers' gradients. Options that the method does not have are ignored.

    Attributes:
      method: "ternary", "terngrad", "quantized", "top_k", "dgc", "low_rank", "sign", or "float" for a plain mean.
      float_epochs: F: every F-th epoch exchanges float gradients, and keeps the method's state; 0: none does.
      compress_from: first step whose gradients are compressed; earlier ones are float.
      density_warmup: densities of the first epochs, one each, for a method with a density.
      devices_per_worker: devices that share a worker's batch, and first average their gradients as floats. None: 1, or
        if each of several processes has more devices than workers, as many as divide evenly.
      delayed: whether weights move by the mean of the step before, whose exchange runs beside this step's work.
      latency: seconds that a message takes between workers, for "auto"; None: measured at the start.
      bandwidth: bytes a second that a worker can send, for "auto"; None: measured at the start.
      min_size: tensors with fewer elements stay float.
      float_last_layer: whether the last layer's gradients stay float.
      exclude: regular expressions; a tensor whose whole path ("conv1/kernel") matches one stays float.
      statistics: whether to log share of zeros, error, and cosine to the float mean; costs a float exchange each step.
    """

    method: str = "ternary"
    float_epochs: Natural = 0
    compress_from: Natural = 0
    density_warmup: tuple[Density, ...] = ()
    devices_per_worker: Positive | None = None
    delayed: bool = False
    latency: float | None = None
    bandwidth: float | None = None
    min_size: Positive = 1
    float_last_layer: bool = False
    exclude: tuple[Pattern, ...] = ()
    statistics: bool = False

    def __post_init__(self):
        super().__post_init__()
        try:
            for number in range(self.num_phases):
                self.create_reducer(number)
            Network(**self.links)
        except ValueError as error:
            raise ValueError(f"mean.{error}") from None
        can_keep = self.method in ("float", *_OPTIONS["error_feedback"].methods)  # any recipe may be run as float
        need = f"must be False where mean.method={self.method!r}"
        self.require(can_keep or not getattr(self, "error_feedback", False), "error_feedback", need)
        has_density = self.method in ("float", *_OPTIONS["density"].methods)
        self.require(has_density or not self.density_warmup, "density_warmup", "must be () of a method without density")
        late = "where mean.delayed=True, whose means come a step late"
        self.require(not (self.delayed and self.statistics), "statistics", f"must be False {late}")
        for name in ("float_epochs", "compress_from"):
            self.require(not (self.delayed and getattr(self, name)), name, f"must be 0 {late}")
            need = f"must be 0 where mean.method={self.method!r}, whose momentum a float step would leave out"
            self.require(not (self.has_momentum and getattr(self, name)), name, need)

    @property
    def has_momentum(self) -> bool:
        """Whether the method has momentum, so that the optimiser must not."""
        return self.method in _OPTIONS["momentum"].methods

    @property
    def num_phases(self) -> int:
        """The number of compressed means that a run uses, one after another."""
        return len(self.density_warmup) + 1

    def create_reducer(self, phase: int = 0, network: Network | None = None) -> Reducer:
        """The reducer of a phase: 0 is the method's own, others are warm-up epochs, the last epoch first."""
        options = {name: getattr(self, name) for name, option in _OPTIONS.items() if self.method in option.methods}
        if phase:
            options["density"] = self.density_warmup[-phase]
        return create_reducer(self.method, network, **options)

    @property
    def worker_devices(self) -> int:
        """`devices_per_worker`, or 1 if it is None."""
        return self.devices_per_worker or 1

    @property
    def links(self) -> dict[str, float]:
        """`latency` and `bandwidth`, if given."""
        return {name: given for name in ("latency", "bandwidth") if (given := getattr(self, name)) is not None}

    @property
    def needs_links(self) -> bool:
        """Whether the method chooses its exchange by the links between workers."""
        return getattr(self, "exchange", None) == "auto" and self.method in _OPTIONS["exchange"].methods


_OPTIONS = list_options()
_FIELDS: list[Any] = [
    (name, option.kind, dataclasses.field(default=option.default)) for name, option in _OPTIONS.items()
]
_WithOptions: Any = dataclasses.make_dataclass("_WithOptions", _FIELDS, bases=(_MeanSection,), frozen=True)


class MeanSection(_WithOptions):
    __doc__ = (_MeanSection.__doc__ or "").rstrip() + "".join(
        f"\n      {name}: of {', '.join(option.methods)}: {option.meaning}" for name, option in _OPTIONS.items()
    )
