"""Bytes and seconds on the wire, by the alpha-beta model of collectives.

A collective of N workers is a row of messages, each of which costs a latency (alpha), and of bytes, which cost the
inverse of the bandwidth (beta). Rings: an all-reduce of B bytes sends 2 (N - 1) B / N in 2 (N - 1) messages, an
all-gather of B bytes each (N - 1) B in N - 1, an all-to-all of B bytes each (N - 1) B / N in N - 1. See Thakur et al.,
Optimization of Collective Communication Operations in MPICH, 2005.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from jaxtern.compression.arguments import require_number
from jaxtern.compression.collectives import gathers_mean, runs_of


class Traffic(NamedTuple):
    """What one worker sends in an update.

    Attributes:
      bytes: of all messages.
      messages: one after the other.
      ways: names of the exchanges, for reports.
      of_tensors: bytes of each tensor of the layout; None: an equal part for each element.
      direct: of the bytes those that go straight to each other worker, where others go round a ring.
      saved: of the bytes those that a perfect coder of the same digits would not send, as far as digits are foreseen.
    """

    bytes: float = 0.0
    messages: float = 0
    ways: tuple[str, ...] = ()
    of_tensors: tuple[float, ...] | None = None
    direct: float = 0.0
    saved: float = 0.0

    def __add__(self, other: "Traffic") -> "Traffic":  # pyright: ignore[reportIncompatibleMethodOverride]
        ways = tuple(dict.fromkeys(self.ways + other.ways))
        direct, saved = self.direct + other.direct, self.saved + other.saved
        return Traffic(self.bytes + other.bytes, self.messages + other.messages, ways, direct=direct, saved=saved)

    def over(self, steps: int) -> "Traffic":
        """Of one step on average, where the traffic is that of so many."""
        sent, messages = self.bytes / steps, self.messages / steps
        return self._replace(bytes=sent, messages=messages, direct=self.direct / steps, saved=self.saved / steps)


@dataclasses.dataclass(frozen=True)
class Network:
    """The links between workers.

    Attributes:
      latency: alpha, seconds that a message takes whatever its size.
      bandwidth: bytes a second that a worker can send, while it receives as many.
    """

    latency: float = 1e-4
    bandwidth: float = 125e6  # 1 Gbit/s

    def __post_init__(self):
        require_number("latency", self.latency)
        require_number("bandwidth", self.bandwidth, 1.0)

    def seconds(self, traffic: Traffic) -> float:
        """Time of the traffic, if nothing else is in the way."""
        return traffic.messages * self.latency + traffic.bytes / self.bandwidth


def all_reduce(num_words: float, num_workers: int) -> Traffic:
    """Of words of 32 bits, summed over the workers."""
    return _if_any(4 * num_words * 2 * (num_workers - 1) / num_workers, 2 * (num_workers - 1))


def all_gather(num_words: float, num_workers: int) -> Traffic:
    """Of so many words of each worker."""
    return _if_any(4.0 * num_words * (num_workers - 1), num_workers - 1)


def all_to_all(num_words: float, num_workers: int) -> Traffic:
    """Of so many words of each worker, an equal part for each."""
    total = _if_any(4 * num_words * (num_workers - 1) / num_workers, num_workers - 1)
    return total._replace(direct=total.bytes)


def mean_in_order(sizes: Sequence[int], num_workers: int, itemsize: int = 4) -> Traffic:
    """Of the mean of float tensors of so many elements, of so many bytes each, as `Group.mean` takes it."""
    total = Traffic()
    for run in runs_of(sizes):
        num_words = -(-sum(sizes[place] for place in run) * itemsize // 4)
        shard = -(-num_words // num_workers)
        if gathers_mean(num_words, num_workers):
            total += all_gather(num_words, num_workers)
        else:
            total += all_to_all(shard * num_workers, num_workers) + all_gather(shard, num_workers)
    return total


def _if_any(num_bytes: float, messages: int) -> Traffic:
    """No bytes, no messages: nothing is exchanged."""
    return Traffic(num_bytes, messages) if num_bytes else Traffic()
