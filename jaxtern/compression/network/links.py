"""Bytes and seconds on the wire, by the alpha-beta model of collectives.

Each message of a collective costs a latency (alpha), and each byte the inverse of the bandwidth (beta). In rings of N
workers, an all-reduce of B bytes sends 2 (N - 1) B / N bytes in 2 (N - 1) messages; an all-gather of B bytes from each
worker sends (N - 1) B in N - 1; an all-to-all of B bytes from each sends (N - 1) B / N in N - 1. See Thakur et al.,
Optimization of Collective Communication Operations in MPICH, 2005.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from jaxtern.compression.arguments import require_number
from jaxtern.compression.float_runs import gathers_mean, runs_of


class Traffic(NamedTuple):
    """What one worker sends in an update.

    Attributes:
      bytes: bytes of all messages.
      messages: number of messages, one after the other.
      ways: names of the exchanges, for reports.
      of_tensors: bytes of each tensor of the layout; None: the same for each element.
      direct: bytes that go straight to each other worker; the rest goes round a ring.
      saved: bytes that a perfect coder of the same digits would save, where the digits' distribution is known.
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

    def over(self, steps: float) -> "Traffic":
        """The traffic of an average step, if this is that of `steps` steps."""
        return self._replace(**{name: getattr(self, name) / steps for name in ("bytes", "messages", "direct", "saved")})


@dataclasses.dataclass(frozen=True)
class Network:
    """The links between workers.

    Attributes:
      latency: alpha, seconds that a message takes, whatever its size; over gloo there and back, as a ping does.
      bandwidth: bytes a second that a worker can send while it receives as many.
    """

    latency: float = 1e-4
    bandwidth: float = 125e6  # 1 Gbit/s

    def __post_init__(self):
        require_number("latency", self.latency)
        require_number("bandwidth", self.bandwidth, 1.0)

    def seconds(self, traffic: Traffic) -> float:
        """The time of the traffic alone."""
        return traffic.messages * self.latency + traffic.bytes / self.bandwidth


def all_reduce(num_words: float, num_workers: int) -> Traffic:
    """Traffic of an all-reduce of 32-bit words."""
    return _if_any(4 * num_words * 2 * (num_workers - 1) / num_workers, 2 * (num_workers - 1))


def all_gather(num_words: float, num_workers: int) -> Traffic:
    """Traffic of an all-gather of so many words from each worker."""
    return _if_any(4.0 * num_words * (num_workers - 1), num_workers - 1)


def all_to_all(num_words: float, num_workers: int) -> Traffic:
    """Traffic of an all-to-all of so many words from each worker, an equal part for each."""
    total = _if_any(4 * num_words * (num_workers - 1) / num_workers, num_workers - 1)
    return total._replace(direct=total.bytes)


def maximum(num_words: float, num_workers: int) -> Traffic:
    """Traffic of a maximum: an all-reduce, between two workers an all-gather."""
    return (all_gather if num_workers == 2 else all_reduce)(num_words, num_workers)


def mean_in_order(sizes: Sequence[int], num_workers: int, itemsize: int = 4) -> Traffic:
    """Traffic of `Group.mean` of float tensors with these sizes."""
    total = Traffic()
    for run in runs_of(sizes):
        num_words = -(-sum(end - start for _, start, end in run) * itemsize // 4)
        shard = -(-num_words // num_workers)
        if gathers_mean(num_words, num_workers):
            total += all_gather(num_words, num_workers)
        else:
            total += all_to_all(shard * num_workers, num_workers) + all_gather(shard, num_workers)
    return total


def share_bytes(total: float, parts: Sequence[float]) -> tuple[float, ...]:
    """Shares a total among tensors in proportion to `parts`, one number for each."""
    return tuple(total * part / max(sum(parts), 1) for part in parts)


def _if_any(num_bytes: float, messages: int) -> Traffic:
    """Traffic that has no messages if it has no bytes."""
    return Traffic(num_bytes, messages) if num_bytes else Traffic()
