"""Data-parallel training over slow networks: compressed gradients, the same bits on every worker."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtern import cluster as cluster
    from jaxtern.compression.dgc import dgc as dgc, momentum_correction as momentum_correction
    from jaxtern.compression.float_mean import float_mean as float_mean
    from jaxtern.compression.low_rank import low_rank as low_rank
    from jaxtern.compression.methods import METHODS as METHODS
    from jaxtern.compression.network.calibration import calibrate as calibrate
    from jaxtern.compression.network.links import Network as Network, Traffic as Traffic
    from jaxtern.compression.radix.reducer import quantized as quantized, ternary as ternary, terngrad as terngrad
    from jaxtern.compression.reducer import Group as Group, Layout as Layout, Reduced as Reduced
    from jaxtern.compression.reducer import Reducer as Reducer, State as State
    from jaxtern.compression.report import WireReport as WireReport, wire_report as wire_report
    from jaxtern.compression.sign import sign as sign
    from jaxtern.compression.top_k import top_k as top_k
    from jaxtern.compression.transform import CompressedMeanState as CompressedMeanState, state_specs as state_specs
    from jaxtern.compression.transform import compressed_mean as compressed_mean, ternary_mean as ternary_mean
    from jaxtern.compression.wrappers import delayed as delayed, error_feedback as error_feedback
    from jaxtern.compression.wrappers import hierarchical as hierarchical, partition as partition
    from jaxtern.local.local_steps import local_steps as local_steps

__version__ = "0.1.0"

_NAMES = {  # public names by their module
    "compression.dgc": ("dgc", "momentum_correction"),
    "compression.float_mean": ("float_mean",),
    "compression.low_rank": ("low_rank",),
    "compression.methods": ("METHODS",),
    "compression.network.calibration": ("calibrate",),
    "compression.network.links": ("Network", "Traffic"),
    "compression.radix.reducer": ("quantized", "ternary", "terngrad"),
    "compression.reducer": ("Group", "Layout", "Reduced", "Reducer", "State"),
    "compression.report": ("WireReport", "wire_report"),
    "compression.sign": ("sign",),
    "compression.top_k": ("top_k",),
    "compression.transform": ("CompressedMeanState", "compressed_mean", "state_specs", "ternary_mean"),
    "compression.wrappers": ("delayed", "error_feedback", "hierarchical", "partition"),
    "local.local_steps": ("local_steps",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so that prediction need not import optax."""
    if name == "cluster":
        return importlib.import_module("jaxtern.cluster")
    if name not in _HOMES:
        raise AttributeError(f"module 'jaxtern' has no attribute {name!r}")
    return getattr(importlib.import_module(f"jaxtern.{_HOMES[name]}"), name)


__all__ = ["cluster"]
__all__ += list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
