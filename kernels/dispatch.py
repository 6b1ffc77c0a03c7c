"""What every op checks, and which implementation it runs."""

import jax
import jax.numpy as jnp

from .segments import Segments

IMPLEMENTATIONS = ("auto", "reference")


def pick_implementation(op: str, implementation: str) -> str:
    """The implementation that runs; "auto" is the jnp reference, which XLA compiles for any device."""
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"{op}: implementation={implementation!r}: must be one of {', '.join(IMPLEMENTATIONS)}")
    return "reference"


def require_floating(gradient: jax.Array, segments: Segments) -> None:
    """Refuses what is not a floating-point vector of the layout's length."""
    if not jnp.issubdtype(gradient.dtype, jnp.floating):
        raise ValueError(f"gradient.dtype={gradient.dtype}: must be a floating-point type")
    if gradient.shape != (segments.num_elements,):
        raise ValueError(f"gradient.shape={gradient.shape}: the segments hold ({segments.num_elements},) elements")


def require_shape(name: str, array: jax.Array, shape: tuple[int, ...], dtype) -> None:
    """Refuses an array of another shape or dtype."""
    if array.shape != shape or array.dtype != dtype:
        raise ValueError(f"{name} is {array.dtype}{list(array.shape)}: must be {jnp.dtype(dtype)}{list(shape)}")


def require_levels(levels: int, radix: int, num_workers: int) -> None:
    """Refuses a radix that the digits of `num_workers` workers would overflow."""
    if not isinstance(levels, int) or levels < 1:
        raise ValueError(f"levels={levels!r}: must be an integer of 1 or more")
    if not isinstance(num_workers, int) or num_workers < 1:
        raise ValueError(f"num_workers={num_workers!r}: must be an integer of 1 or more")
    if radix < 2 * levels * num_workers + 1:
        raise ValueError(
            f"radix={radix}: {num_workers} workers of {levels} levels a side need"
            f" {2 * levels * num_workers + 1} or more"
        )
