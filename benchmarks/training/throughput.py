"""The throughput model of TernGrad's paper, and what this package would give on the same clusters.

    python -m benchmarks.training.throughput

The paper (Wen et al., NIPS 2017, figure 5) predicts the throughput of two clusters of 128 nodes of 4 GPUs. Printed are
its speed-ups of ternary over float32 gradients at 512 GPUs, and what follows from the set-up below.

Known of the paper: nodes, GPUs, links between nodes, a GPU's batches (its figure 5); that gradients go to parameter
servers, with 2 bits an element, and that the sum of N workers' trits comes back. Its formulas and the times it profiled
were not to be had. Assumed are:

- Compute: times of 16 images that others have measured on a GTX 1080, by which each network reaches a share of the
  peak. Larger batches, VGG-A (measured was VGG-16) and the P100 are taken to reach the same share.
- Parameter servers: the weights are spread over all nodes, so a node, as worker and as server together, sends all
  gradients but its own part once up and once down, which is also what a ring sends. One server for all would leave
  nothing but the wire, so that all three networks would gain alike, and by the published numbers they do not.
- Workers: a node's GPUs average their gradients as floats, inside, before they go out, so N = 128.
- Down, log2(2 N + 1) bits an element; codec and server take no time; nothing overlaps.

"At most" is the ratio of the bits, 64 / (2 + log2(2 N + 1)), which no computation, however short, can surpass: where
the published number is above it, the paper cannot have counted so many bits down. "2 bits down" is the other extreme,
and "compute for that, ms" what the computation would have to take for it to give what was published.

This package's exchanges are hierarchical on the same links and latencies, over the same compute, against its own ring
of floats; codec at no cost there too. Their wire is that of `jaxtern.compression.planning`.
"""

import math
from typing import NamedTuple

from benchmarks.commands import at_least, create_parser
from jaxtern import Network, Ternary
from jaxtern.compression.cost import all_reduce
from jaxtern.compression.planning import CodecSpeed, Placement, predict_step

GTX_1080, P100 = 8.87e12, 10.6e12  # float32 operations a second, by the data sheets


class Model(NamedTuple):
    """A network and how a GPU of the paper trains it.

    Attributes:
      parameters: as the networks are usually counted; GoogLeNet without its auxiliary classifiers.
      multiplications: of an image's forward pass; backward takes twice as many.
      batch: images of a GPU in a step, from the paper.
      measured: seconds of a forward and backward pass of 16 images of so many multiplications on a GTX 1080.
    """

    parameters: int
    multiplications: float
    batch: int
    measured: tuple[float, float]

    @property
    def share(self) -> float:
        """Of a GPU's peak that training reaches; a multiplication and an addition are two operations."""
        seconds, multiplications = self.measured
        return 16 * 6 * multiplications / seconds / GTX_1080


class Cluster(NamedTuple):
    """A cluster of the paper.

    Attributes:
      peak: float32 operations a second of a GPU.
      between: links between nodes: the rate is the paper's, the latency assumed.
      inside: links between a node's GPUs, assumed: 80 % of PCI Express 3.0 x16, and of two NVLinks.
      published: speed-up of ternary gradients at 512 GPUs, by network.
    """

    peak: float
    between: Network
    inside: Network
    published: dict[str, float]


# Times: the table of jcjohnson/cnn-benchmarks (2016-2017), Torch with cuDNN 5.0.
MODELS = {
    "AlexNet": Model(61_100_840, 0.71e9, 128, (23.08e-3, 0.71e9)),
    "GoogLeNet": Model(6_998_552, 1.5e9, 64, (56.16e-3, 1.5e9)),
    "VGG-A": Model(132_863_336, 7.6e9, 32, (233.43e-3, 15.5e9)),  # VGG-16
}
CLUSTERS = {
    "1 Gbit/s Ethernet, PCI switch, GTX 1080": Cluster(
        GTX_1080,
        Network(latency=5e-5, bandwidth=125e6),
        Network(latency=1e-5, bandwidth=12.6e9),
        {"AlexNet": 3.9, "GoogLeNet": 1.7, "VGG-A": 7.7},
    ),
    "100 Gbit/s InfiniBand, NVLink, P100": Cluster(
        P100,
        Network(latency=2e-6, bandwidth=12.5e9),
        Network(latency=1e-5, bandwidth=32e9),
        {"AlexNet": 1.31, "GoogLeNet": 1.04, "VGG-A": 2.2},
    ),
}
GPUS = 4  # of a node
NO_COST = CodecSpeed()

COLUMNS = (
    *("network", "compute, ms", "float32 wire, ms", "published", "predicted", "over published"),
    *("at most", "2 bits down", "compute for that, ms", "scatter", "two_way"),
)
HEADING = f"| {' | '.join(COLUMNS)} |\n| --- |{' ---: |' * (len(COLUMNS) - 1)}"


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--nodes", type=at_least(2), default=128, help="of 4 GPUs each; published: 128")
    nodes = parser.parse_args().nodes
    for name, cluster in CLUSTERS.items():
        print(f"{name}: {nodes} nodes of {GPUS} GPUs, speed-up over float32\n\n{HEADING}")
        for network in MODELS:
            print(as_line(network, cluster, nodes))
        print()


def as_line(name: str, cluster: Cluster, nodes: int) -> str:
    model, published = MODELS[name], cluster.published[name]
    compute = compute_seconds(model, cluster)
    predicted, least = (server_speed_up(model, cluster, nodes, down) for down in (sum_bits(nodes), 2.0))
    ours = [f"{ring_speed_up(exchange, model, cluster, nodes):.2f}" for exchange in ("scatter", "two_way")]
    wire = server_seconds(model, cluster, nodes, 32, 32)
    figures = [
        f"{1e3 * compute:.0f}",
        f"{1e3 * wire:.0f}",
        f"{published:.2f}",
        f"{predicted:.2f}",
        f"{predicted / published:.2f}",
        f"{64 / (2 + sum_bits(nodes)):.1f}",
        f"{least:.2f}",
        f"{1e3 * compute_for(published, model, cluster, nodes):.0f}",
        *ours,
    ]
    return f"| {name} | {' | '.join(figures)} |"


def compute_seconds(model: Model, cluster: Cluster) -> float:
    """Of a GPU's batch, forward and backward."""
    return model.batch * 6 * model.multiplications / (model.share * cluster.peak)


def sum_bits(workers: int) -> float:
    """Of the sum of so many trits."""
    return math.log2(2 * workers + 1)


def server_seconds(model: Model, cluster: Cluster, nodes: int, up: float, down: float) -> float:
    """Of the wire between nodes, with so many bits an element up to the servers and down from them."""
    sent = model.parameters * (up + down) / 8 * (nodes - 1) / nodes
    return 2 * cluster.between.latency + sent / cluster.between.bandwidth


def server_speed_up(model: Model, cluster: Cluster, nodes: int, down: float) -> float:
    """Of ternary gradients over floats by parameter servers, with so many bits an element down."""
    inside = cluster.inside.seconds(all_reduce(model.parameters, GPUS))
    same = compute_seconds(model, cluster) + inside
    floats, trits = (server_seconds(model, cluster, nodes, *bits) for bits in ((32, 32), (2, down)))
    return (same + floats) / (same + trits)


def compute_for(speed_up: float, model: Model, cluster: Cluster, nodes: int) -> float:
    """Seconds of computation with which parameter servers, 2 bits up and 2 down, have this speed-up."""
    floats, trits = (server_seconds(model, cluster, nodes, bits, bits) for bits in (32, 2))
    inside = cluster.inside.seconds(all_reduce(model.parameters, GPUS))
    return (floats - speed_up * trits) / (speed_up - 1) - inside


def ring_speed_up(exchange: str, model: Model, cluster: Cluster, nodes: int) -> float:
    """Of an exchange of this package over its ring of floats."""
    compute = compute_seconds(model, cluster)
    where = (model.parameters,), (), Placement(nodes, GPUS, True, cluster.inside), cluster.between
    floats, trits = (predict_step(Ternary(), name, *where, NO_COST, compute).total for name in ("float", exchange))
    return floats / trits


if __name__ == "__main__":
    main()
