"""Forecasts step times and speed-up of every method for numbers of workers, as tables and a recommendation."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from jaxtern.compression.fragments import EVERY_STEP, Timing
from jaxtern.compression.network.links import Network
from jaxtern.compression.radix.exchanges import EXCHANGES
from jaxtern.planning.model import Method, Placement, StepTime, predict_step

_LOCAL_STEPS = 10, 30, 100, 300, 1000


class Way(NamedTuple):
    """A method's name, and whether all devices of a host are one worker."""

    method: str
    hierarchical: bool

    def __str__(self) -> str:
        return f"{self.method}, hierarchical" if self.hierarchical else self.method


@dataclasses.dataclass(frozen=True)
class Scenario:
    """The cluster and job of a forecast."""

    hosts: int  # number of hosts
    devices: int  # of each host
    network: Network  # links between hosts
    fast: Network  # links between the devices of a host
    compute_seconds: float  # of a step without exchange, on one device
    overlap: bool = False  # whether messages travel during the computation
    timing: Timing = EVERY_STEP  # when local steps exchange

    def placement(self, workers: int, hierarchical: bool) -> Placement:
        """The placement of this many devices, host after host."""
        devices = min(workers, self.devices)
        return Placement(workers // devices, devices, hierarchical, self.fast)

    def worker_counts(self) -> list[int]:
        """One device, one host and its doublings up to 1,024 devices, and the cluster's own."""
        doubled = (self.devices * 2**power for power in range(11))
        return sorted({1, *(count for count in doubled if count <= 1024), self.hosts * self.devices})


class Forecast:
    """Step times of all methods, by name, on a cluster and on smaller and larger ones.

    The baseline is "float", exchanged in every step.
    """

    def __init__(self, methods: dict[str, Method], scenario: Scenario):
        self.methods, self.scenario = methods, scenario
        kinds = (False, True) if scenario.devices > 1 else (False,)
        self.ways = [Way(name, hierarchical) for hierarchical in kinds for name in methods]
        workers = scenario.hosts * scenario.devices
        self.here, self.every_step = self.predict(workers), self.predict(workers, EVERY_STEP)
        self.scaling = {count: self.predict(count) for count in scenario.worker_counts()}

    def predict(self, workers: int, timing: Timing | None = None) -> dict[Way, StepTime]:
        """Step times for this many devices, of the methods that can serve them; timing None is the scenario's."""
        found, c = {}, self.scenario
        for way in self.ways:
            method, placement = self.methods[way.method], c.placement(workers, way.hierarchical)
            if placement.num_workers <= method.most_workers:
                given = method, placement, c.network, c.compute_seconds, c.overlap
                found[way] = predict_step(*given, timing=timing or c.timing)
        return found

    def speed_up(self, workers: int, way: Way) -> float:
        """Throughput relative to one worker, which exchanges nothing; 0 if the method cannot serve so many."""
        time, alone = self.scaling[workers].get(way), self.scenario.compute_seconds
        return workers * alone / time.total if time and time.total else 0.0

    def best(self, names: Sequence[str]) -> Way:
        """The fastest way on the cluster by one of these methods."""
        return min((way for way in self.here if way.method in names), key=lambda way: self.here[way].total)

    def best_exact(self) -> Way:
        """The fastest way by an exact exchange."""
        return self.best([name for name, each in EXCHANGES.items() if each.exact])

    def recommendation(self) -> str:
        """One sentence: the best exact method, and methods that are faster still."""
        if self.scenario.hosts * self.scenario.devices == 1:
            return "one worker exchanges nothing: take float"
        best, plain = self.best_exact(), self.best(["float"])
        exact, base = self.here[best].total, self.every_step[plain].total
        usual = "float" if self.scenario.timing.steps == 1 else "float in every step"
        if base <= exact:
            text = f"stay with {plain}: {seconds(base)} a step"
            text += f", while the best exact exchange, {best}, takes {seconds(exact)}" if best != plain else ""
        else:
            text = f"take {best}: {seconds(exact)} a step, {base / exact:.2f} times the speed of {usual}"
        least = min(exact, base)
        speed = self.scenario.hosts * self.scenario.devices * self.scenario.compute_seconds / least if least else 0.0
        text += f" and {speed:.2f} times that of one worker, which is faster alone" if 0 < speed < 1 else ""
        for way in (self.best([name]) for name in dict.fromkeys(way.method for way in self.here)):
            if way not in (best, plain) and self.here[way].total < least:
                what = ", which is unbiased but not exact," if way.method == "two_way" else ""
                text += f"; {way}{what} takes {seconds(self.here[way].total)}"
                text += f", {base / self.here[way].total:.2f} times the speed of {usual}"
        return text + self._recommend_local_steps(best if exact < base else plain)

    def _recommend_local_steps(self, way: Way) -> str:
        """Recommends local steps, as many as bring a step near its computation, if the exchange takes half as long."""
        compute, workers = self.scenario.compute_seconds, self.scenario.hosts * self.scenario.devices
        if self.scenario.timing.steps > 1 or self.here[way].total < 1.5 * compute or not compute:
            return ""
        totals = {steps: self.predict(workers, Timing(steps))[way].total for steps in _LOCAL_STEPS}
        steps = next((steps for steps, total in totals.items() if total < 1.1 * compute), _LOCAL_STEPS[-1])
        text = f"; with an exchange in {steps} steps (local.steps={steps}) it takes {seconds(totals[steps])} on average"
        return text + (", but try 10 to 30 steps first, as more cost accuracy" if steps > 30 else "")

    def __str__(self) -> str:
        """Two tables, less than 100 columns wide: the cluster's step, and the speed-up at other sizes."""
        return f"{self._step_table()}\n\n{self._scaling_table()}"

    def _step_table(self) -> str:
        base = self.every_step[self.best(["float"])].total
        lines = [f"{'method':22}{'compute':>11}{'codec':>11}{'wire':>11}{'step':>11}{'times float':>12}"]
        for way, time in self.here.items():
            columns = "".join(f"{seconds(each):>11}" for each in (*time, time.total))
            lines.append(f"{way!s:22}{columns}{base / time.total if time.total else 1.0:12.2f}")
        return "\n".join(lines)

    def _scaling_table(self) -> str:
        blocks = []
        for hierarchical in dict.fromkeys(way.hierarchical for way in self.ways):
            title = f"step and speed-up over one worker{', hierarchical' if hierarchical else ''}"
            lines = [title, f"{'workers':>7}" + "".join(f"{name:>15}" for name in self.methods)]
            for count, times in self.scaling.items():
                line = f"{count:7,}"
                for way in (Way(name, hierarchical) for name in self.methods):
                    cell = f"{seconds(times[way].total)} {self.speed_up(count, way):6.1f}" if way in times else "-"
                    line += f"{cell:>15}"
                lines.append(line)
            blocks.append("\n".join(lines))
        return "\n\n".join(blocks)


def seconds(value: float) -> str:
    """Formats a time with three digits and its unit."""
    factor, unit = (1.0, "s") if value >= 0.9995 else (1e3, "ms") if value >= 0.9995e-3 else (1e6, "us")
    scaled = value * factor
    return f"{scaled:.{0 if scaled >= 99.95 else 1 if scaled >= 9.995 else 2}f} {unit}" if value else "0"
