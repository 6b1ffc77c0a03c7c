"""Reports what compression sends, tensor by tensor, before anything runs."""

from typing import Any, NamedTuple

from jaxtern.compression.arguments import as_integer
from jaxtern.compression.fragments import as_timing, split_layout
from jaxtern.compression.methods import as_reducer
from jaxtern.compression.network.links import Network, Traffic, all_reduce
from jaxtern.compression.reducer import Reducer, put
from jaxtern.compression.transform import PathPredicate, keep_float, layout_of
from jaxtern.compression.wrappers import bytes_of_tensors


class TensorReport(NamedTuple):
    """A tensor's share of what a worker sends in a step."""

    path: str  # such as "conv1/kernel"
    elements: int
    bytes: float  # sent; tensors that travel together share them by their elements

    @property
    def bits_per_element(self) -> float:
        return 8 * self.bytes / self.elements if self.elements else 0.0


class WireReport(NamedTuple):
    """What one worker sends in a step.

    Attributes:
      num_workers: N.
      tensors: tensors in the order of the tree.
      traffic: traffic of all tensors; `traffic.ways` names the exchanges, with "auto" resolved.
      float_traffic: traffic of a float32 ring all-reduce of the same gradients.
    """

    num_workers: int
    tensors: tuple[TensorReport, ...]
    traffic: Traffic
    float_traffic: Traffic

    @property
    def elements(self) -> int:
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def bytes(self) -> float:
        """Sent by one worker in a step."""
        return self.traffic.bytes

    @property
    def bits_per_element(self) -> float:
        """Sent by one worker in a step, over all elements."""
        return 8 * self.bytes / self.elements if self.elements else 0.0

    @property
    def coded_bits_per_element(self) -> float:
        """`bits_per_element` if a perfect coder sent the digits of rotated elements, whose distribution is known."""
        return self.bits_per_element * (1 - self.traffic.saved / self.bytes) if self.bytes else 0.0

    @property
    def float_bits_per_element(self) -> float:
        return 8 * self.float_traffic.bytes / self.elements if self.elements else 0.0

    @property
    def ratio(self) -> float:
        """How many times fewer bytes than float32."""
        return self.float_traffic.bytes / self.bytes if self.bytes else 1.0

    @property
    def comparison(self) -> str:
        """How the bytes compare with float32's, and what to do if they are more."""
        if self.num_workers == 1:
            return "one worker sends nothing"
        if self.ratio < 0.995:
            return f"{1 / self.ratio:.1f} times MORE bytes than float32: too small a tree for this; take float"
        links = Network()
        if self.elements and links.seconds(self.traffic) > links.seconds(self.float_traffic):
            return f"{self.ratio:.1f} times fewer bytes, but no less time at 1 Gbit/s: too small a tree to gain by it"
        return f"{self.ratio:.1f} times fewer bytes"

    def summary(self) -> str:
        """The report in a line."""
        coded = f" ({self.coded_bits_per_element:.2f} by an ideal entropy coder)" if self.traffic.saved else ""
        return (
            f"{self.bits_per_element:.2f} bits per gradient element, worker and step{coded}; float32 all-reduce"
            f" {self.float_bits_per_element:.1f}: {self.comparison}"
        )

    def __str__(self) -> str:
        """A table of all tensors."""
        totals = (("total", self.bytes), ("float32", self.float_traffic.bytes))
        rows = [*self.tensors, *(TensorReport(name, self.elements, sent) for name, sent in totals)]
        width = max(len("tensor"), *(len(row.path) for row in rows))
        lines = [f"{'tensor':{width}}  {'elements':>12}  {'bits/element':>12}  {'bytes/step':>14}"]
        for number, row in enumerate(rows):
            share = row.bits_per_element / (self.float_bits_per_element or 1) if number < len(self.tensors) else 0
            kind = "" if share < 1 else "  float" if share < 1.05 else "  more than float"
            line = f"{row.path:{width}}  {row.elements:12,}  {row.bits_per_element:12.2f}  {row.bytes:14,.0f}{kind}"
            lines.append(line)
        ways = ", ".join(self.traffic.ways) or "nothing"
        return "\n".join([*lines, f"{self.num_workers} workers, by {ways}: {self.comparison}"])


def wire_report(
    tree: Any,
    reducer: Reducer | str = "ternary",
    num_workers: int = 2,
    *,
    min_size: int = 1,
    exclude: PathPredicate | None = None,
    local_steps: int = 1,
    fragments: int = 1,
) -> WireReport:
    """Reports what each of N workers sends in a step of `compressed_mean` with these arguments.

    It does not count what a network adds (headers of TCP and IP are some 3 % of full packets), nor what the devices of
    one worker send each other.

    Args:
      tree: gradients, weights, or `jax.ShapeDtypeStruct`s of their shapes.
      reducer, min_size, exclude: as in `compressed_mean`.
      num_workers: N.
      local_steps, fragments: H and P of `jaxtern.local_steps`; the report is then of an average step.

    Raises:
      ValueError: as `compressed_mean` and `jaxtern.local_steps`.
    """
    timing = as_timing(local_steps, fragments)
    num_workers = as_integer("num_workers", num_workers, 1)
    reducer = keep_float(as_reducer(reducer), as_integer("min_size", min_size, 1), exclude)
    layout = layout_of(tree, exclude=exclude)
    sent, traffic = [0.0] * len(layout.paths), Traffic()
    for places in split_layout(layout, timing.fragments):
        part = layout.select(places)
        own = reducer.traffic(part, num_workers)
        if not isinstance(own, Traffic):
            raise ValueError(f"reducer: its `traffic` returned {type(own).__name__}: must be a jaxtern.Traffic")
        traffic += own
        put(sent, places, [each / timing.steps for each in bytes_of_tensors(own, part)])
    traffic = traffic.over(timing.steps)
    tensors = tuple(map(TensorReport, layout.paths, layout.sizes, sent))
    return WireReport(num_workers, tensors, traffic, all_reduce(sum(layout.sizes), num_workers))
