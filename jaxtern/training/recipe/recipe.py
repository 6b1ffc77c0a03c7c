"""A recipe: its sections, and the rules between them."""

import dataclasses
import difflib
import functools
import json
from typing import Any

from jaxtern.training.recipe.data import DataSection
from jaxtern.training.recipe.local import LocalSection
from jaxtern.training.recipe.mean import MeanSection
from jaxtern.training.recipe.model import ModelSection
from jaxtern.training.recipe.optimizer import OptimizerSection
from jaxtern.training.recipe.run import RunSection


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The settings of a run, in sections. `configs/` has recipes; a command line may override any field."""

    data: DataSection = dataclasses.field(default_factory=DataSection)
    model: ModelSection = dataclasses.field(default_factory=ModelSection)
    mean: MeanSection = dataclasses.field(default_factory=MeanSection)
    local: LocalSection = dataclasses.field(default_factory=LocalSection)
    optimizer: OptimizerSection = dataclasses.field(default_factory=OptimizerSection)
    run: RunSection = dataclasses.field(default_factory=RunSection)

    def __post_init__(self):
        """Raises ValueError for sections that do not fit each other."""
        run, fast = self.run, self.mean.worker_devices
        of_device = run.batch_size // run.num_workers // fast
        need = f"each worker's part must be a multiple of mean.devices_per_worker={fast}"
        run.require(run.batch_size // run.num_workers % fast == 0, "batch_size", need)
        need = f"must divide the {of_device} examples that a device has of a batch"
        run.require(of_device % run.accumulation == 0, "accumulation", need)
        need = "must be another where mean.delayed=True, whose means come in steps that others' overflow may skip"
        self.model.require(not (self.mean.delayed and self.model.precision == "float16"), "precision", need)
        where = f"where mean.method={self.mean.method!r}, which has the momentum"
        if self.mean.has_momentum and self.local.steps:  # the optimiser behind the mean is the outer one
            self.local.require(not self.local.outer_momentum, "outer_momentum", f"must be 0 {where}")
        elif self.mean.has_momentum:
            has_two = self.optimizer.name in ("momentum", "nesterov", "lars", "muon")
            self.optimizer.require(not has_two, "name", f"must be another, as sgd, {where}")
        if self.local.steps:
            self._require_local_steps()

    def _require_local_steps(self) -> None:
        """Raises ValueError for fields that need an exchange in every step."""
        where = f"where local.steps={self.local.steps}, as workers exchange nothing in between"
        total, steps = self.run.num_steps, self.local.steps
        need = f"must divide run.num_steps={total}, as {_nearest_divisors(total, steps)} would"
        self.local.require(total % steps == 0, "steps", need)
        self.model.require(self.model.precision != "float16", "precision", f"must be another {where}")
        self.model.require(self.model.batch_norm == "local", "batch_norm", f"must be 'local' {where}")
        self.run.require(self.run.virtual_workers == "unrolled", "virtual_workers", f"must be 'unrolled' {where}")
        self.run.require(self.run.histograms_every == 0, "histograms_every", f"must be 0 {where}")
        self.mean.require(not self.mean.statistics, "statistics", f"must be False {where}")
        self.mean.require(not self.mean.delayed, "delayed", f"must be False {where}; local.delay is for them")

    @classmethod
    def from_dict(cls, values: dict[str, dict[str, Any]]) -> "Recipe":
        """Makes a recipe of fields by section, with defaults for the others; raises ValueError for bad ones."""
        for section, fields in values.items():
            named = isinstance(fields, dict) and (fields or section in cls.__dataclass_fields__)
            for name in [f"{section}.{field}" for field in fields] if named else [section]:
                _require_field(str(name))
        return cls().replace(**values)

    def replace(self, **sections: dict[str, Any]) -> "Recipe":
        """The recipe with other values, such as replace(mean={"method": "float"}); a list may stand for a tuple."""
        changed = {}
        for section, fields in sections.items():
            values = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
            changed[section] = dataclasses.replace(getattr(self, section), **values)
        return dataclasses.replace(self, **changed)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """The fields by section, as in JSON."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    def by_name(self) -> dict[str, Any]:
        """The fields by full name, "run.num_workers", as in JSON."""
        return {f"{name}.{field}": value for name, own in self.to_dict().items() for field, value in own.items()}


def _nearest_divisors(total: int, number: int) -> str:
    """The divisors of `total` nearest to a `number` that is not one, below and above: "25 and 40"."""
    below = next(each for each in range(min(number, total), 0, -1) if total % each == 0)
    above = next((each for each in range(number, min(total, 10 * number)) if total % each == 0), total)
    return " and ".join(map(str, sorted({below, above})))


@functools.cache
def _require_field(name: str) -> None:
    """Raises ValueError, with similar names, for anything but a field with its section, "run.num_workers"."""
    known = list(Recipe().by_name())
    if name not in known:
        # fields of the same name in other sections, else of similar names
        leaf = name.rpartition(".")[2]
        near = [each for each in known if each.partition(".")[2] == leaf] or difflib.get_close_matches(name[:80], known)
        hint = f"; nearest: {', '.join(near)}" if near else ""
        raise ValueError(f"{name!r} is no field of a recipe{hint} (--help names all)")
