"""The exchanges: ways to bring the uint32 words of a bucket from every worker to all, and the traffic of each.

The result, `Received`, is the same on every device.
"""

import functools

import jax
import jax.numpy as jnp

from jaxtern.compression import collectives
from jaxtern.compression.collectives import through_fast
from jaxtern.compression.network.links import Network, Traffic, all_gather, all_reduce, all_to_all
from jaxtern.compression.radix.quantizer import Quantizer, Received
from jaxtern.compression.reducer import Group
from jaxtern.kernels import follow
from jaxtern.kernels.segments import fill_up

_MUTUAL_LATENCIES = 2  # words of two workers must take so many for an all-reduce, which waits for one more message
_PAIR_LATENCIES = 20  # a message of a round of pairs must take so many, to be worth that all hosts wait


class Exchange:
    """A way of the words from every worker to all.

    Attributes:
      name: name in arguments and reports.
      exact: whether its mean is the mean of what the workers sent.
      adds: whether it adds words, which is possible only up to some number of workers.
      is_double: whether it takes a second collective.
    """

    name: str
    exact = True
    adds = False
    is_double = False

    def num_added(self, num_workers: int) -> int:
        """The number of workers whose words are added on the way."""
        return 1

    def send(self, quantizer: Quantizer, words: jax.Array, group: Group, links: Network) -> Received:
        """Sends uint32[V, W] words of the workers on this device; to shards if a second collective follows."""
        raise NotImplementedError

    def receive(
        self, quantizer: Quantizer, sent: Received, size: int, group: Group, position: int, after: jax.Array
    ) -> Received:
        """Runs the second collective, if there is one, once the array `after` exists.

        `size` is the number of elements, `position` the place of the first one in the noise.
        """
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

    name, adds, is_double = "scatter", True, True

    def _added_in_shards(self, num_workers: int) -> int:
        """The number of workers whose digits a word of the second collective adds."""
        return num_workers if self.adds else 1

    def send(self, quantizer: Quantizer, words: jax.Array, group: Group, links: Network) -> Received:
        axes, num_added = group.axes, self._added_in_shards(group.size)
        num_shards = collectives.count_workers(axes.workers + axes.fast)
        filled = fill_up(words, num_shards * quantizer.shard_words(words.shape[-1], num_shards, num_added))
        own = collectives.own_slice(filled, axes.fast)
        shard = own.shape[-1] // collectives.count_workers(axes.workers)
        in_pairs = 4 * shard / links.bandwidth > _PAIR_LATENCIES * links.latency
        rows = collectives.scatter_words(own, axes.workers, in_pairs=in_pairs)
        return Received(rows, 1, group.size, kept=(filled, rows))

    def receive(
        self, quantizer: Quantizer, sent: Received, size: int, group: Group, position: int, after: jax.Array
    ) -> Received:
        axes, num_added = group.axes, self._added_in_shards(group.size)
        result = self._middle(quantizer, sent.words, group, position)
        result = follow(result, collectives.that_vary_no_more([after], result))[None]
        joined = collectives.gather_words(result, axes.fast + axes.workers).reshape(1, -1)
        words = joined[:, : quantizer.num_words(size, num_added)]
        return Received(words, num_added, num_added, kept=(*sent.kept, result))

    def _middle(self, quantizer: Quantizer, words: jax.Array, group: Group, position: int) -> jax.Array:
        """Turns uint32[N, W] words of a shard into the words that go back."""
        return quantizer.add_shards(words)

    def traffic(self, quantizer: Quantizer, size: int, num_workers: int) -> Traffic:
        if num_workers == 1:
            return Traffic()
        num_added = self._added_in_shards(num_workers)
        shard = quantizer.shard_words(quantizer.num_words(size, 1), num_workers, num_added)
        back = quantizer.num_words(quantizer.num_places(shard), num_added)
        there, then = all_to_all(shard * num_workers, num_workers), all_gather(back, num_workers)
        return quantizer.coded(there, 1) + quantizer.coded(then, num_added)


class TwoWay(Scatter):
    """Like `Scatter`, but each device rounds the mean of its shard to levels again, so that less goes back."""

    name, exact, adds = "two_way", False, False

    def _middle(self, quantizer: Quantizer, words: jax.Array, group: Group, position: int) -> jax.Array:
        place = collectives.worker_index(group.axes.fast + group.axes.workers).astype(jnp.uint32)
        start = place * jnp.uint32(quantizer.num_places(words.shape[1])) + jnp.uint32(position)
        return quantizer.average_shards(words, group.shared_key(), start)


EXCHANGES: dict[str, Exchange] = {each.name: each for each in (Gather(), Sum(), Scatter(), TwoWay())}


def choose_exchange(name: str, quantizer: Quantizer, size: int, num_workers: int, links: Network) -> Exchange:
    """The exchange of this name; for "auto", the exact one that takes the least time for so many elements.

    Raises ValueError for "sum" and "scatter" if the words of so many workers cannot be added.
    """
    can_add = quantizer.can_add(num_workers)
    if name == "auto":
        usable = [each for each in EXCHANGES.values() if each.exact and (can_add or not each.adds)]
        return min(usable, key=lambda each: links.seconds(each.traffic(quantizer, size, num_workers)))
    if EXCHANGES[name].adds and not can_add:
        raise ValueError(
            f"exchange={name!r}: the words of {num_workers} workers of {quantizer.levels} levels do not add; take"
            " 'gather'"
        )
    return EXCHANGES[name]
