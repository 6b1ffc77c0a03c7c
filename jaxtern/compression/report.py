"""What compression puts on the wire, tensor by tensor, before anything runs."""

from typing import Any, NamedTuple

from jaxtern.compression import buckets, cost
from jaxtern.compression.codecs import Codec
from jaxtern.compression.cost import Network, StepTraffic, Traffic
from jaxtern.compression.mean import choose_exchange, resolve


class TensorReport(NamedTuple):
    """One tensor's share of what a worker sends in a step.

    Attributes:
      path: as "conv1/kernel".
      elements: of its gradient.
      compressed: whether it is; else it stays float.
      bytes: sent, an equal part of the bucket's words for each element, and its own scales.
    """

    path: str
    elements: int
    compressed: bool
    bytes: float

    @property
    def bits_per_element(self) -> float:
        return 8 * self.bytes / self.elements if self.elements else 0.0


class WireReport(NamedTuple):
    """What one worker sends in a step.

    Attributes:
      num_workers: N.
      exchanges: of every bucket, "auto" resolved.
      tensors: in the order of the tree.
      traffic: of scales, words and float tensors.
      float_traffic: of a float32 ring all-reduce of the same gradients.
    """

    num_workers: int
    exchanges: tuple[str, ...]
    tensors: tuple[TensorReport, ...]
    traffic: StepTraffic
    float_traffic: Traffic

    @property
    def elements(self) -> int:
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def bytes(self) -> float:
        """Sent by one worker in a step."""
        return self.traffic.total.bytes

    @property
    def bits_per_element(self) -> float:
        """Sent by one worker in a step, over all elements."""
        return 8 * self.bytes / self.elements if self.elements else 0.0

    @property
    def float_bits_per_element(self) -> float:
        return 8 * self.float_traffic.bytes / self.elements if self.elements else 0.0

    @property
    def ratio(self) -> float:
        """Times fewer bytes than float32's."""
        return self.float_traffic.bytes / self.bytes if self.bytes else 1.0

    def summary(self) -> str:
        """One line."""
        return (
            f"{self.bits_per_element:.2f} bits per gradient element, worker and step; float32 all-reduce"
            f" {self.float_bits_per_element:.1f}: {self.ratio:.1f} times fewer"
        )

    def __str__(self) -> str:
        """A table of all tensors."""
        width = max([len("tensor"), *(len(tensor.path) for tensor in self.tensors)])
        lines = [f"{'tensor':{width}}  {'elements':>12}  {'bits/element':>12}  {'bytes/step':>14}"]
        for tensor in self.tensors:
            kind = "" if tensor.compressed else "  float"
            lines.append(
                f"{tensor.path:{width}}  {tensor.elements:12,}  {tensor.bits_per_element:12.2f}"
                f"  {tensor.bytes:14,.0f}{kind}"
            )
        lines.append(f"{'total':{width}}  {self.elements:12,}  {self.bits_per_element:12.2f}  {self.bytes:14,.0f}")
        fp32 = self.float_traffic.bytes
        lines.append(f"{'float32':{width}}  {self.elements:12,}  {self.float_bits_per_element:12.2f}  {fp32:14,.0f}")
        names = ", ".join(dict.fromkeys(self.exchanges)) or "float"
        return "\n".join([*lines, f"{self.num_workers} workers, exchange {names}: {self.ratio:.1f} times fewer bytes"])


def wire_report(
    tree: Any,
    codec: Codec | str = "ternary",
    exchange: str = "auto",
    num_workers: int = 2,
    *,
    min_size: int = 1,
    exclude: buckets.PathPredicate | None = None,
    bucket_size: int | None = buckets.BUCKET_SIZE,
    network: Network | None = None,
    devices_per_worker: int = 1,
) -> WireReport:
    """What each of N workers sends in a step of `compressed_mean` with these arguments, counted from the words.

    What a network adds (headers of TCP and IP: some 3 % of full packets) is not in it, nor what the devices of one
    worker send one another.

    Args:
      tree: gradients, weights, or `jax.ShapeDtypeStruct`s of their shapes.
      codec, exchange, min_size, exclude, bucket_size, network: as in `compressed_mean`.
      num_workers: N.
      devices_per_worker: devices along the fast axes.

    Raises:
      ValueError: as `compressed_mean`.
    """
    if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 1:
        raise ValueError(f"num_workers={num_workers!r}: must be an integer of 1 or more")
    codec, exchange = resolve(codec, exchange)
    layout = buckets.plan_layout(tree, min_size, exclude, bucket_size)
    shares: dict[int, TensorReport] = {}
    exchanges, totals = [], [Traffic(), Traffic(), Traffic()]
    for bucket in layout.buckets:
        sizes = layout.sizes(bucket.compressed), layout.sizes(bucket.floats)
        chosen = exchange
        if exchange != "float":
            chosen = choose_exchange(exchange, codec, *sizes, num_workers, network or Network(), devices_per_worker)
        traffic = cost.step_traffic(codec, chosen, *sizes, num_workers, devices_per_worker)
        exchanges.append(chosen)
        totals = [total + part for total, part in zip(totals, traffic, strict=True)]
        shares |= _shares(layout, bucket, codec, traffic, is_compressed=exchange != "float")
    float_traffic = cost.all_reduce(sum(share.elements for share in shares.values()), num_workers)
    tensors = tuple(shares[place] for place in range(len(layout.paths)))
    return WireReport(num_workers, tuple(exchanges), tensors, StepTraffic(*totals), float_traffic)


def _shares(
    layout: buckets.Layout, bucket: buckets.Bucket, codec: Codec, traffic: StepTraffic, is_compressed: bool
) -> dict[int, TensorReport]:
    """What each tensor of a bucket sends of its traffic, by its place."""
    shares = {}
    for places, sent, compressed in (
        (bucket.compressed, traffic.words, is_compressed),
        (bucket.floats, traffic.floats, False),
    ):
        sizes = layout.sizes(places)
        scales = codec.num_scales(sizes)
        for place, size in zip(places, sizes, strict=True):
            own = sent.bytes * size / max(sum(sizes), 1)
            if compressed and scales:
                own += traffic.scales.bytes * codec.num_scales((size,)) / scales
            shares[place] = TensorReport(layout.paths[place], size, compressed, own)
    return shares
