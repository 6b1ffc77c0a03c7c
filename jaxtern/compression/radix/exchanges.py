"""The exchanges: ways of the words of a bucket from every worker to all, each with what it sends.

Words travel as uint32. What an exchange leaves, `Received`, is the same on every device.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxtern.compression import collectives
from jaxtern.compression.collectives import through_fast
from jaxtern.compression.network.links import Network, Traffic, all_gather, all_reduce, all_to_all
from jaxtern.compression.radix.quantizer import Quantizer
from jaxtern.compression.reducer import Group
from jaxtern.kernels import follow
from jaxtern.kernels.segments import fill_up

_PAIR_LATENCIES = 20  # that a message of a round of pairs must take, so that waiting for all hosts is worth its bytes


class Received(NamedTuple):
    """What an exchange leaves.

    Attributes:
      words: uint32[rows, W].
      num_added: workers whose digits were added in a row, which fixes the radix.
      num_workers: workers for which all rows stand: N, or 1 where the words are those of the mean.
      total: uint32[1, W] or None. If there is one, `words` holds only the row of this device's worker, and the other
        worker's row is the total less that, modulo 2^32.
      kept: the operands of the collectives.
    """

    words: jax.Array
    num_added: int
    num_workers: int
    total: jax.Array | None = None
    kept: tuple[jax.Array, ...] = ()

    @property
    def arrived(self) -> jax.Array:
        """An array that exists once the exchange has ended."""
        return self.words if self.total is None else self.total


class Shards(NamedTuple):
    """What the first of an exchange's two collectives leaves.

    Attributes:
      words: uint32[N, W], all workers' words of this device's shard.
      kept: as in `Received`.
    """

    words: jax.Array
    kept: tuple[jax.Array, ...]

    @property
    def arrived(self) -> jax.Array:
        """An array that exists once the collective has ended."""
        return self.words


class Exchange:
    """One way of the words.

    Attributes:
      name: in arguments and reports.
      exact: whether its mean is the mean of what the workers sent.
    """

    name: str
    exact = True

    def num_added(self, num_workers: int) -> int:
        """Workers whose words are added on the way."""
        return 1

    def send(self, quantizer: Quantizer, words: jax.Array, group: Group, links: Network) -> Received | Shards:
        """Starts with uint32[V, W], words of the workers on this device; Shards if there is a second collective."""
        raise NotImplementedError

    def receive(
        self, quantizer: Quantizer, sent: Received | Shards, size: int, group: Group, position: int, after: jax.Array
    ) -> Received:
        """Runs the second collective, if there is one, not before the array `after` exists.

        `size` is the number of elements whose words they are, `position` that of the first one in the noise.
        """
        assert isinstance(sent, Received)
        return sent

    def traffic(self, quantizer: Quantizer, size: int, num_workers: int) -> Traffic:
        """What one worker sends of the words of so many elements."""
        raise NotImplementedError


class Gather(Exchange):
    """Every worker receives all words: an all-gather."""

    name = "gather"

    def send(self, quantizer: Quantizer, words: jax.Array, group: Group, links: Network) -> Received:
        axes = group.axes
        if group.size == 2 and words.shape[0] == 1 and not axes.fast and collectives.is_mutual(axes.workers):
            total = collectives.add_words(words[0], axes.workers)
            return Received(words, 1, 2, total, kept=(words,))
        rows = through_fast(lambda own: collectives.gather_words(own, axes.workers), words, axes)
        return Received(rows, 1, group.size, kept=(words,))

    def traffic(self, quantizer: Quantizer, size: int, num_workers: int) -> Traffic:
        return quantizer.coded(all_gather(quantizer.num_words(size, 1), num_workers), 1)


class Sum(Exchange):
    """The words are added on the way: an integer all-reduce."""

    name = "sum"

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

    name = "scatter"

    def _added_in_shards(self, num_workers: int) -> int:
        """Workers whose digits a word of the second collective adds."""
        return num_workers

    def send(self, quantizer: Quantizer, words: jax.Array, group: Group, links: Network) -> Shards:
        axes, num_added = group.axes, self._added_in_shards(group.size)
        num_shards = collectives.count_workers(axes.workers + axes.fast)
        filled = fill_up(words, num_shards * quantizer.shard_words(words.shape[-1], num_shards, num_added))
        own = collectives.own_slice(filled, axes.fast) if axes.fast else filled
        shard = own.shape[-1] // collectives.count_workers(axes.workers)
        in_pairs = 4 * shard / links.bandwidth > _PAIR_LATENCIES * links.latency
        rows = collectives.scatter_words(own, axes.workers, in_pairs=in_pairs)
        return Shards(rows, kept=(filled, rows))

    def receive(
        self, quantizer: Quantizer, sent: Received | Shards, size: int, group: Group, position: int, after: jax.Array
    ) -> Received:
        axes, num_added = group.axes, self._added_in_shards(group.size)
        result = self._middle(quantizer, sent.words, group, position)
        result = follow(result, collectives.that_vary_no_more([after], result))[None]
        joined = collectives.gather_words(result, axes.fast + axes.workers).reshape(1, -1)
        words = joined[:, : quantizer.num_words(size, num_added)]
        return Received(words, num_added, num_added, kept=(*sent.kept, result))

    def _middle(self, quantizer: Quantizer, words: jax.Array, group: Group, position: int) -> jax.Array:
        """uint32[N, W] words of a shard to the words that go back."""
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
    """As `Scatter`, but every device rounds the mean of its shard to levels once more, so that less goes back."""

    name, exact = "two_way", False

    def _added_in_shards(self, num_workers: int) -> int:
        return 1

    def _middle(self, quantizer: Quantizer, words: jax.Array, group: Group, position: int) -> jax.Array:
        place = collectives.worker_index(group.axes.fast + group.axes.workers).astype(jnp.uint32)
        start = place * jnp.uint32(quantizer.num_places(words.shape[1])) + jnp.uint32(position)
        return quantizer.average_shards(words, group.shared_key(), start)


EXCHANGES: dict[str, Exchange] = {each.name: each for each in (Gather(), Sum(), Scatter(), TwoWay())}


def candidates(quantizer: Quantizer, num_workers: int) -> list[Exchange]:
    """The exact exchanges that can carry so many workers, in the order in which "auto" prefers equals."""
    can_add = quantizer.can_add(num_workers)
    return [each for each in EXCHANGES.values() if each.exact and (can_add or each.name == "gather")]


def choose_exchange(name: str, quantizer: Quantizer, size: int, num_workers: int, links: Network) -> Exchange:
    """The exchange of this name; of "auto" the exact one that takes the least time for so many elements.

    Raises:
      ValueError: for "sum" and "scatter" where the words of so many workers cannot be added.
    """
    if name == "auto":
        exact = candidates(quantizer, num_workers)
        return min(exact, key=lambda each: links.seconds(each.traffic(quantizer, size, num_workers)))
    if name in ("sum", "scatter") and not quantizer.can_add(num_workers):
        raise ValueError(
            f"exchange={name!r}: the words of {num_workers} workers of {quantizer.levels} levels do not add; take"
            " 'gather'"
        )
    return EXCHANGES[name]
