"""Where one scale ends and the next begins: the tensors of a bucket and their blocks."""

import dataclasses

import jax
import jax.numpy as jnp

from . import radix as radix_lib


@dataclasses.dataclass(frozen=True)
class Segments:
    """The static layout of a bucket, a flat vector of whole tensors one after another.

    Every tensor has one scale, or with `block_size` one for each run of that many elements (the last may be shorter).
    Every tensor's digits start a new word, so tensors never share one.

    Attributes:
      sizes: elements of each tensor.
      block_size: elements under one scale; None: the whole tensor.
    """

    sizes: tuple[int, ...]
    block_size: int | None = None

    def __post_init__(self):
        for size in self.sizes:
            if not isinstance(size, int) or size < 0:
                raise ValueError(f"sizes={self.sizes!r}: must be integers of 0 or more")
        is_integer = isinstance(self.block_size, int) and not isinstance(self.block_size, bool)
        if self.block_size is not None and not (is_integer and self.block_size >= 1):
            raise ValueError(f"block_size={self.block_size!r}: must be None or an integer of 1 or more")

    @property
    def num_elements(self) -> int:
        return sum(self.sizes)

    @property
    def scale_counts(self) -> tuple[int, ...]:
        """Scales of each tensor."""
        if self.block_size is None:
            return tuple(min(size, 1) for size in self.sizes)
        return tuple(-(-size // self.block_size) for size in self.sizes)

    @property
    def num_scales(self) -> int:
        return sum(self.scale_counts)

    def word_counts(self, radix: int) -> tuple[int, ...]:
        """Words of each tensor under `radix`."""
        return tuple(radix_lib.num_words(size, radix) for size in self.sizes)

    def num_words(self, radix: int) -> int:
        return sum(self.word_counts(radix))

    def per_element(self, scales: jax.Array, size: int) -> jax.Array:
        """A tensor's scales, shaped to multiply its `size` elements: a scalar, or one for each element."""
        if self.block_size is None:
            return scales.reshape(())
        return jnp.broadcast_to(scales[:, None], (scales.size, self.block_size)).reshape(-1)[:size]


def split(flat: jax.Array, counts: tuple[int, ...]) -> list[jax.Array]:
    """Consecutive slices of the last axis, `counts` long."""
    parts, start = [], 0
    for count in counts:
        parts.append(flat[..., start : start + count])
        start += count
    return parts
