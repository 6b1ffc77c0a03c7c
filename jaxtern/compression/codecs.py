"""Codecs: a flat gradient to words and words to the mean."""

import dataclasses
import math
from typing import Protocol

import jax

from jaxtern.compression import scales as scales_lib
from jaxtern.kernels import Segments, ternary_decode, ternary_encode
from jaxtern.kernels.dispatch import IMPLEMENTATIONS
from jaxtern.kernels.radix import MAX_RADIX


class Codec(Protocol):
    """What an exchange needs of a codec.

    Scales go over the wire before the words: every worker computes its own, the elementwise maximum is shared, and all
    encode with the same. `num_added` is the number of workers whose words the exchange adds as integers: 1 when every
    worker's words arrive by themselves.
    """

    def local_scales(self, gradient: jax.Array, sizes: tuple[int, ...]) -> jax.Array:
        """float32[n] gradient of tensors of these `sizes` to this worker's float32 scales."""
        ...

    def encode(
        self, gradient: jax.Array, scales: jax.Array, key: jax.Array, sizes: tuple[int, ...], num_added: int
    ) -> jax.Array:
        """float32[n] gradient to uint32 words, which may be added over `num_added` workers."""
        ...

    def decode(
        self, words: jax.Array, scales: jax.Array, sizes: tuple[int, ...], num_added: int, num_workers: int
    ) -> jax.Array:
        """uint32[rows, words], each row the sum of `num_added` workers' words, to the float32[n] mean of all."""
        ...

    def can_add(self, num_workers: int) -> bool:
        """Whether the words of so many workers can be added."""
        ...

    def num_words(self, sizes: tuple[int, ...], num_added: int) -> int:
        """Words of 32 bits that one worker sends."""
        ...

    def num_scales(self, sizes: tuple[int, ...]) -> int:
        """Scales that one worker shares."""
        ...


@dataclasses.dataclass(frozen=True)
class Ternary:
    """Stochastic ternary digits {-1, 0, 1} times a shared scale (TernGrad, Wen et al. 2017), or L levels a side.

    Attributes:
      clip_sigmas: c: gradients are clipped at c standard deviations of their tensor; 0: not at all.
      scale: "exact", or "pow2" to round scales up to powers of two.
      block_size: elements under one scale; None: the whole tensor.
      levels: L, levels a side; 1 is ternary.
      implementation: of the kernels, "auto", "reference", "native" or "mosaic".
    """

    clip_sigmas: float = 2.5
    scale: str = "exact"
    block_size: int | None = None
    levels: int = 1
    implementation: str = "auto"

    def __post_init__(self):
        is_number = isinstance(self.clip_sigmas, int | float) and not isinstance(self.clip_sigmas, bool)
        if not (is_number and math.isfinite(self.clip_sigmas) and self.clip_sigmas >= 0):
            raise ValueError(f"clip_sigmas={self.clip_sigmas!r}: must be a finite number of 0 or more")
        if self.scale not in scales_lib.ROUNDINGS:
            raise ValueError(f"scale={self.scale!r}: must be one of {', '.join(scales_lib.ROUNDINGS)}")
        if isinstance(self.levels, bool) or not isinstance(self.levels, int) or not 1 <= self.levels <= 32767:
            raise ValueError(f"levels={self.levels!r}: must be an integer from 1 to 32767")
        if self.implementation not in IMPLEMENTATIONS:
            raise ValueError(f"implementation={self.implementation!r}: must be one of {', '.join(IMPLEMENTATIONS)}")
        self._segments(())  # checks block_size

    def _segments(self, sizes: tuple[int, ...]) -> Segments:
        return Segments(sizes, self.block_size)

    def radix(self, num_added: int) -> int:
        """2LN + 1, the smallest radix in which the digits of `num_added` workers add without a carry."""
        return 2 * self.levels * num_added + 1

    def local_scales(self, gradient: jax.Array, sizes: tuple[int, ...]) -> jax.Array:
        return scales_lib.local_scales(gradient, self._segments(sizes), self.clip_sigmas, self.implementation)

    def encode(
        self, gradient: jax.Array, scales: jax.Array, key: jax.Array, sizes: tuple[int, ...], num_added: int
    ) -> jax.Array:
        return ternary_encode(
            gradient,
            scales_lib.round_scales(scales, self.scale),
            key,
            self._segments(sizes),
            radix=self.radix(num_added),
            levels=self.levels,
            implementation=self.implementation,
        )

    def decode(
        self, words: jax.Array, scales: jax.Array, sizes: tuple[int, ...], num_added: int, num_workers: int
    ) -> jax.Array:
        return ternary_decode(
            words,
            scales_lib.round_scales(scales, self.scale),
            self._segments(sizes),
            num_workers=num_workers,
            radix=self.radix(num_added),
            levels=self.levels,
            implementation=self.implementation,
        )

    def can_add(self, num_workers: int) -> bool:
        return self.radix(num_workers) <= MAX_RADIX

    def num_words(self, sizes: tuple[int, ...], num_added: int) -> int:
        return self._segments(sizes).num_words(self.radix(num_added))

    def num_scales(self, sizes: tuple[int, ...]) -> int:
        return self._segments(sizes).num_scales
