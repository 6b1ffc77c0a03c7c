"""A model of the seconds of a training step by method: compute, codec and wire.

The wire follows the alpha-beta model of `network.links`. The codec of the radix reducer is linear in the elements; n
compressed elements and N workers take

    scales + encode         n each
    decode                  n (decode + rows decode_row), with N rows for "gather", one for the others
    addition of a shard     n sum_row for "scatter", n mean_row for "two_way": n / N elements of N workers each
    addition on the wire    add for every 32-bit word of "sum" and "float" that a ring adds, n (N - 1) / N for "float"

Buckets, and pieces of large ones, are encoded and decoded while others travel. This hides the shorter of codec and
wire, except for the largest piece's share, and gives each piece its own messages. Any other reducer states its own
traffic, and its codec takes the measured time of one worker for any N.

Scaling is weak: every worker has the same number of examples for any N, so a step's compute is that of one worker.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

from jaxtern.compression.fragments import EVERY_STEP, Timing
from jaxtern.compression.network.links import Network, Traffic, all_gather, all_reduce, maximum, mean_in_order
from jaxtern.compression.radix.buckets import plan_buckets
from jaxtern.compression.radix.exchanges import EXCHANGES, Exchange
from jaxtern.compression.radix.pipeline import cut
from jaxtern.compression.radix.quantizer import Quantizer
from jaxtern.compression.reducer import Layout, Reducer
from jaxtern.kernels.radix import MAX_RADIX


@dataclasses.dataclass(frozen=True)
class QuantizerSpeed:
    """The seconds of each stage for an element, on one worker."""

    flatten: float = 0.0  # joining several tensors to one vector, not needed on CPUs
    scales: float = 0.0  # moments of a gradient
    encode: float = 0.0  # float32 to words
    decode: float = 0.0  # words to float32, for any number of rows
    decode_row: float = 0.0  # in addition, for every row of words
    sum_row: float = 0.0  # adding an element of one worker to the sum of a shard ("scatter")
    mean_row: float = 0.0  # adding it to the mean of a shard, with rounding ("two_way")
    add: float = 0.0  # adding a 32-bit word in an all-reduce


class StepTime(NamedTuple):
    """The seconds of a step on every worker."""

    compute: float  # local gradients and update
    codec: float  # compression and decompression
    wire: float  # waiting for messages

    @property
    def total(self) -> float:
        return self.compute + self.codec + self.wire


INSIDE_HOST = Network(latency=1e-5, bandwidth=10e9)  # the default for links between the devices of a host


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where the workers of a step are."""

    hosts: int  # number of hosts, each with one link
    devices: int = 1  # of each host
    # whether the devices of a host average their gradients as floats and are one worker together; else every device is
    # a worker
    hierarchical: bool = False
    fast: Network = INSIDE_HOST  # links between the devices of a host

    @property
    def num_workers(self) -> int:
        """N, the number of workers."""
        return self.hosts if self.hierarchical else self.hosts * self.devices

    @property
    def sharing(self) -> int:
        """The number of devices of one worker."""
        return self.devices if self.hierarchical else 1


class Method(NamedTuple):
    """The costs of a method."""

    elements: int  # of all tensors
    traffic: Callable[[Placement], Traffic]  # placement -> what one worker sends in a step
    work: Callable[[Placement], float]  # placement -> seconds of codec on one device
    # N -> bytes from other workers that the devices of one worker pass to each other
    joined: Callable[[int], float] = lambda _: 0.0
    # (placement, seconds of the wire, latency, hidden fraction) -> seconds of the wire that the codec leaves
    hide: Callable[[Placement, float, float, float], float] = lambda _, wire, *__: wire
    most_workers: float = math.inf  # the largest N it can serve


def measured_method(reducer: Reducer, layout: Layout, seconds: float, num_floats: int = 0) -> Method:
    """The costs of any reducer, whose codec takes `seconds` of one worker (see `speed.measure_reduce_seconds`).

    The layout is that of the compressed tensors; `num_floats` further elements stay float.
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
    """The costs of the float mean, and of each exchange of the radix reducer.

    Quantizer and layout are those of the compressed tensors; `num_floats` further elements stay float. Buckets have
    `bucket_size` elements, as in `jaxtern.ternary`; None: a single bucket.
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
        scales = quantizer.num_scales(layout.sizes) * placement.sharing if n else 0  # each device sends all of them
        total = maximum(scales, workers) + way.traffic(quantizer, n, workers)
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
    """The fraction of all elements that each worker of a ring adds."""
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
    """Predicts the time of a step.

    Args:
      method: of the mean.
      placement: of the workers.
      network: the links between hosts.
      compute: seconds of a step without exchange.
      overlap: whether messages travel during the computation (`delayed`), so that the step waits only for the rest.
      hidden: fraction of the shorter of codec and wire that the longer hides, 0 to 1; below 1 if the network stack and
        the codec share cores.
      timing: of local steps; the step is then an average one, and each fragment travels during one step.

    Raises ValueError for more workers than the method can serve.
    """
    if placement.num_workers > method.most_workers:
        raise ValueError(f"placement: {placement.num_workers} workers: must be at most {method.most_workers}")
    links, parts = network if placement.hosts > 1 else placement.fast, timing.fragments
    wire, work = wire_seconds(method, placement, network), method.work(placement)
    wire += (parts - 1) * method.traffic(placement).messages * links.latency  # each fragment has messages of its own
    waits = max(0.0, wire - parts * compute) if overlap else method.hide(placement, wire, links.latency, hidden)
    return StepTime(compute, work / timing.steps, waits / timing.steps)


def wire_seconds(method: Method, placement: Placement, network: Network) -> float:
    """The seconds of a step's messages, between hosts and within hosts.

    If each device is a worker, a ring enters and leaves a host once, so a host sends as much as one worker; in an
    all-to-all, each device sends to all devices of other hosts.
    """
    traffic, workers, devices = method.traffic(placement), placement.num_workers, placement.devices
    if placement.hierarchical:
        inside = all_reduce(method.elements, devices)
        if placement.hosts > 1:
            inside += all_gather(method.joined(workers) / 4 / devices, devices)
        return placement.fast.seconds(inside) + network.seconds(traffic)
    if placement.hosts == 1:
        return placement.fast.seconds(traffic)
    more = devices * (workers - devices) / (workers - 1) - 1  # further copies
    return network.seconds(traffic._replace(bytes=traffic.bytes + more * traffic.direct))
