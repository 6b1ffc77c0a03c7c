"""What the study compares: methods and optimisers, as fields of a recipe."""

from typing import Any, NamedTuple

from jaxtern.training.recipe.optimizer import OptimizerSection

_EPOCHS = (0.25, 0.0625, 0.015625, 0.004)  # densities of DGC's first epochs


class Method(NamedTuple):
    label: str  # in tables and plots
    fields: dict[str, Any]  # of the recipe


def _dgc(label: str, density: float) -> Method:
    warmup = (*(each for each in _EPOCHS if each > density), density)
    fields = {"method": "dgc", "density": density, "density_warmup": warmup, "sampled": True}
    return Method(label, {f"mean.{name}": value for name, value in fields.items()})


def _local(label: str, steps: int, method: str = "ternary", **own: float) -> Method:
    local = {f"local.{name}": value for name, value in {"steps": steps, **own}.items()}
    return Method(label, {"mean.method": method} | local)


def _with_feedback(method: Method) -> Method:
    return Method(f"{method.label}, feedback", method.fields | {"mean.error_feedback": True})


_OUTER = _local("local steps, 30, outer .9, .8", 30, outer_rate=0.9, outer_momentum=0.8)
_FAST = _local("local steps, 30, outer 1, .7", 30, outer_rate=1.0, outer_momentum=0.7)
_FAST_TWO_WAY = Method(f"{_FAST.label}, two ways", _FAST.fields | {"mean.exchange": "two_way"})
METHODS = {
    "float": Method("float", {"mean.method": "float"}),
    "ternary": Method("ternary", {"mean.method": "ternary"}),
    "terngrad": Method("TernGrad, c = 2.5", {"mean.method": "terngrad"}),
    "quantized_5": Method("5 levels", {"mean.method": "quantized", "mean.levels": 2}),
    "quantized_7": Method("7 levels", {"mean.method": "quantized", "mean.levels": 3}),
    "quantized_15": Method("15 levels", {"mean.method": "quantized", "mean.levels": 7}),
    "two_way": Method("ternary, two ways", {"mean.method": "ternary", "mean.exchange": "two_way"}),
    "sign": Method("signs", {"mean.method": "sign"}),
    "low_rank_1": Method("low rank 1", {"mean.method": "low_rank", "mean.rank": 1}),
    "low_rank_2": Method("low rank 2", {"mean.method": "low_rank", "mean.rank": 2}),
    "low_rank_4": Method("low rank 4", {"mean.method": "low_rank", "mean.rank": 4}),
    "dgc_1": _dgc("DGC, 1 %", 0.01),
    "dgc_0.1": _dgc("DGC, 0.1 %", 0.001),
    "local_10": _local("local steps, 10", 10),
    "local_30": _local("local steps, 30", 30),
    "local_30_outer": _OUTER,
    "local_30_outer_feedback": _with_feedback(_OUTER),
    "local_30_fast": _FAST,
    "local_30_fast_feedback": _with_feedback(_FAST),
    "local_30_fast_two_way": _FAST_TWO_WAY,
    "local_30_fast_two_way_feedback": _with_feedback(_FAST_TWO_WAY),
    "local_100": _local("local steps, 100", 100),
    "local_float_30": _local("local steps, 30, float", 30, "float"),
    "streaming_30": _local("local steps, 30, 3 fragments", 30, fragments=3, delay=1),
}
OPTIMIZERS = {
    "recipe": {},
    "momentum": {"optimizer.name": "momentum", "optimizer.learning_rate": 0.02},
    "adam": {"optimizer.name": "adam", "optimizer.learning_rate": 0.001},
}


def fields_of(method: str, optimizer: OptimizerSection) -> dict[str, Any]:
    """Of a run by that optimiser. DGC takes momentum over from it, as each worker's own; beside Adam it has none."""
    fields = dict(METHODS[method].fields)
    if method.startswith("dgc"):
        fields["mean.momentum"] = optimizer.momentum if optimizer.name == "momentum" else 0.0
        if optimizer.name == "momentum":
            fields["optimizer.name"] = "sgd"
    return fields
