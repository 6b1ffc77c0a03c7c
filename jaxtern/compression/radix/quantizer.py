"""The quantizer: turns elements into digits of a shared scale and words, and words into the mean."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer

from jaxtern.compression.arguments import as_integer, require_number
from jaxtern.compression.network.links import Traffic
from jaxtern.compression.radix import scales as scales_lib
from jaxtern.compression.radix.gaussian import MIN_SCALE, ROUNDINGS, Code, best_code, entropy
from jaxtern.compression.radix.scales import Measured
from jaxtern.compression.reducer import Group
from jaxtern.kernels import (
    Segments,
    decode_span,
    digits_per_word,
    encode_span,
    follow,
    num_words,
    shard_sum,
    ternary_decode,
    ternary_encode,
)
from jaxtern.kernels.dispatch import IMPLEMENTATIONS
from jaxtern.kernels.dither import Dither, dithered, nearest
from jaxtern.kernels.noise import LANES
from jaxtern.kernels.radix import MAX_RADIX, RUN
from jaxtern.kernels.rotation import BLOCK


class Received(NamedTuple):
    """Words of all workers, and what they mean."""

    words: jax.Array  # uint32[rows, W]
    num_added: int  # number of workers whose digits were added in a row, which fixes the radix
    num_workers: int  # number of workers in all rows: N, or 1 if the words are those of the mean
    # uint32[1, W] or None. With it, `words` has only the row of this device's worker, and the other worker's row is
    # total - words modulo 2^32.
    total: jax.Array | None = None
    # For words that were rounded again: float32[tiles] scales, and the dither in the words; else None.
    tile_scales: jax.Array | None = None
    dither: Dither | None = None
    kept: tuple[jax.Array, ...] = ()  # operands of the collectives that brought the words

    @property
    def arrived(self) -> jax.Array:
        """An array that exists once the collectives have finished."""
        return self.words if self.total is None else self.total


@dataclasses.dataclass(frozen=True)
class Quantizer:
    """Digits {-L, ..., L} times a shared scale; ternary with L = 1.

    Scales travel first: each worker measures its own, and all decode with the elementwise maximum. `num_added` is the
    number of workers whose words an exchange adds as integers.

    Attributes:
      clip_sigmas, block_size, levels, rotation, rounding, implementation: as in `jaxtern.quantized`.
    """

    clip_sigmas: Any = None
    block_size: int | None = None
    levels: int = 1
    rotation: bool = True
    rounding: str = "dither"
    implementation: str = "auto"

    def __post_init__(self):
        clip: Any = self.clip_sigmas
        if clip is not None:
            require_number("clip_sigmas", clip)
        if self.rotation and isinstance(clip, Tracer):
            raise ValueError("clip_sigmas is traced: must be known when a program is compiled, with rotation=True")
        if not (clip is None or isinstance(clip, Tracer)):
            object.__setattr__(self, "clip_sigmas", float(clip))
        if self.rotation and self.clip_sigmas and self.clip_sigmas < MIN_SCALE:
            raise ValueError(f"clip_sigmas={self.clip_sigmas!r}: must be 0, or {MIN_SCALE} or more, with rotation")
        for name, known in (("rounding", ROUNDINGS), ("implementation", IMPLEMENTATIONS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r}: must be one of {', '.join(known)}")
        object.__setattr__(self, "levels", as_integer("levels", self.levels, 1, 32767))
        if self.block_size is not None:
            object.__setattr__(self, "block_size", min(as_integer("block_size", self.block_size, 1), 2**62))

    def _segments(self, sizes: tuple[int, ...]) -> Segments:
        return Segments(sizes, self.block_size or (BLOCK if self.rotation else None))

    @property
    def code(self) -> Code | None:
        """How rotated elements, which are nearly normal, are clipped and rounded; None without rotation or clipping."""
        if not self.rotation or self.clip_sigmas == 0:
            return None
        best = best_code(self.levels, self.rounding)
        return best if self.clip_sigmas is None else best._replace(scale=float(self.clip_sigmas))

    def radix(self, num_added: int) -> int:
        """2LN + 1, the smallest radix in which the digits of N = `num_added` workers add without a carry."""
        return 2 * self.levels * num_added + 1

    def _options(self, num_added: int) -> dict[str, Any]:
        """Keywords for all kernels."""
        return {"radix": self.radix(num_added), "levels": self.levels, "implementation": self.implementation}

    def measure(self, gradient: jax.Array | Sequence[jax.Array], sizes: tuple[int, ...]) -> Measured:
        """Measures a worker's own scales, of a float32[n] gradient of tensors of these `sizes`, or of the tensors."""
        clip = self.code.scale if self.code else 2.5 if self.clip_sigmas is None else self.clip_sigmas
        return scales_lib.measure(gradient, self._segments(sizes), clip, self.rotation, self.implementation)

    def share_scales(self, measured: Sequence[Measured], group: Group, after: Sequence[jax.Array] = ()) -> jax.Array:
        """The scales that all decode with: the largest of all workers', or NaN; sent once `after` is computed."""
        own = [follow(lax.bitcast_convert_type(own.scales, jnp.uint32), after) for own in measured]
        shared = group.maximum([lax.bitcast_convert_type(words, jnp.float32) for words in own])
        return jnp.where(jnp.isfinite(shared), shared, jnp.nan)

    def own_scales(self, shared: jax.Array, measured: Measured) -> jax.Array:
        """The scales that a worker encodes with, given the shared ones."""
        return scales_lib.stretch(shared, measured, self.code) if self.code else shared

    def bits(self, group: Group) -> list[jax.Array]:
        """The key for `encode` of each worker on this device."""
        if self.rounding == "nearest":
            return [nearest()] * group.local_workers
        if self.rounding == "stochastic":
            return group.keys()
        key = group.shared_key("dither")
        return [dithered(key, index, group.size) for index in group.indices()]

    def dither(self, group: Group, position: int | jax.Array, own: jax.Array | None = None) -> Dither | None:
        """The dither that `decode` subtracts from the mean of all, or from a worker's own digits, given their bits."""
        if self.rounding != "dither":
            return None
        bits = dithered(group.shared_key("dither"), 0, group.size) if own is None else own
        return Dither(bits, group.size if own is None else 1, position)

    def encode(
        self,
        gradient: jax.Array,
        scales: jax.Array,
        key: jax.Array,
        sizes: tuple[int, ...],
        num_added: int,
        *,
        position: int | jax.Array = 0,
    ) -> jax.Array:
        """Encodes float32[n] as uint32 words; `position` is the first one's place in the noise, a multiple of 512."""
        return ternary_encode(gradient, scales, key, self._segments(sizes), offset=position, **self._options(num_added))

    def decode(
        self, received: Received, scales: jax.Array | None, sizes: tuple[int, ...], dither: Dither | None = None
    ) -> jax.Array:
        """Decodes the float32[n] mean of all workers; without `scales`, in units of the scales."""
        scales = jnp.ones((self.num_scales(sizes),), jnp.float32) if scales is None else scales
        words, options = received.words, self._options(received.num_added)
        if received.total is not None:
            words = jnp.concatenate([words, received.total - words])
        options |= {"num_workers": received.num_workers, "dither": dither, "tile_scales": received.tile_scales}
        return ternary_decode(words, scales, self._segments(sizes), **options)

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
        """Encodes a (start, size) span of float32 tensors once `after` exists; returns the tensors, too."""
        segments = self._segments(tuple(each.size for each in tensors))
        options = self._options(num_added) | {"start": span[0], "size": span[1], "offset": position, "after": after}
        return encode_span(tensors, scales, key, segments, **options)

    def decode_span(
        self,
        received: Received,
        scales: jax.Array,
        tensors: Sequence[jax.Array],
        span: tuple[int, int],
        dither: Dither | None = None,
        *,
        after: Sequence[jax.Array] = (),
    ) -> list[jax.Array]:
        """Decodes a span's mean into the tensors, once `after` exists."""
        segments = self._segments(tuple(each.size for each in tensors))
        options = self._options(received.num_added) | {"start": span[0], "size": span[1], "after": after}
        options |= {"num_workers": received.num_workers, "total": received.total, "dither": dither}
        options |= {"tile_scales": received.tile_scales}
        return decode_span(received.words, scales, segments, tensors, **options)

    def piece_size(self, size: int, num_devices: int, num_workers: int) -> int | None:
        """`size`, rounded up to a size of pieces, the same on every host; None if only whole buckets will do."""
        depths = [digits_per_word(self.radix(count)) for count in (1, num_workers) if self.can_add(count)]
        extent = RUN * math.lcm(LANES, *depths) * num_devices
        return extent * -(-size // extent) if extent <= 2 * size else None

    def can_add(self, num_workers: int) -> bool:
        """Whether the words of so many workers can be added."""
        return self.radix(num_workers) <= MAX_RADIX

    def shard_words(self, width: int, num_shards: int, num_added: int) -> int:
        """Words of each shard, if equal shards hold `width` words and then zeros.

        Joined, the results of `add_shards` (num_added = N) or `round_again` (1) for all shards are those for the whole.
        """
        own, added = (digits_per_word(self.radix(count)) for count in (1, num_added))
        tile = RUN * math.lcm(own, added, LANES) // own  # of words, where tiles of sums and groups of noise end too
        return tile * -(-width // (tile * num_shards))

    def add_shards(self, words: jax.Array) -> jax.Array:
        """Sums uint32[N, W] words of N workers, for one shard, to words as if encoded with num_added = N."""
        return shard_sum(words, self.num_places(words.shape[1]), levels=self.levels, implementation=self.implementation)

    def round_again(
        self, words: jax.Array, may_clip: jax.Array, dither: Dither | None, again: Dither
    ) -> tuple[jax.Array, jax.Array]:
        """Rounds the mean of a shard to words again, with scales of its own, as it is smaller than what workers sent.

        Args:
          words: uint32[N, W], of N workers.
          may_clip: bool[W / 128], tiles that are clipped, if the quantizer clips rotated elements.
          dither: the dither in the words.
          again: the dither for the result.

        Returns:
          uint32[W] words of one worker, and float32[W / 128] scales of the tiles, by which those of the first rounding
          are multiplied.
        """
        size, tile = self.num_places(words.shape[1]), self.num_places(RUN)
        mean = self.decode(Received(words, 1, len(words)), None, (size,), dither)
        second = dataclasses.replace(self, rounding="dither", block_size=tile)
        limits, scales = scales_lib.clip_again(mean, tile, second.code, may_clip, self.implementation)
        return second.encode(mean, limits, again.bits, (size,), 1, position=again.offset), scales

    def coded(self, traffic: Traffic, num_added: int) -> Traffic:
        """The traffic of words that add `num_added` workers, with what a perfect coder would save."""
        if self.code is None:
            return traffic
        sent = 32 / digits_per_word(self.radix(num_added))
        return traffic._replace(saved=traffic.bytes * (1 - entropy(self.code, num_added) / sent))

    def spread(self, scales: jax.Array, sizes: tuple[int, ...]) -> jax.Array:
        """float32[n], the scale of each element."""
        return self._segments(sizes).spread(jnp.ones((sum(sizes),), jnp.float32), scales)

    def num_places(self, width: int) -> int:
        """Elements for which `width` words of one worker have room."""
        return width * digits_per_word(self.radix(1))

    def num_words(self, size: int, num_added: int) -> int:
        """Words of `size` elements."""
        return num_words(size, self.radix(num_added))

    def num_scales(self, sizes: tuple[int, ...]) -> int:
        """Scales that one worker shares for tensors of these sizes."""
        return self._segments(sizes).num_scales
