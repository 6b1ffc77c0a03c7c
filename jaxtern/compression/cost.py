"""Bytes and seconds of every exchange: what goes over the wire, by the alpha-beta model of collectives.

A collective of N workers is a row of messages, each of which costs a latency (alpha), and of bytes, which cost the
inverse of the bandwidth (beta). Rings: an all-reduce of B bytes sends 2 (N - 1) B / N in 2 (N - 1) messages, an
all-gather of B bytes each (N - 1) B in N - 1, an all-to-all of B bytes each (N - 1) B / N in N - 1. See Thakur et al.,
Optimization of Collective Communication Operations in MPICH, 2005.
"""

import dataclasses
import math
from typing import NamedTuple

from jaxtern.compression.codecs import Codec

EXACT = ("gather", "sum", "scatter")
PAIR_LATENCIES = 20  # that a message of a round of pairs must take, so that waiting for all hosts is worth its bytes
EXCHANGES = (*EXACT, "two_way", "float")

_GATHERED_FLOAT_BYTES = 2**16  # up to so many sent, one collective is better than two that send fewer


class Traffic(NamedTuple):
    """What one worker sends: bytes, in messages one after the other."""

    bytes: float = 0.0
    messages: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":  # pyright: ignore[reportIncompatibleMethodOverride]
        return Traffic(self.bytes + other.bytes, self.messages + other.messages)


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
        for name, value, least in (("latency", self.latency, 0.0), ("bandwidth", self.bandwidth, 1.0)):
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not math.isfinite(value) or value < least:
                raise ValueError(f"{name}={value!r}: must be a finite number of {least:g} or more")

    def seconds(self, traffic: Traffic) -> float:
        """Time of the traffic, if nothing else is in the way."""
        return traffic.messages * self.latency + traffic.bytes / self.bandwidth


class StepTraffic(NamedTuple):
    """What one worker sends in one update, by purpose."""

    scales: Traffic
    words: Traffic
    floats: Traffic

    @property
    def total(self) -> Traffic:
        return self.scales + self.words + self.floats


def all_reduce(num_words: float, num_workers: int) -> Traffic:
    """Of words of 32 bits, summed over the workers."""
    return Traffic(4 * num_words * 2 * (num_workers - 1) / num_workers, 2 * (num_workers - 1))


def all_gather(num_words: float, num_workers: int) -> Traffic:
    """Of so many words of each worker."""
    return Traffic(4.0 * num_words * (num_workers - 1), num_workers - 1)


def all_to_all(num_words: float, num_workers: int) -> Traffic:
    """Of so many words of each worker, an equal part for each."""
    return Traffic(4 * num_words * (num_workers - 1) / num_workers, num_workers - 1)


def gathers_floats(num_floats: int, num_workers: int) -> bool:
    """Whether float tensors that travel by themselves are gathered, rather than averaged shard by shard."""
    return num_workers <= 2 or 4 * num_floats * (num_workers - 1) <= _GATHERED_FLOAT_BYTES


def step_traffic(
    codec: Codec,
    exchange: str,
    compressed: tuple[int, ...],
    floats: tuple[int, ...],
    num_workers: int,
    devices_per_worker: int = 1,
) -> StepTraffic:
    """What one worker sends in one update of one bucket.

    Args:
      codec: of the compressed tensors.
      exchange: one of EXCHANGES; "float" for no compression at all.
      compressed: sizes of the compressed tensors.
      floats: sizes of the tensors that stay float.
      num_workers: N.
      devices_per_worker: that share a worker's traffic; what they send one another is not counted.

    Raises:
      ValueError: for an exchange that does not exist.
    """
    if exchange not in EXCHANGES:
        raise ValueError(f"exchange={exchange!r}: must be one of {', '.join(EXCHANGES)}")
    if num_workers == 1:
        return StepTraffic(Traffic(), Traffic(), Traffic())
    num_floats = sum(floats)
    if exchange == "float":
        return StepTraffic(
            Traffic(),
            all_reduce(sum(compressed), num_workers),
            all_reduce(num_floats, num_workers)._replace(messages=0),
        )
    scales = all_reduce(codec.num_scales(compressed) * devices_per_worker, num_workers)
    words, float_traffic = _payloads(codec, exchange, compressed, num_floats, num_workers, devices_per_worker)
    return StepTraffic(_if_any(scales), _if_any(words), _if_any(float_traffic))


def step_bits(
    codec: Codec, exchange: str, compressed: tuple[int, ...], floats: tuple[int, ...], num_workers: int
) -> float:
    """Bits that one worker sends in one update, as `step_traffic` has them."""
    return 8 * step_traffic(codec, exchange, compressed, floats, num_workers).total.bytes


def _payloads(
    codec: Codec, exchange: str, compressed: tuple[int, ...], num_floats: int, num_workers: int, devices: int
) -> tuple[Traffic, Traffic]:
    """Words and float tensors; those that travel in the collectives of the words take no messages of their own."""
    if exchange == "gather":
        width = codec.num_words(compressed, 1)
        floats = all_gather(num_floats, num_workers)
        return all_gather(width, num_workers), floats._replace(messages=0) if width else floats
    if exchange == "sum":
        words = all_reduce(_round_up(codec.num_words(compressed, num_workers), devices), num_workers)
        if gathers_floats(num_floats, num_workers):
            return words, all_gather(num_floats, num_workers)
        return words, all_reduce(_round_up(num_floats, num_workers * devices), num_workers)
    num_added = num_workers if exchange == "scatter" else 1
    shards = num_workers * devices
    shard = codec.shard_words(codec.num_words(compressed, 1), shards, num_added)
    back = codec.num_words((codec.num_places(shard),), num_added)
    words = all_to_all(shard * shards, num_workers) + all_gather(back * devices, num_workers)
    floats = all_reduce(_round_up(num_floats, shards), num_workers)
    return words, floats._replace(messages=0) if shard else floats


def prefers_pairs(shard_words: int, network: Network) -> bool:
    """Whether an all-to-all over CPUs is better made of rounds of pairs: where messages outlast their latency."""
    return 4 * shard_words / network.bandwidth > PAIR_LATENCIES * network.latency


def cheapest_exchange(
    codec: Codec,
    compressed: tuple[int, ...],
    floats: tuple[int, ...],
    num_workers: int,
    network: Network,
    devices_per_worker: int = 1,
) -> str:
    """The exact exchange that takes the least time; of several alike the one that comes first in EXACT."""
    candidates = [name for name in EXACT if name == "gather" or codec.can_add(num_workers)]

    def seconds(name: str) -> float:
        traffic = step_traffic(codec, name, compressed, floats, num_workers, devices_per_worker)
        return network.seconds(traffic.total)

    return min(candidates, key=seconds)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _if_any(traffic: Traffic) -> Traffic:
    """No bytes, no messages: nothing is exchanged."""
    return traffic if traffic.bytes else Traffic()
