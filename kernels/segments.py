"""The segments of a bucket: the tensors, or blocks of tensors, that share one scale."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from . import radix as radix_lib


@dataclasses.dataclass(frozen=True)
class Segments:
    """The static layout of a bucket, a flat vector of whole tensors in sequence.

    Every tensor has one scale, or with `block_size` one for every block of that many elements (the last may be
    shorter). The elements under one scale are a segment. Words hold the digits of the bucket across segments.
    """

    sizes: tuple[int, ...]  # elements of each tensor
    block_size: int | None = None  # elements under one scale; None: the whole tensor

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
    def num_runs(self) -> int:
        return -(-self.num_elements // radix_lib.RUN)

    @property
    def scale_counts(self) -> tuple[int, ...]:
        """Scales of each tensor."""
        if self.block_size is None:
            return tuple(min(size, 1) for size in self.sizes)
        return tuple(-(-size // self.block_size) for size in self.sizes)

    @property
    def num_scales(self) -> int:
        return sum(self.scale_counts)

    def num_words(self, radix: int) -> int:
        """The number of words of the bucket with this radix."""
        return radix_lib.num_words(self.num_elements, radix)

    def bounds(self) -> np.ndarray:
        """int64[num_scales + 1]: the first element of every segment, then the number of elements."""
        starts = itertools.accumulate(self.sizes, initial=0)
        step = self.block_size or max(self.sizes, default=1) or 1
        firsts = [np.arange(start, start + size, step) for start, size in zip(starts, self.sizes, strict=False)]
        return np.concatenate([*firsts, [self.num_elements]]).astype(np.int64)

    def spread(self, vector: jax.Array, factors: jax.Array) -> jax.Array:
        """Multiplies float[n] by the factor of each element's segment; factors are float32[num_scales]."""
        if self.num_scales == 1:
            return vector * factors[0]
        parts = []
        for part, own in zip(split(vector, self.sizes), split(factors, self.scale_counts), strict=True):
            if part.size:
                factor = own[0] if self.block_size is None else jnp.repeat(own, self.block_size)[: part.size]
                parts.append(part * factor)
        return jnp.concatenate(parts) if parts else vector


def split(flat: jax.Array, counts: tuple[int, ...]) -> list[jax.Array]:
    """Splits the last axis into consecutive slices of these lengths."""
    return jnp.split(flat, np.cumsum(counts, dtype=int), axis=-1)[:-1]


def fill_up(vector: jax.Array, multiple: int) -> jax.Array:
    """Pads the last axis with zeros to the next multiple."""
    missing = -vector.shape[-1] % multiple
    return jnp.pad(vector, [(0, 0)] * (vector.ndim - 1) + [(0, missing)]) if missing else vector
