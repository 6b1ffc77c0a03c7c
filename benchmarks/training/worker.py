"""One host's part of benchmarks.training: steps of training, timed, or up to an accuracy."""

import sys
import time
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from benchmarks.netlab.mesh import AXIS, create_barrier, join
from benchmarks.netlab.worker import digest, measure, serve
from benchmarks.training.step import (
    create_network,
    create_optimizer,
    create_state,
    create_step,
    distribute,
    draw_batch,
    report,
)
from jaxtern import Network, calibrate
from jaxtern.data.dataset import Split
from jaxtern.data.idx import load_mnist
from jaxtern.data.order import ExampleOrder
from jaxtern.data.tasks import create_task
from jaxtern.training.run.evaluation import evaluate


class Worker:
    """A network of one variant in training, and the programs over all hosts."""

    def __init__(self, mesh: Mesh, host: int, data_dir: str | None, seed: int):
        self.mesh, self.hosts, self.host, self.barrier = mesh, mesh.size, host, create_barrier(mesh)
        self.seed, self.network = seed, Network()
        self.data: tuple[Split, Split] | None = load_splits(data_dir) if data_dir else None
        self.programs: dict[tuple[str, ...], Any] = {}
        self.state: Any = None
        self.graph: Any = None
        self.step: Any = None

    def calibrate(self) -> dict:
        """Measures the links as they are now; what "auto" goes by from here on."""
        self.network = calibrate(self.mesh, AXIS)
        return {"latency": self.network.latency, "bandwidth": self.network.bandwidth}

    def prepare(self, model: str, variant: str, batch: int) -> dict:
        """Fresh weights and a compiled step; the exchange that is taken, and what it is to send."""
        self.drop()
        self.graph, params, moments = create_network(model, self.seed)
        wire = report(variant, params, self.hosts, self.network)
        exchange = next(iter(wire.traffic.ways), "")
        optimizer, specs = create_optimizer(variant, exchange, self.network)
        self.state, state_specs = create_state(params, moments, optimizer, specs, self.mesh)
        del params, moments
        key = (model, variant, exchange, str(batch), str(self.network))  # by which an exchange picks collectives
        if key not in self.programs:
            images, labels = self.distribute(*draw_batch(model, batch, self.host))
            step = create_step(self.graph, optimizer, state_specs, self.mesh)
            self.programs[key] = step.lower(self.state, images, labels).compile()
        self.step = self.programs[key]
        self.barrier()
        taken = "" if variant == "none" else exchange
        return {"exchange": taken, "predicted_bytes": wire.bytes, "elements": wire.elements}

    def time(self, model: str, batch: int, repeats: int) -> dict:
        """Seconds and bytes of steps on one batch that lies in memory."""
        images, labels = self.distribute(*draw_batch(model, batch, self.host))
        losses = []

        def run() -> None:
            self.state, loss = self.step(self.state, images, labels)
            losses.append(jax.block_until_ready((self.state, loss))[1])

        run()  # connections, pages of memory
        found = measure(run, lambda: None, self.barrier, repeats)
        own = [float(np.asarray(loss.addressable_data(0))[0]) for loss in losses]
        return found | {"digest": self.digest(), "is_finite": bool(np.all(np.isfinite(own)))}

    def train(self, first: int, steps: int, batch: int) -> dict:
        """Seconds of so many steps on the training split, from the examples in memory to the last weights."""
        assert self.data is not None
        split, order = self.data[0], ExampleOrder(self.data[0].size, self.seed)
        all_examples = batch * self.hosts
        self.barrier()
        start, pending = time.perf_counter(), None
        for step in range(first, first + steps):
            indices = order.batch(step * all_examples + self.host * batch, batch)
            arguments = self.distribute(split.images[indices], split.labels[indices])
            self.state, loss = self.step(self.state, *arguments)
            jax.block_until_ready(pending)  # one step late, as the trainer reads its metrics
            pending = loss
        jax.block_until_ready(self.state)
        return {"seconds": time.perf_counter() - start}

    def evaluate(self) -> dict:
        """How many of this host's part of the test split are right."""
        assert self.data is not None
        params = jax.tree.map(lambda leaf: leaf.addressable_data(0), self.state.params)
        test = self.data[1]
        own = Split(test.images[self.host :: self.hosts], test.labels[self.host :: self.hosts])
        found = evaluate(self.graph, params, own, create_task("mnist"))
        return {"right": round(found.precision_at_1 * found.num_examples), "examples": found.num_examples}

    def distribute(self, images: np.ndarray, labels: np.ndarray) -> tuple[jax.Array, jax.Array]:
        return distribute(self.mesh, images), distribute(self.mesh, labels)

    def digest(self) -> str:
        """Of the bits of the weights."""
        return digest(np.asarray(leaf.addressable_data(0)) for leaf in jax.tree.leaves(self.state.params))

    def drop(self) -> dict:
        """Frees the memory of a run."""
        self.state = self.graph = self.step = None
        return {}


def load_splits(data_dir: str) -> tuple[Split, Split]:
    """MNIST's training and test split."""
    dataset = load_mnist(data_dir)
    assert isinstance(dataset.train, Split)
    assert isinstance(dataset.test, Split)
    return dataset.train, dataset.test


def main(data_dir: str | None, seed: int) -> None:
    names = ("calibrate", "prepare", "time", "train", "evaluate", "drop")
    serve(lambda: Worker(*join(), data_dir, seed), names)


if __name__ == "__main__":
    main(sys.argv[2] if len(sys.argv) > 2 else None, int(sys.argv[1]))
