"""What a cluster may expect of every exchange: the planning model over numbers of workers, as table and sentence."""

import dataclasses
from typing import Any, NamedTuple

from jaxtern.compression import cost
from jaxtern.compression.codecs import Codec
from jaxtern.compression.network.links import Network
from jaxtern.planning.model import CodecSpeed, Placement, StepTime, predict_step

MOST_WORKERS = 1024


class Way(NamedTuple):
    """An exchange, and whether a host's devices are one worker of it."""

    exchange: str
    hierarchical: bool

    def __str__(self) -> str:
        return f"{self.exchange}, hierarchical" if self.hierarchical else self.exchange


@dataclasses.dataclass(frozen=True)
class Scenario:
    """What a forecast is made from.

    Attributes:
      hosts: that links join.
      devices: of each.
      network: links between hosts.
      fast: links between the devices of a host.
      speed: of the codec.
      compute_seconds: of a step without exchange, on one device.
      overlap: whether the wire works beside the computation.
      bucket_size: elements that travel together; None: all.
      hidden: share of the shorter of codec and wire that runs behind the other.
    """

    hosts: int
    devices: int
    network: Network
    fast: Network
    speed: CodecSpeed
    compute_seconds: float
    overlap: bool = False
    bucket_size: int | None = None
    hidden: float = 1.0

    def placement(self, workers: int, hierarchical: bool) -> Placement:
        """So many devices, host after host."""
        devices = min(workers, self.devices)
        return Placement(workers // devices, devices, hierarchical, self.fast)

    def worker_counts(self) -> list[int]:
        """One, then whole hosts, doubled up to MOST_WORKERS devices."""
        counts = [1]
        while (count := 2 * counts[-1] if counts[-1] >= self.devices else self.devices) <= MOST_WORKERS:
            counts.append(count)
        return counts


class Forecast:
    """Step times of all exchanges on a cluster and on smaller and larger ones of its kind."""

    def __init__(self, codec: Codec, sizes: tuple[int, ...], floats: tuple[int, ...], scenario: Scenario):
        """Predicts all of them.

        Args:
          codec: of the compressed tensors.
          sizes: of those, elements.
          floats: of tensors that stay float.
          scenario: where, on what links, how fast.
        """
        self.codec, self.sizes, self.floats, self.scenario = codec, sizes, floats, scenario
        first = ("float", *(name for name in cost.EXCHANGES if name != "float"))
        kinds = (False, True) if scenario.devices > 1 else (False,)
        self.ways = [Way(name, hierarchical) for hierarchical in kinds for name in first]
        self.here = self.predict(scenario.hosts * scenario.devices)
        self.scaling = {count: self.predict(count) for count in scenario.worker_counts()}

    def predict(self, workers: int) -> dict[Way, StepTime]:
        """Step times of so many devices, by exchange; without those that cannot add so many."""
        found = {}
        for way in self.ways:
            placement = self.scenario.placement(workers, way.hierarchical)
            if way.exchange in ("sum", "scatter") and not self.codec.can_add(placement.num_workers):
                continue
            c = self.scenario
            arguments = self.codec, way.exchange, self.sizes, self.floats, placement, c.network, c.speed
            found[way] = predict_step(*arguments, c.compute_seconds, c.overlap, c.bucket_size, c.hidden)
        return found

    def speed_up(self, workers: int, way: Way) -> float:
        """Throughput over one worker's, which exchanges nothing; 0 where the exchange cannot add so many."""
        time, alone = self.scaling[workers].get(way), self.scenario.compute_seconds
        return workers * alone / time.total if time and time.total else 0.0

    def best(self, names: tuple[str, ...]) -> Way:
        """The way by one of these exchanges that takes the least time on the cluster."""
        return min((way for way in self.here if way.exchange in names), key=lambda way: self.here[way].total)

    def recommendation(self) -> str:
        """One sentence: the best exact exchange, and what is faster still."""
        best, plain, two_way = self.best(cost.EXACT), self.best(("float",)), self.best(("two_way",))
        if self.scenario.hosts * self.scenario.devices == 1:
            return "one worker exchanges nothing: take float"
        exact, base, other = (self.here[way].total for way in (best, plain, two_way))
        if base <= exact:
            text = f"stay with {plain}: {seconds(base)} a step, while the best exact exchange, {best}, takes"
            text += f" {seconds(exact)}"
        else:
            text = f"take {best}: {seconds(exact)} a step, {base / exact:.2f} times the speed of float"
        if other < min(exact, base):
            text += f"; {two_way}, which is unbiased but not exact, takes {seconds(other)}"
            text += f", {base / other:.2f} times the speed of float"
        return text

    def to_json(self) -> dict[str, Any]:
        """All figures, in seconds and bytes a second."""

        def row(way: Way, time: StepTime) -> dict[str, Any]:
            names = {"exchange": way.exchange, "hierarchical": way.hierarchical}
            return names | time._asdict() | {"total": time.total}

        best = self.best(cost.EXACT)
        return {
            "cluster": dataclasses.asdict(self.scenario),
            "elements": {"compressed": sum(self.sizes), "float": sum(self.floats)},
            "step": [row(way, time) for way, time in self.here.items()],
            "scaling": [
                {"workers": count, **row(way, time), "speed_up": self.speed_up(count, way)}
                for count, times in self.scaling.items()
                for way, time in times.items()
            ],
            "best": {"exchange": best.exchange, "hierarchical": best.hierarchical},
            "recommendation": self.recommendation(),
        }

    def __str__(self) -> str:
        """Two tables of fewer than 100 columns: the cluster's step, and its speed-up at other sizes."""
        return f"{self._step_table()}\n\n{self._scaling_table()}"

    def _step_table(self) -> str:
        base = self.here[self.best(("float",))].total
        lines = [f"{'exchange':22}{'compute':>11}{'codec':>11}{'wire':>11}{'step':>11}{'over float':>12}"]
        for way, time in self.here.items():
            columns = "".join(f"{seconds(each):>11}" for each in (*time, time.total))
            lines.append(f"{way!s:22}{columns}{base / time.total if time.total else 1.0:12.2f}")
        return "\n".join(lines)

    def _scaling_table(self) -> str:
        names = list(dict.fromkeys(way.exchange for way in self.ways))
        blocks = []
        for hierarchical in dict.fromkeys(way.hierarchical for way in self.ways):
            title = f"step and speed-up over one worker{', hierarchical' if hierarchical else ''}"
            lines = [title, f"{'workers':>7}" + "".join(f"{name:>18}" for name in names)]
            for count, times in self.scaling.items():
                cells = [self._cell(count, times, Way(name, hierarchical)) for name in names]
                lines.append(f"{count:7,}" + "".join(f"{cell:>18}" for cell in cells))
            blocks.append("\n".join(lines))
        return "\n\n".join(blocks)

    def _cell(self, count: int, times: dict[Way, StepTime], way: Way) -> str:
        return f"{seconds(times[way].total)} {self.speed_up(count, way):6.1f}" if way in times else "-"


def seconds(value: float) -> str:
    """A time with three digits and its unit."""
    factor, unit = (1.0, "s") if value >= 0.9995 else (1e3, "ms") if value >= 0.9995e-3 else (1e6, "us")
    scaled = value * factor
    return f"{scaled:.{0 if scaled >= 99.95 else 1 if scaled >= 9.995 else 2}f} {unit}" if value else "0"
