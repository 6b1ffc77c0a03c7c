"""Buckets: tensors that travel together."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jaxtern.compression.reducer import Layout
from jaxtern.kernels.noise import LANES
from jaxtern.kernels.radix import RUN

BUCKET_SIZE = 2**22  # elements, by default: some milliseconds of a link of 1 Gbit/s


class Bucket(NamedTuple):
    """Tensors that are exchanged together."""

    places: tuple[int, ...]  # places in the layout, in the bucket's order; places beyond the layout are fillers
    sizes: tuple[int, ...]  # elements of each tensor
    position: int  # place of the first element in the stream of noise, a multiple of 512

    @property
    def size(self) -> int:
        """Elements of all tensors."""
        return sum(self.sizes)


class Piece(NamedTuple):
    """`size` elements from `start` of bucket `number`; `position` is the first one's place in the noise."""

    number: int
    start: int
    size: int
    position: int
    sizes: tuple[int, ...]  # elements of the bucket's tensors

    def lone_tiles(self, tile: int) -> np.ndarray:
        """bool[tiles]: whether a tile is full, and all its elements are one tensor's."""
        firsts, ends = self.start + np.arange(0, self.size, tile), np.cumsum(self.sizes)
        own_ends = ends[np.searchsorted(ends, firsts, side="right")]
        return firsts + tile <= np.minimum(own_ends, self.start + self.size)


def plan_buckets(layout: Layout, bucket_size: int | None) -> list[Bucket]:
    """Puts each tensor into a bucket; the last tensors come first, as their gradients are ready first.

    A tensor of `bucket_size` elements or more is a bucket of its own; smaller neighbours share one until it has as
    many. With None, all tensors share one. Tensors that vary over different axes never share a bucket.
    """
    sizes, buckets, position = layout.sizes, [], 0
    for places in layout.kinds:
        for group in [tuple(places)] if bucket_size is None else _group(places[::-1], sizes, bucket_size):
            bucket = Bucket(group, tuple(sizes[place] for place in group), position)
            buckets.append(bucket)
            position += -(-bucket.size // (LANES * RUN)) * LANES * RUN
    if position > 2**32:
        raise ValueError(f"gradients: {sum(sizes)} elements: must be fewer than 2^32, in buckets of multiples of 512")
    return buckets


def join_buckets(buckets: Sequence[Bucket], count: int) -> Bucket:
    """Joins all to one bucket; fillers, at places from `count` on, keep every element at its place in the noise."""
    places: list[int] = []
    sizes: list[int] = []
    for bucket in buckets:
        if gap := bucket.position - sum(sizes):
            places.append(count)
            sizes.append(gap)
            count += 1
        places += bucket.places
        sizes += bucket.sizes
    return Bucket(tuple(places), tuple(sizes), 0)


def _group(places: list[int], sizes: tuple[int, ...], bucket_size: int) -> Iterator[tuple[int, ...]]:
    """Groups neighbours until they have `bucket_size` elements; a large tensor is alone."""
    group: list[int] = []
    elements = 0
    for place in places:
        if sizes[place] >= bucket_size:
            yield (place,)
            continue
        group.append(place)
        elements += sizes[place]
        if elements >= bucket_size:
            yield tuple(sorted(group))
            group, elements = [], 0
    if group:
        yield tuple(sorted(group))
