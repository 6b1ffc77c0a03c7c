"""What is decided when an update is traced: what travels together, by which exchange, in which pieces."""

from typing import NamedTuple

import jax

from jaxtern.compression import cost, exchange as collectives, wire
from jaxtern.compression.buckets import Layout
from jaxtern.compression.codecs import Codec, Ternary
from jaxtern.compression.cost import Network
from jaxtern.compression.wire import Axes

IN_PLACE_SIZE = 2**16  # compressed elements; below, the codec is XLA's code, and better left to it as a whole


class Plan(NamedTuple):
    """What is known when an update is traced.

    Attributes:
      layout: of the gradients.
      codec: of those that are compressed.
      exchanges: of each bucket; none where nothing is compressed ("float").
      axes: where the workers lie.
      num_workers: N.
      local_workers: V, those of one device.
      piece_size: elements; a larger bucket travels in pieces of about so many. None: whole.
      network: the links between workers.
      is_in_place: whether means take the memory of gradients: of larger trees on a CPU, where `shard_map` does not
        track what varies (check_vma=False).
    """

    layout: Layout
    codec: Codec
    exchanges: tuple[str, ...]
    axes: Axes
    num_workers: int
    local_workers: int
    piece_size: int | None
    network: Network
    is_in_place: bool

    @property
    def is_chained(self) -> bool:
        """Whether all exchanges are one chain, on the memory of the gradients."""
        return self.is_in_place and self.local_workers == 1

    def num_added(self, number: int) -> int:
        """Workers whose words are added on the wire, in bucket `number`."""
        return self.num_workers if self.exchanges[number] == "sum" else 1

    def sizes(self, number: int) -> tuple[int, ...]:
        """Elements of the compressed tensors of bucket `number`."""
        return self.layout.sizes(self.layout.buckets[number].compressed)

    def pieces(self, number: int) -> list[tuple[int, int]]:
        """First element and elements of each piece of bucket `number`."""
        devices = collectives.count_workers(self.axes.workers) * collectives.count_workers(self.axes.fast)
        return cut(sum(self.sizes(number)), self.piece_size, self.codec, devices, self.num_workers)


def cut(total: int, piece_size: int | None, codec: Codec, devices: int, num_workers: int) -> list[tuple[int, int]]:
    """First element and elements of a bucket's pieces, all about alike; one where `piece_size` is None."""
    size = None
    if piece_size is not None:
        count = max(1, round(total / piece_size))
        size = codec.piece_size(-(-total // count), devices, num_workers) if count > 1 else None
    size = size or max(total, 1)
    return [(start, min(size, total - start)) for start in range(0, total, size)] or [(0, 0)]


def plan_update(
    layout: Layout,
    codec: Codec,
    exchange: str,
    axes: Axes,
    network: Network,
    local_workers: int,
    bucket_size: int | None,
) -> Plan:
    """Chooses each bucket's exchange.

    Raises:
      ValueError: for an exchange that cannot add so many workers.
    """
    num_workers = collectives.count_workers(axes.workers) * local_workers
    is_tracked = bool(collectives.checked_axes(axes.workers + axes.fast))  # what gradients become varies as they do
    is_large = sum(layout.sizes([place for bucket in layout.buckets for place in bucket.compressed])) >= IN_PLACE_SIZE
    is_in_place = jax.default_backend() == "cpu" and not is_tracked and is_large
    piece_size = bucket_size if is_in_place and local_workers == 1 else None
    shared = axes, num_workers, local_workers, piece_size, network, is_in_place
    if exchange == "float":
        return Plan(layout, codec, (), *shared)
    devices = collectives.count_workers(axes.fast)
    exchanges = tuple(
        choose_exchange(
            exchange, codec, layout.sizes(b.compressed), layout.sizes(b.floats), num_workers, network, devices
        )
        for b in layout.buckets
    )
    return Plan(layout, codec, exchanges, *shared)


def resolve(codec: Codec | str, exchange: str) -> tuple[Codec, str]:
    """The codec and exchange that the arguments name; either may say "float".

    Raises:
      ValueError: for any other name.
    """
    if exchange not in ("auto", *cost.EXCHANGES):
        raise ValueError(f"exchange={exchange!r}: must be one of auto, {', '.join(cost.EXCHANGES)}")
    if isinstance(codec, str):
        if codec not in ("ternary", "float"):
            raise ValueError(f"codec={codec!r}: must be ternary, float, or a Codec")
        return Ternary(), "float" if codec == "float" else exchange
    if not hasattr(codec, "encode"):
        raise ValueError(f"codec={codec!r}: must be ternary, float, or a Codec")
    return codec, exchange


def choose_exchange(
    exchange: str,
    codec: Codec,
    compressed: tuple[int, ...],
    floats: tuple[int, ...],
    num_workers: int,
    network: Network,
    devices_per_worker: int = 1,
) -> str:
    """What "auto" means for a bucket of tensors of these sizes.

    Raises:
      ValueError: for "sum" and "scatter" where the words of so many workers cannot be added.
    """
    if exchange == "auto":
        return cost.cheapest_exchange(codec, compressed, floats, num_workers, network, devices_per_worker)
    if exchange in ("sum", "scatter") and not codec.can_add(num_workers):
        raise ValueError(
            f"exchange={exchange!r}: the words of {num_workers} workers of {codec} do not add; take 'gather'"
        )
    return exchange


def send_span(
    plan: Plan, number: int, words: jax.Array, floats: jax.Array, *, as_total: bool = False
) -> wire.Received | wire.Shards:
    """Begins the exchange of a bucket, or a piece of it; `as_total` as in `wire.send_bucket`."""
    exchange = plan.exchanges[number]
    return wire.send_bucket(exchange, plan.codec, words, floats, plan.axes, plan.network, as_total=as_total)


def receive_span(
    plan: Plan,
    number: int,
    sent: wire.Received | wire.Shards,
    size: int,
    key: jax.Array,
    start: int,
    after: jax.Array,
) -> wire.Received:
    """Ends it, once `after` is there; `size` elements from `start` on."""
    position = plan.layout.buckets[number].position + start
    return wire.receive_bucket(plan.exchanges[number], plan.codec, sent, size, plan.axes, key, position, after)
