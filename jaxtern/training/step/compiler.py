"""How XLA compiles the training step."""

import functools
import logging
import os
from typing import Any

import jax

from jaxtern.kernels.native import library

_FUSIONS = "xla_cpu_experimental_ynn_fusion_type"
_ALL_BUT_CONVOLUTIONS = "LIBRARY_FUSION_TYPE_DOT,LIBRARY_FUSION_TYPE_REDUCE"

_logger = logging.getLogger(__name__)


def keep_programs() -> None:
    """Has JAX keep compiled programs in the user's cache for the next start, unless told otherwise by its variables."""
    config: Any = jax.config
    if config.jax_compilation_cache_dir or not config.jax_enable_compilation_cache:
        return
    try:
        jax.config.update("jax_compilation_cache_dir", str(library.programs_folder()))
    except (library.CannotBuild, OSError) as error:
        _logger.info("compiled programs are not kept: %s", error)


@functools.cache
def step_options(platform: str) -> dict[str, Any] | None:
    """Options of `jax.jit` for the training step on "cpu" or "gpu"; None if there is nothing to set.

    On CPUs, convolutions go to Eigen, as gradients of YNN's take up to twice as long (docs/benchmarks.md). Products and
    sums stay with YNN, so their bits are those of the defaults. XLA_FLAGS takes precedence.
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
