"""Codecs: a flat gradient to words and words to the mean."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Protocol

import jax

from jaxtern.compression import scales as scales_lib
from jaxtern.kernels import (
    Segments,
    decode_span,
    digits_per_word,
    encode_span,
    shard_mean,
    shard_sum,
    ternary_decode,
    ternary_encode,
)
from jaxtern.kernels.dispatch import IMPLEMENTATIONS
from jaxtern.kernels.noise import LANES
from jaxtern.kernels.radix import MAX_RADIX, RUN


class Codec(Protocol):
    """What an exchange needs of a codec.

    Scales go over the wire before the words: every worker computes its own, the elementwise maximum is shared, and all
    encode with the same. `num_added` is the number of workers whose words the exchange adds as integers: 1 when every
    worker's words arrive by themselves.
    """

    def local_scales(self, gradient: jax.Array | Sequence[jax.Array], sizes: tuple[int, ...]) -> jax.Array:
        """float32[n] gradient of tensors of these `sizes`, or these tensors, to this worker's float32 scales."""
        ...

    def encode(
        self,
        gradient: jax.Array,
        scales: jax.Array,
        key: jax.Array,
        sizes: tuple[int, ...],
        num_added: int,
        *,
        position: int = 0,
    ) -> jax.Array:
        """float32[n] gradient to uint32 words, which may be added over `num_added` workers.

        `position` is that of the first element in the noise of `key`, a multiple of 512.
        """
        ...

    def decode(
        self, words: jax.Array, scales: jax.Array, sizes: tuple[int, ...], num_added: int, num_workers: int
    ) -> jax.Array:
        """uint32[rows, words], each row the sum of `num_added` workers' words, to the float32[n] mean of all."""
        ...

    def encode_span(
        self,
        tensors: Sequence[jax.Array],
        scales: jax.Array,
        key: jax.Array,
        span: tuple[int, int],
        num_added: int,
        *,
        position: int,
        after: Sequence[jax.Array],
    ) -> tuple[jax.Array, list[jax.Array]]:
        """As `encode`, of the elements of float32 tensors from span[0] on, span[1] of them, when `after` is there.

        Returns the words, and the tensors to go on with.
        """
        ...

    def decode_span(
        self,
        words: jax.Array,
        total: jax.Array | None,
        scales: jax.Array,
        tensors: Sequence[jax.Array],
        span: tuple[int, int],
        num_added: int,
        num_workers: int,
        *,
        after: Sequence[jax.Array],
    ) -> list[jax.Array]:
        """As `decode`, of a span's words, to the tensors with the mean in its place, when `after` is there.

        With `total`, uint32[1, W], of two workers' words the first row is given, and the sum of both modulo 2^32.
        """
        ...

    def piece_size(self, size: int, num_devices: int, num_workers: int) -> int | None:
        """`size` or little more, an extent in which buckets are encoded and decoded piece by piece; None: only whole.

        It must be the same on every host, whatever runs the codec there.
        """
        ...

    def can_add(self, num_workers: int) -> bool:
        """Whether the words of so many workers can be added."""
        ...

    def shard_words(self, width: int, num_shards: int, num_added: int) -> int:
        """Words of each of equal shards that together hold `width` words, which may be filled up with zeros.

        Shards are such that what `add_shards` (num_added = N) or `average_shards` (1) makes of them joins to what they
        would make of the whole.
        """
        ...

    def add_shards(self, words: jax.Array) -> jax.Array:
        """uint32[N, W] words of N workers, of one shard, to words of their sum, as if encoded with num_added = N."""
        ...

    def average_shards(self, words: jax.Array, key: jax.Array, position: jax.Array) -> jax.Array:
        """uint32[N, W] words of N workers, of one shard, to uint32[W] words of an unbiased estimate of their mean.

        `position`, a uint32 scalar, is that of the shard's first element in the noise of `key`.
        """
        ...

    def num_places(self, width: int) -> int:
        """Elements for which `width` words of one worker have a place."""
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

    def local_scales(self, gradient: jax.Array | Sequence[jax.Array], sizes: tuple[int, ...]) -> jax.Array:
        return scales_lib.local_scales(gradient, self._segments(sizes), self.clip_sigmas, self.implementation)

    def encode(
        self,
        gradient: jax.Array,
        scales: jax.Array,
        key: jax.Array,
        sizes: tuple[int, ...],
        num_added: int,
        *,
        position: int = 0,
    ) -> jax.Array:
        return ternary_encode(
            gradient,
            scales_lib.round_scales(scales, self.scale),
            key,
            self._segments(sizes),
            radix=self.radix(num_added),
            levels=self.levels,
            offset=position,
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

    def encode_span(
        self,
        tensors: Sequence[jax.Array],
        scales: jax.Array,
        key: jax.Array,
        span: tuple[int, int],
        num_added: int,
        *,
        position: int,
        after: Sequence[jax.Array],
    ) -> tuple[jax.Array, list[jax.Array]]:
        return encode_span(
            tensors,
            scales_lib.round_scales(scales, self.scale),
            key,
            self._segments(tuple(each.size for each in tensors)),
            start=span[0],
            size=span[1],
            radix=self.radix(num_added),
            levels=self.levels,
            offset=position,
            after=after,
            implementation=self.implementation,
        )

    def decode_span(
        self,
        words: jax.Array,
        total: jax.Array | None,
        scales: jax.Array,
        tensors: Sequence[jax.Array],
        span: tuple[int, int],
        num_added: int,
        num_workers: int,
        *,
        after: Sequence[jax.Array],
    ) -> list[jax.Array]:
        return decode_span(
            words,
            scales_lib.round_scales(scales, self.scale),
            self._segments(tuple(each.size for each in tensors)),
            tensors,
            start=span[0],
            size=span[1],
            num_workers=num_workers,
            radix=self.radix(num_added),
            levels=self.levels,
            total=total,
            after=after,
            implementation=self.implementation,
        )

    def piece_size(self, size: int, num_devices: int, num_workers: int) -> int | None:
        depths = [digits_per_word(self.radix(count)) for count in (1, num_workers) if self.can_add(count)]
        extent = RUN * math.lcm(LANES, *depths) * num_devices
        return extent * -(-size // extent) if extent <= 2 * size else None

    def can_add(self, num_workers: int) -> bool:
        return self.radix(num_workers) <= MAX_RADIX

    def shard_words(self, width: int, num_shards: int, num_added: int) -> int:
        own, added = (digits_per_word(self.radix(count)) for count in (1, num_added))
        tile = RUN * math.lcm(own, added, LANES) // own  # of words, where tiles of sums and groups of noise end too
        return tile * -(-width // (tile * num_shards))

    def add_shards(self, words: jax.Array) -> jax.Array:
        return shard_sum(words, self.num_places(words.shape[1]), levels=self.levels, implementation=self.implementation)

    def average_shards(self, words: jax.Array, key: jax.Array, position: jax.Array) -> jax.Array:
        return shard_mean(words, key, position, levels=self.levels, implementation=self.implementation)

    def num_places(self, width: int) -> int:
        return width * digits_per_word(self.radix(1))

    def num_words(self, sizes: tuple[int, ...], num_added: int) -> int:
        return self._segments(sizes).num_words(self.radix(num_added))

    def num_scales(self, sizes: tuple[int, ...]) -> int:
        return self._segments(sizes).num_scales
