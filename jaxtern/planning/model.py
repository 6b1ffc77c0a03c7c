"""Seconds of a training step by exchange, before anything runs: compute, codec and wire.

The wire is the alpha-beta model of `cost`. The codec is linear in elements: of n compressed elements and N workers,

    scales + encode         n each
    decode                  n (decode + rows decode_row), N rows of "gather", one of the others
    addition of a shard     n sum_row of "scatter", n mean_row of "two_way": n / N elements of N workers each
    addition on the wire    add for every 32-bit word of "sum" and of "float" that a ring adds, n (N - 1) / N of "float"

Buckets, and pieces of large ones, are encoded and decoded while others are on their way: of codec and wire the shorter
is hidden, but for the largest piece's part. Each has messages of its own.

Every worker has as many examples whatever N, so a step's compute is that of one worker (weak scaling).
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxtern.compression import buckets, cost
from jaxtern.compression.codecs import Codec
from jaxtern.compression.network.links import Network, StepTraffic, Traffic
from jaxtern.compression.schedule import cut


@dataclasses.dataclass(frozen=True)
class CodecSpeed:
    """Seconds an element, on one worker.

    Attributes:
      flatten: to join several tensors to one vector, which CPUs need not.
      scales: moments of a gradient.
      encode: float32 to words.
      decode: words to float32, whatever the rows.
      decode_row: for every row of words on top.
      sum_row: an element of one worker in the sum of a shard ("scatter").
      mean_row: likewise in the mean of a shard, ternarised again ("two_way").
      add: a 32-bit word that an all-reduce adds.
    """

    flatten: float = 0.0
    scales: float = 0.0
    encode: float = 0.0
    decode: float = 0.0
    decode_row: float = 0.0
    sum_row: float = 0.0
    mean_row: float = 0.0
    add: float = 0.0

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not math.isfinite(value) or value < 0:
                raise ValueError(f"{name}={value!r}: must be a finite number of 0 or more, seconds an element")

    def shared(self, num_workers: int, threads: int, cores: int) -> "CodecSpeed":
        """That of workers which share the cores of one machine, as those of a laboratory do.

        All are at the same stage at the same time, so that beyond `cores` threads each takes
        max(1, num_workers * threads / cores) times as long; caches and memory that they share are not counted.
        """
        factor = max(1.0, num_workers * threads / cores)
        return CodecSpeed(**{name: value * factor for name, value in dataclasses.asdict(self).items()})


class StepTime(NamedTuple):
    """Seconds of a step on every worker, by what they are spent on.

    Attributes:
      compute: local gradients and update.
      codec: compression and decompression.
      wire: that the step waits for messages.
    """

    compute: float
    codec: float
    wire: float

    @property
    def total(self) -> float:
        return self.compute + self.codec + self.wire


INSIDE_HOST = Network(latency=1e-5, bandwidth=10e9)  # links between devices, if nothing else is known of them


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where the workers of a step are.

    Attributes:
      hosts: that links of `Network` join, one to a host.
      devices: of each host.
      hierarchical: whether a host's devices average their gradients as floats, to be one worker together; else every
        device is a worker.
      fast: links between the devices of a host.
    """

    hosts: int
    devices: int = 1
    hierarchical: bool = False
    fast: Network = INSIDE_HOST

    def __post_init__(self):
        for name in ("hosts", "devices"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r}: must be an integer of 1 or more")

    @property
    def num_workers(self) -> int:
        """N, whose gradients the exchange averages."""
        return self.hosts if self.hierarchical else self.hosts * self.devices


def predict_step(
    codec: Codec,
    exchange: str,
    sizes: tuple[int, ...],
    floats: tuple[int, ...],
    num_workers: int | Placement,
    network: Network,
    speed: CodecSpeed,
    compute_seconds: float,
    overlap: bool = False,
    bucket_size: int | None = None,
    hidden: float = 1.0,
) -> StepTime:
    """What a step takes, if nothing is in the way that is not in the model.

    Args:
      codec: of the compressed tensors.
      exchange: one of `cost.EXCHANGES`.
      sizes: of the compressed tensors, elements.
      floats: of those that stay float.
      num_workers: N, each on a host of its own; or where they are.
      network: the links between hosts.
      speed: of the codec.
      compute_seconds: of a step without exchange.
      overlap: whether the wire is at work beside the computation (`delayed`), and only the rest of it is waited for.
      bucket_size: elements, as in `compressed_mean`; None: all travels at once.
      hidden: the share of the shorter of codec and wire that runs behind the other, 0 to 1: 1 where each has cores of
        its own, less where a network's own work and the codec share them.

    Raises:
      ValueError: for an exchange that does not exist, or cannot add so many workers, or `hidden` beyond its range.
    """
    if not 0 <= hidden <= 1:
        raise ValueError(f"hidden={hidden!r}: must be from 0 to 1")
    placement = num_workers if isinstance(num_workers, Placement) else Placement(num_workers)
    workers = placement.num_workers
    if exchange in ("sum", "scatter") and not codec.can_add(workers):
        raise ValueError(f"exchange={exchange!r}: the words of {workers} workers of {codec} do not add")
    wire = wire_seconds(codec, exchange, sizes, floats, placement, network)
    work = codec_seconds(codec, exchange, sizes, floats, placement, speed)
    if overlap:
        wire = max(0.0, wire - compute_seconds)
    elif exchange != "float" and bucket_size and workers > 1 and sum(sizes):
        pieces, largest = _pieces(codec, sizes, placement, bucket_size)
        messages = cost.step_traffic(codec, exchange, sizes, floats, workers).words.messages
        wire += (pieces - 1) * messages * (network if placement.hosts > 1 else placement.fast).latency
        beside = work - sum(sizes) * (speed.scales + (speed.flatten if len(sizes) > 1 else 0.0))  # both come first
        wire -= hidden * min(wire, beside) * (1 - largest / sum(sizes))
    return StepTime(compute_seconds, work, wire)


def _pieces(codec: Codec, sizes: tuple[int, ...], placement: Placement, bucket_size: int) -> tuple[int, int]:
    """How many pieces of buckets are sent one after the other, and elements of the largest."""
    tree = [jax.ShapeDtypeStruct((size,), jnp.float32) for size in sizes]
    planned = buckets.plan_layout(tree, 1, None, bucket_size)
    devices, found = placement.hosts * placement.devices, []
    for bucket in planned.buckets:
        total = sum(planned.sizes(bucket.compressed))
        found += [size for _, size in cut(total, bucket_size, codec, devices, placement.num_workers)]
    return len(found), max(found)


def codec_seconds(
    codec: Codec,
    exchange: str,
    sizes: tuple[int, ...],
    floats: tuple[int, ...],
    placement: Placement,
    speed: CodecSpeed,
) -> float:
    """Of one device in one step; a host's devices each encode and decode all."""
    n, workers, others = sum(sizes), placement.num_workers, (placement.num_workers - 1) / placement.num_workers
    inside = (placement.devices - 1) / placement.devices if placement.hierarchical else 0.0
    added = speed.add * (n + sum(floats)) * inside  # by the float mean of a host's devices
    if exchange == "float":
        return added + speed.add * (n + sum(floats)) * others
    added += speed.add * sum(floats) * others
    rows = workers if exchange == "gather" else 1
    seconds = n * (speed.scales + speed.encode + speed.decode + rows * speed.decode_row)
    seconds += n * speed.flatten if len(sizes) > 1 else 0.0
    share = placement.devices if placement.hierarchical else 1  # a host's devices add a part of its shard each
    if exchange == "sum":
        added += speed.add * codec.num_words(sizes, workers) * others / share
    elif exchange == "scatter":
        added += speed.sum_row * n / share
    elif exchange == "two_way":
        added += speed.mean_row * n / share
    return seconds + added


def wire_seconds(
    codec: Codec, exchange: str, sizes: tuple[int, ...], floats: tuple[int, ...], placement: Placement, network: Network
) -> float:
    """Of one step: between the hosts and, hierarchical or on a single host, between a host's devices."""
    workers, n = placement.num_workers, sum(sizes) + sum(floats)
    if not placement.hierarchical:
        traffic = cost.step_traffic(codec, exchange, sizes, floats, workers)
        links = network if placement.hosts > 1 else placement.fast
        return links.seconds(_of_host(codec, exchange, sizes, traffic, placement))
    if placement.devices == 1:
        return network.seconds(cost.step_traffic(codec, exchange, sizes, floats, workers).total)
    inside = placement.fast.seconds(cost.all_reduce(n, placement.devices))
    if exchange == "float":
        return inside + network.seconds(cost.step_traffic(codec, exchange, sizes, floats, workers).total)
    if workers > 1:  # what each device has received, to the others of its host
        added = workers if exchange in ("sum", "scatter") else 1
        received = codec.num_words(sizes, added) * (workers if exchange == "gather" else 1)
        inside += placement.fast.seconds(cost.all_gather(received / placement.devices, placement.devices))
    traffic = cost.step_traffic(codec, exchange, sizes, floats, workers, placement.devices)
    return inside + network.seconds(traffic.total)


def _of_host(
    codec: Codec, exchange: str, sizes: tuple[int, ...], traffic: StepTraffic, placement: Placement
) -> Traffic:
    """What a host sends if each of its devices is a worker of its own.

    A ring enters and leaves a host once, so a host sends what one worker does. In the all-to-all of "scatter" and
    "two_way", which also carries half of what float tensors take, each device sends to all devices of other hosts.
    """
    total = traffic.total
    if exchange not in ("scatter", "two_way") or placement.devices == 1 or placement.hosts == 1:
        return total
    direct = cost.all_to_all(codec.num_words(sizes, 1), placement.num_workers).bytes + traffic.floats.bytes / 2
    copies = placement.devices * (placement.num_workers - placement.devices) / (placement.num_workers - 1)
    return total._replace(bytes=total.bytes + (copies - 1) * direct)
