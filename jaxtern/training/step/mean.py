"""The mean that a recipe asks for, made, and what of it goes over the wire."""

from typing import Any

import optax

from jaxtern.compression.cost import Network
from jaxtern.compression.report import WireReport, wire_report
from jaxtern.compression.transform import compressed_mean
from jaxtern.training.recipe.mean import MeanSection, create_codec
from jaxtern.training.recipe.selection import matches
from jaxtern.training.step.mesh import DEVICE_AXIS, FAST_AXIS


def stays_float(mean: MeanSection, last_layer: str, path: str) -> bool:
    """Whether the recipe keeps a tensor's gradients float whatever its size."""
    in_last_layer = mean.float_last_layer and path.startswith(f"{last_layer}/")
    return in_last_layer or matches(mean.exclude, path)


def create_mean(
    mean: MeanSection, last_layer: str, virtual_workers: int, seed: int, network: Network | None = None
) -> optax.GradientTransformation:
    """The recipe's mean over devices with so many workers on each."""
    return compressed_mean(
        DEVICE_AXIS,
        fast_axis_name=FAST_AXIS if mean.worker_devices > 1 else None,
        delayed=mean.delayed,
        seed=seed,
        virtual_workers=virtual_workers,
        statistics=mean.statistics,
        **_options(mean, last_layer, network),
    )


def report_wire(
    mean: MeanSection, params: Any, last_layer: str, num_workers: int, network: Network | None
) -> WireReport:
    """What a worker sends in a step; a ValueError, if the exchange cannot carry so many."""
    options = _options(mean, last_layer, network)
    return wire_report(params, num_workers=num_workers, devices_per_worker=mean.worker_devices, **options)


def _options(mean: MeanSection, last_layer: str, network: Network | None) -> dict[str, Any]:
    """Arguments that the mean and its report have in common."""
    is_float = mean.method == "float"
    return {
        "codec": "float" if is_float else create_codec(mean),
        "exchange": "float" if is_float else mean.exchange,
        "min_size": mean.min_size,
        "exclude": lambda path: stays_float(mean, last_layer, path),
        "bucket_size": mean.bucket_size,
        "network": network,
    }
