"""Picks the implementation that an op runs, and checks arguments for all ops."""

import functools
import logging
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .native import library as native_library
from .segments import Segments

IMPLEMENTATIONS = ("auto", "reference", "native", "mosaic")
MIN_JAX = (0, 11)
MIN_CAPABILITY = 9.0  # of NVIDIA GPUs; below, Mosaic's compiler aborts the process

MAX_SIZE = 2**30  # elements of an array, as the kernels count places in int32, up to a tile beyond the end

_logger = logging.getLogger(__name__)


def pick_implementation(op: str, implementation: str, size: int, not_native: str = "") -> str:
    """Picks "reference" (plain jnp, for any device), "native" (C, for CPUs) or "mosaic" (for NVIDIA GPUs).

    "auto" picks Mosaic if the program is for an NVIDIA GPU of compute capability 9.0 or more, JAX is 0.11 or newer, and
    arrays have at most 2^30 elements. It picks native if the program is for a CPU, there is a C compiler, and the op
    gives no reason against it, `not_native`. Otherwise, and for `size` 0, it picks the reference.

    Raises:
      ValueError: for an unknown name, and for "mosaic" and "native" if they cannot run.
    """
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"{op}: implementation={implementation!r}: must be one of {', '.join(IMPLEMENTATIONS)}")
    if implementation == "reference" or not size:
        return "reference"
    platform = device().platform
    wanted = implementation if implementation != "auto" else "native" if platform == "cpu" else "mosaic"
    if wanted == "native":
        reason = not_native or why_not_native()
    else:
        reason = why_not_mosaic() or (f"{size} numbers are more than 2^30" if size > MAX_SIZE else "")
    if reason and implementation != "auto":
        raise ValueError(f"{op}: implementation={implementation!r}: {reason}")
    if wanted == "mosaic" or not not_native:
        # Users should know of a missing compiler and of what runs on a GPU; elsewhere nobody expects kernels.
        level = logging.INFO if platform == "gpu" or (wanted == "native" and reason) else logging.DEBUG
        log_once(level, f"kernels: reference, as {reason}" if reason else f"kernels: {wanted}")
    return "reference" if reason else wanted


def device() -> Any:
    """A device of the program being traced: one of its mesh, or else the default device."""
    described = getattr(jax.sharding.get_abstract_mesh(), "abstract_device", None)
    if described is None:
        default: Any = jax.config.jax_default_device
        return default if isinstance(default, jax.Device) else jax.devices(default)[0]
    try:
        here = jax.devices(described.platform)
    except RuntimeError:  # the program is compiled on another machine than it runs on
        return described
    return next((each for each in here if each.device_kind == described.device_kind), described)


def why_not_mosaic() -> str:
    """Why Mosaic kernels cannot run in the program that is traced; "" if they can."""
    own = device()
    capability = getattr(own, "compute_capability", None)
    if own.platform != "gpu" or capability is None or not re.fullmatch(r"\d+\.\d+", capability):
        return f"the device is {own.device_kind!r}, no NVIDIA GPU"
    if float(capability) < MIN_CAPABILITY:
        return f"{own.device_kind} has compute capability {capability}, below {MIN_CAPABILITY}"
    if jax.__version_info__ < MIN_JAX:
        return f"JAX is {jax.__version__}, older than {'.'.join(map(str, MIN_JAX))}"
    return ""


def why_not_native() -> str:
    """Why C cannot run in the program that is traced; "" if it can. The first call may run a compiler."""
    own = device()
    return f"the device is {own.device_kind!r}, no CPU" if own.platform != "cpu" else native_library.why_not_native()


@functools.cache
def log_once(level: int, message: str) -> None:
    _logger.log(level, message)


def why_not_float32(name: str, dtype: jnp.dtype) -> str:
    """Why native cannot take an array of this dtype; "" if it can."""
    return "" if dtype == jnp.float32 else f"{name}={dtype} is not float32"


def require_floating(gradient: jax.Array, segments: Segments) -> None:
    """Refuses anything but a floating-point vector of the layout's length."""
    if not jnp.issubdtype(gradient.dtype, jnp.floating):
        raise ValueError(f"gradient.dtype={gradient.dtype}: must be a floating-point type")
    if gradient.shape != (segments.num_elements,):
        raise ValueError(f"gradient.shape={gradient.shape}: the segments hold ({segments.num_elements},) elements")


def require_tensors(tensors: Sequence[jax.Array], segments: Segments, start: int = 0, size: int | None = None) -> None:
    """Refuses tensors that are not float32 or do not fit the layout, and a span outside their elements."""
    sizes = tuple(each.size for each in tensors)
    if sizes != segments.sizes:
        raise ValueError(f"tensors of {sizes} elements: the segments hold {segments.sizes}")
    for each in tensors:
        require_shape("tensor", each, each.shape, jnp.float32)
    end = segments.num_elements if size is None else start + size
    if not 0 <= start <= end <= segments.num_elements:
        raise ValueError(f"start={start}, size={size}: must lie within {segments.num_elements} elements")


def require_shape(name: str, array: jax.Array, shape: tuple[int, ...], dtype) -> None:
    """Refuses an array of another shape or dtype."""
    if array.shape != shape or array.dtype != dtype:
        raise ValueError(f"{name} is {array.dtype}{list(array.shape)}: must be {jnp.dtype(dtype)}{list(shape)}")


def require_levels(levels: int, radix: int, num_workers: int) -> None:
    """Refuses a radix too small for the summed digits of `num_workers` workers."""
    if not isinstance(levels, int) or levels < 1:
        raise ValueError(f"levels={levels!r}: must be an integer of 1 or more")
    if not isinstance(num_workers, int) or num_workers < 1:
        raise ValueError(f"num_workers={num_workers!r}: must be an integer of 1 or more")
    if radix < (least := 2 * levels * num_workers + 1):
        raise ValueError(f"radix={radix}: {num_workers} workers of {levels} levels a side need {least} or more")
