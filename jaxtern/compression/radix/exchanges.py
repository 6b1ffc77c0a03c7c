"""The exchanges: ways to bring the uint32 words of a bucket from every worker to all, and the traffic of each.

The result, `Received`, is the same on every device.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxtern.compression import collectives
from jaxtern.compression.collectives import through_fast
from jaxtern.compression.network.links import Network, Traffic, all_gather, all_reduce, all_to_all
from jaxtern.compression.radix.buckets import Piece
from jaxtern.compression.radix.quantizer import Quantizer, Received
from jaxtern.compression.reducer import Group
from jaxtern.kernels import follow
from jaxtern.kernels.dither import Dither, dithered
from jaxtern.kernels.radix import RUN
from jaxtern.kernels.segments import fill_up, split

_MUTUAL_LATENCIES = 2  # latencies that two workers' words must take to be worth an all-reduce's one more message
_PAIR_LATENCIES = 20  # latencies that a message must take to be worth rounds of pairs, in which all hosts wait


class Exchange:
    """A way to bring words from every worker to all."""

    name: str  # in arguments and reports
    exact = True  # whether its mean is the mean of what the workers sent
    adds = False  # whether it adds words, which is possible only up to some number of workers
    has_two_collectives = False  # whether it takes a second collective

    def num_added(self, num_workers: int) -> int:
        """The number of workers whose words are added on the way."""
        return 1

    def send(self, quantizer: Quantizer, words: jax.Array, group: Group, links: Network) -> Received:
        """Sends uint32[V, W] words of the workers on this device; to shards if a second collective follows."""
        raise NotImplementedError

    def receive(self, quantizer: Quantizer, sent: Received, piece: Piece, group: Group, after: jax.Array) -> Received:
        """Runs the second collective, if there is one, once the array `after` exists."""
        return sent

    def traffic(self, quantizer: Quantizer, size: int, num_workers: int) -> Traffic:
        """What one worker sends for a bucket of `size` elements."""
        raise NotImplementedError


class Gather(Exchange):
    """Every worker receives all words: an all-gather."""

    name = "gather"

    def send(self, quantizer: Quantizer, words: jax.Array, group: Group, links: Network) -> Received:
        axes, is_long = group.axes, 4 * words.size / links.bandwidth > _MUTUAL_LATENCIES * links.latency
        is_pair = group.size == 2 and words.shape[0] == 1 and not axes.fast
        if is_pair and is_long and collectives.is_mutual(axes.workers):
            total = collectives.add_words(words[0], axes.workers)
            return Received(words, 1, 2, total, kept=(words,))
        rows = through_fast(lambda own: collectives.gather_words(own, axes.workers, mutual=is_long), words, axes)
        return Received(rows, 1, group.size, kept=(words,))

    def traffic(self, quantizer: Quantizer, size: int, num_workers: int) -> Traffic:
        return quantizer.coded(all_gather(quantizer.num_words(size, 1), num_workers), 1)


class Sum(Exchange):
    """The words are added on the way: an integer all-reduce."""

    name, adds = "sum", True

    def num_added(self, num_workers: int) -> int:
        return num_workers

    def send(self, quantizer: Quantizer, words: jax.Array, group: Group, links: Network) -> Received:
        local = functools.reduce(jnp.add, list(words))[None]
        axes = group.axes
        added = through_fast(lambda own: collectives.add_words(own[0], axes.workers), local, axes)
        return Received(added, group.size, group.size, kept=(local,))

    def traffic(self, quantizer: Quantizer, size: int, num_workers: int) -> Traffic:
        return quantizer.coded(all_reduce(quantizer.num_words(size, num_workers), num_workers), num_workers)


class Scatter(Exchange):
    """Every device adds the words of a shard, and all gather the sums: an all-to-all and an all-gather."""

    name, adds, has_two_collectives = "scatter", True, True

    def send(self, quantizer: Quantizer, words: jax.Array, group: Group, links: Network) -> Received:
        axes, num_added = group.axes, group.size if self.adds else 1  # workers in a word of the second collective
        num_shards = collectives.count_workers(axes.workers + axes.fast)
        filled = fill_up(words, num_shards * quantizer.shard_words(words.shape[-1], num_shards, num_added))
        own = collectives.own_slice(filled, axes.fast)
        shard = own.shape[-1] // collectives.count_workers(axes.workers)
        in_pairs = 4 * shard / links.bandwidth > _PAIR_LATENCIES * links.latency
        rows = collectives.scatter_words(own, axes.workers, in_pairs=in_pairs)
        return Received(rows, 1, group.size, kept=(filled, rows))

    def receive(self, quantizer: Quantizer, sent: Received, piece: Piece, group: Group, after: jax.Array) -> Received:
        sums = quantizer.add_shards(sent.words)
        (words,), operand = _join_shards([sums], group, after)
        words = words[None, : quantizer.num_words(piece.size, group.size)]
        return Received(words, group.size, group.size, kept=(*sent.kept, operand))

    def traffic(self, quantizer: Quantizer, size: int, num_workers: int) -> Traffic:
        num_added = num_workers if self.adds else 1
        shard = quantizer.shard_words(quantizer.num_words(size, 1), num_workers, num_added)
        back = quantizer.num_words(quantizer.num_places(shard), num_added)
        there, then = all_to_all(shard * num_workers, num_workers), all_gather(back, num_workers)
        scales = all_gather(0 if self.adds else shard // RUN, num_workers)._replace(messages=0)
        return quantizer.coded(there, 1) + quantizer.coded(then, num_added) + scales


class TwoWay(Scatter):
    """Like `Scatter`, but each device rounds the mean of its shard to levels again, so that less goes back."""

    name, exact, adds = "two_way", False, False

    def receive(self, quantizer: Quantizer, sent: Received, piece: Piece, group: Group, after: jax.Array) -> Received:
        tiles = sent.words.shape[1] // RUN
        axes = group.axes.fast + group.axes.workers
        place = collectives.worker_index(axes)
        # A small tensor beside others was not clipped in the first rounding; its mean may be as large as its scale.
        is_lone = piece.lone_tiles(quantizer.num_places(RUN))
        of_all = np.pad(is_lone, (0, collectives.count_workers(axes) * tiles - is_lone.size))
        may_clip = lax.dynamic_slice_in_dim(jnp.asarray(of_all), place * tiles, tiles)
        start = place.astype(jnp.uint32) * jnp.uint32(quantizer.num_places(sent.words.shape[1]))
        start += jnp.uint32(piece.position)
        dithers = quantizer.dither(group, start), second_dither(group, start)
        words, scales = quantizer.round_again(sent.words, may_clip, *dithers)
        parts = [words, lax.bitcast_convert_type(scales, jnp.uint32)]
        (words, scales), operand = _join_shards(parts, group, after)
        words = words[None, : quantizer.num_words(piece.size, 1)]
        scales = lax.bitcast_convert_type(scales, jnp.float32)[: words.shape[1] // RUN]
        again = second_dither(group, piece.position)
        return Received(words, 1, 1, tile_scales=scales, dither=again, kept=(*sent.kept, operand))


def second_dither(group: Group, position: int | jax.Array) -> Dither:
    """The dither of means that are rounded again, from this place in the noise on."""
    return Dither(dithered(group.shared_key(), 0, 1), 1, position)


def _join_shards(parts: list[jax.Array], group: Group, after: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    """Gathers the uint32 vectors of every device's shard in one message; returns them, each joined, and the operand."""
    own = jnp.concatenate(parts)
    own = follow(own, collectives.that_vary_no_more([after], own))[None]
    rows = collectives.gather_words(own, group.axes.fast + group.axes.workers)
    return [part.reshape(-1) for part in split(rows, tuple(part.size for part in parts))], own


EXCHANGES: dict[str, Exchange] = {each.name: each for each in (Gather(), Sum(), Scatter(), TwoWay())}


def choose_exchange(name: str, quantizer: Quantizer, size: int, num_workers: int, links: Network) -> Exchange:
    """The exchange of this name; for "auto", the exact one that takes the least time for so many elements.

    Raises ValueError for "sum" and "scatter" if the words of so many workers cannot be added.
    """
    can_add = quantizer.can_add(num_workers)
    if name == "two_way" and num_workers == 1:  # a single worker sends nothing
        name = "gather"
    if name == "auto":
        usable = [each for each in EXCHANGES.values() if each.exact and (can_add or not each.adds)]
        return min(usable, key=lambda each: links.seconds(each.traffic(quantizer, size, num_workers)))
    if EXCHANGES[name].adds and not can_add:
        raise ValueError(
            f"exchange={name!r}: the words of {num_workers} workers of {quantizer.levels} levels do not add; take"
            " 'gather'"
        )
    return EXCHANGES[name]
