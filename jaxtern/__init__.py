"""Data-parallel training over slow networks: ternary gradients, exactly summed by ordinary collectives."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtern import cluster as cluster
    from jaxtern.compression.calibration import calibrate as calibrate
    from jaxtern.compression.codecs import Codec as Codec
    from jaxtern.compression.codecs import Ternary as Ternary
    from jaxtern.compression.cost import Network as Network
    from jaxtern.compression.report import WireReport as WireReport
    from jaxtern.compression.report import wire_report as wire_report
    from jaxtern.compression.transform import CompressedMeanState as CompressedMeanState
    from jaxtern.compression.transform import compressed_mean as compressed_mean
    from jaxtern.compression.transform import state_specs as state_specs
    from jaxtern.compression.transform import ternary_mean as ternary_mean

__version__ = "0.1.0"

_HOMES = {
    "calibrate": "calibration",
    "Codec": "codecs",
    "Ternary": "codecs",
    "Network": "cost",
    "WireReport": "report",
    "wire_report": "report",
    "CompressedMeanState": "transform",
    "compressed_mean": "transform",
    "state_specs": "transform",
    "ternary_mean": "transform",
}
_MODULES = ("cluster",)


def __getattr__(name: str) -> Any:
    """Public names are imported when they are asked for: what only predicts needs no optax, nor the time it takes."""
    if name in _MODULES:
        return importlib.import_module(f"jaxtern.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'jaxtern' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"jaxtern.compression.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_MODULES})
