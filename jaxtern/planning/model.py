"""Seconds of a training step by method, before anything runs: compute, codec and wire.

The wire is the alpha-beta model of `network.links`. The codec of the radix reducer is linear in elements: of n
compressed elements and N workers,

    scales + encode         n each
    decode                  n (decode + rows decode_row), N rows of "gather", one of the others
    addition of a shard     n sum_row of "scatter", n mean_row of "two_way": n / N elements of N workers each
    addition on the wire    add for every 32-bit word of "sum" and of "float" that a ring adds, n (N - 1) / N of "float"

Buckets, and pieces of large ones, are encoded and decoded while others are on their way: of codec and wire the shorter
is hidden, but for the largest piece's part. Each has messages of its own. Any other reducer sends what it says itself,
and computes as long as one worker of it was measured to, whatever N.

Every worker has as many examples whatever N, so a step's compute is that of one worker (weak scaling).
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

from jaxtern.compression.arguments import require_number
from jaxtern.compression.fragments import EVERY_STEP, Timing
from jaxtern.compression.network.links import Network, Traffic, all_gather, all_reduce, mean_in_order
from jaxtern.compression.radix.buckets import plan_buckets
from jaxtern.compression.radix.exchanges import EXCHANGES, Exchange
from jaxtern.compression.radix.pipeline import cut
from jaxtern.compression.radix.quantizer import Quantizer
from jaxtern.compression.reducer import Layout, Reducer
from jaxtern.kernels.radix import MAX_RADIX


@dataclasses.dataclass(frozen=True)
class QuantizerSpeed:
    """Seconds an element, on one worker.

    Attributes:
      flatten: to join several tensors to one vector, which CPUs need not.
      scales: moments of a gradient.
      encode: float32 to words.
      decode: words to float32, whatever the rows.
      decode_row: for every row of words on top.
      sum_row: an element of one worker in the sum of a shard ("scatter").
      mean_row: likewise in the mean of a shard, rounded to levels again ("two_way").
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
            require_number(name, value)


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

    @property
    def num_workers(self) -> int:
        """N, whose gradients are averaged."""
        return self.hosts if self.hierarchical else self.hosts * self.devices

    @property
    def sharing(self) -> int:
        """Devices that are one worker together."""
        return self.devices if self.hierarchical else 1


class Method(NamedTuple):
    """A way to the mean, as the model sees it.

    Attributes:
      elements: of all tensors.
      traffic: placement -> what one worker sends, all at once.
      work: placement -> seconds that one device computes.
      joined: N -> bytes from other workers that the devices of one worker hand on to each other.
      hide: (placement, seconds of the wire, latency, share) -> what is left of the wire beside so much of the work.
      most_workers: that it can serve.
    """

    elements: int
    traffic: Callable[[Placement], Traffic]
    work: Callable[[Placement], float]
    joined: Callable[[int], float] = lambda _: 0.0
    hide: Callable[[Placement, float, float, float], float] = lambda _, wire, *__: wire
    most_workers: float = math.inf


def measured_method(reducer: Reducer, layout: Layout, seconds: float, num_floats: int = 0) -> Method:
    """Any reducer, of which one worker alone computes so many seconds a step (see `speed.measure_reduce_seconds`).

    The layout is of the compressed tensors; others, of `num_floats` elements, stay float.
    """

    def traffic(placement: Placement) -> Traffic:
        return reducer.traffic(layout, placement.num_workers) + mean_in_order([num_floats], placement.num_workers)

    def joined(num_workers: int) -> float:
        total = reducer.traffic(layout, num_workers)
        return total.bytes - total.direct

    return Method(sum(layout.sizes) + num_floats, traffic, lambda _: seconds, joined)


def usual_methods(
    quantizer: Quantizer, layout: Layout, num_floats: int, speed: QuantizerSpeed, bucket_size: int | None = None
) -> dict[str, Method]:
    """The float mean, and the radix reducer by each of its exchanges.

    Quantizer and layout are of the compressed tensors; others, of `num_floats` elements, stay float. All travels at
    once, or by buckets of `bucket_size` elements, as in `jaxtern.ternary`.
    """
    elements = sum(layout.sizes) + num_floats

    def work(placement: Placement) -> float:
        return speed.add * elements * (_added(placement.num_workers) + _added(placement.sharing))

    plain = Method(elements, lambda placement: all_reduce(elements, placement.num_workers), work)
    arguments = quantizer, layout, num_floats, speed, bucket_size
    return {"float": plain, **{name: _exchange_method(way, *arguments) for name, way in EXCHANGES.items()}}


def _exchange_method(
    way: Exchange, quantizer: Quantizer, layout: Layout, num_floats: int, speed: QuantizerSpeed, bucket_size: int | None
) -> Method:
    n = sum(layout.sizes)
    first = n * (speed.scales + (speed.flatten if len(layout.sizes) > 1 else 0.0))

    def traffic(placement: Placement) -> Traffic:
        workers = placement.num_workers
        scales = quantizer.num_scales(layout.sizes) * placement.sharing if n else 0  # each device shares all of them
        total = all_reduce(scales, workers) + way.traffic(quantizer, n, workers)
        return total + mean_in_order([num_floats], workers)

    def work(placement: Placement) -> float:
        workers = placement.num_workers
        rows = workers if way.name == "gather" else 1
        seconds = first + n * (speed.encode + speed.decode + rows * speed.decode_row)
        if way.name == "sum":
            seconds += speed.add * quantizer.num_words(n, workers) * _added(workers) / placement.sharing
        shards = {"scatter": speed.sum_row, "two_way": speed.mean_row}
        seconds += n * shards.get(way.name, 0.0) / placement.sharing
        return seconds + speed.add * (num_floats * _added(workers) + (n + num_floats) * _added(placement.sharing))

    def joined(num_workers: int) -> float:
        rows = num_workers if way.name == "gather" else 1
        return 4 * rows * quantizer.num_words(n, num_workers if way.adds else 1)

    def hide(placement: Placement, wire: float, latency: float, share: float) -> float:
        if bucket_size is None or not n or placement.num_workers == 1:
            return wire
        where = bucket_size, quantizer, placement.hosts * placement.devices, placement.num_workers
        sizes = [size for each in plan_buckets(layout, bucket_size) for _, size in cut(each.size, *where)]
        wire += (len(sizes) - 1) * way.traffic(quantizer, n, placement.num_workers).messages * latency
        return wire - share * min(wire, work(placement) - first) * (1 - max(sizes) / n)

    most = (MAX_RADIX - 1) // (2 * quantizer.levels) if way.adds else math.inf
    return Method(n + num_floats, traffic, work, joined, hide, most)


def _added(num_workers: int) -> float:
    """Share of all elements that a worker of a ring adds."""
    return (num_workers - 1) / num_workers


def predict_step(
    method: Method,
    placement: Placement,
    network: Network,
    compute: float,
    overlap: bool = False,
    hidden: float = 1.0,
    timing: Timing = EVERY_STEP,
) -> StepTime:
    """What a step takes, if nothing is in the way that is not in the model.

    Args:
      method: of the mean.
      placement: where the workers are.
      network: the links between hosts.
      compute: seconds of a step without exchange.
      overlap: whether the wire is at work beside the computation (`delayed`), and only the rest of it is waited for.
      hidden: the share of the shorter of codec and wire that runs behind the other, 0 to 1: 1 where each has cores of
        its own, less where a network's own work and the codec share them.
      timing: of local steps; the step is then an average one, and a fragment's wire is at work beside one step.

    Raises:
      ValueError: for a method that cannot carry so many workers.
    """
    if placement.num_workers > method.most_workers:
        raise ValueError(f"placement: {placement.num_workers} workers: must be at most {method.most_workers}")
    links, parts = network if placement.hosts > 1 else placement.fast, timing.fragments
    wire, work = wire_seconds(method, placement, network), method.work(placement)
    wire += (parts - 1) * method.traffic(placement).messages * links.latency  # each fragment has messages of its own
    waits = max(0.0, wire - parts * compute) if overlap else method.hide(placement, wire, links.latency, hidden)
    return StepTime(compute, work / timing.steps, waits / timing.steps)


def wire_seconds(method: Method, placement: Placement, network: Network) -> float:
    """Of one step: between the hosts and, hierarchical or on a single host, between a host's devices.

    Where each device is a worker, a host sends what one worker does in a ring, which enters and leaves a host once; in
    an all-to-all each device sends to all devices of other hosts.
    """
    traffic, workers, devices = method.traffic(placement), placement.num_workers, placement.devices
    if placement.hierarchical:
        inside = all_reduce(method.elements, devices)
        if placement.hosts > 1:
            inside += all_gather(method.joined(workers) / 4 / devices, devices)
        return placement.fast.seconds(inside) + network.seconds(traffic)
    if placement.hosts == 1:
        return placement.fast.seconds(traffic)
    more = devices * (workers - devices) / (workers - 1) - 1  # copies besides the first
    return network.seconds(traffic._replace(bytes=traffic.bytes + more * traffic.direct))
