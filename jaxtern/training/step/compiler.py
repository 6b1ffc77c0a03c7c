"""How XLA compiles the training step."""

import functools
import logging
import os
from typing import Any

import jax

_FUSIONS = "xla_cpu_experimental_ynn_fusion_type"
_ALL_BUT_CONVOLUTIONS = "LIBRARY_FUSION_TYPE_DOT,LIBRARY_FUSION_TYPE_REDUCE"

_logger = logging.getLogger(__name__)


@functools.cache
def step_options(platform: str) -> dict[str, Any] | None:
    """Options of `jax.jit` for the training step on "cpu" or "gpu".

    On CPUs convolutions are left to Eigen: XLA hands them to YNN, whose gradients take up to twice as long (the figures
    are in docs/benchmarks.md). YNN keeps products and sums: they have the bits of the defaults then, and the same ones
    however many workers share a program. None where there is nothing to set: on other backends, where XLA_FLAGS sets
    it, and for an XLA that does not know the option.
    """
    if platform != "cpu" or _FUSIONS in os.environ.get("XLA_FLAGS", ""):
        return None
    options = {_FUSIONS: _ALL_BUT_CONVOLUTIONS}
    try:
        jax.jit(lambda x: x, compiler_options=options).lower(0.0).compile()
    except jax.errors.JaxRuntimeError as error:
        _logger.info("XLA compiles the step by its defaults: %s", str(error).splitlines()[0])
        return None
    return options
