"""The JAX worker of benchmarks.exchange: one host's part of every exchange, as a training step pays for it.

Local gradients lie in memory, their mean comes to lie in memory. The gradients are donated, since an optimiser never
needs them again, so that the mean takes their place; before every repeat they are copied anew, outside of the clock.

Gradients, which differ from host to host, are declared to be everywhere: so they and the mean have one shape, and the
buffer can be passed on.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from benchmarks.exchange.shapes import Shapes, count_elements, is_plausible, shapes_of
from benchmarks.netlab.mesh import AXIS, create_barrier, join, over, place
from benchmarks.netlab.worker import digest, measure, serve
from jaxtern import Network, Ternary, compressed_mean
from jaxtern.compression import exchange as collectives
from jaxtern.kernels import derive_key

Tree = dict[str, jax.Array]


class Worker:
    """Gradients of one host, and the programs over all hosts."""

    def __init__(self, mesh: Mesh, host: int, shapes: Shapes):
        self.hosts, self.host = mesh.size, host
        self.place, self.over, self.barrier = partial(place, mesh), partial(over, mesh), create_barrier(mesh)
        self.shapes, self.elements = shapes, count_elements(shapes)
        self.sizes = tuple(count_elements((shape,)) for shape in shapes)
        random = np.random.default_rng(self.host)
        self.own = {f"{i:03d}": self.place(random.standard_normal(shape, np.float32)) for i, shape in enumerate(shapes)}
        self.copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))
        self.programs: dict[str, Any] = {}
        self.network = Network()

    def prepare(self, variant: str, bytes_a_second: float) -> dict:
        """Compiles an exchange for links of a rate, and checks what it gives."""
        self.network = Network(bandwidth=bytes_a_second)
        transformation = compressed_mean(AXIS, codec=Ternary(), exchange=variant, network=self.network)
        update = self.over(transformation.update, donate_argnums=0)
        self.programs[variant] = update, jax.tree.map(self.place, transformation.init(self.own))
        mean, _ = update(self.copy(self.own), self.programs[variant][1])
        jax.block_until_ready(mean)
        return self.check(mean)

    def check(self, mean: dict[str, jax.Array]) -> dict:
        """Digest of the bits, and how the first tensor compares with its float mean."""
        first = next(iter(mean))
        found, wanted = mean[first], self.over(lambda x: lax.pmean(x, AXIS))(self.own[first])
        squares = float(jnp.vdot(wanted, wanted))
        slope, spread = float(jnp.vdot(found, wanted)) / squares, float(jnp.sum((found - wanted) ** 2)) / squares
        sound = is_plausible(slope, spread, found.size)
        bits = digest(np.asarray(mean[name].addressable_data(0)) for name in sorted(mean))
        return {"digest": bits, "slope": slope, "spread": spread, "is_plausible": sound}

    def time(self, variant: str, repeats: int) -> dict:
        """All in one program, then, of a codec, every stage by itself."""
        update, state = self.programs[variant]
        gradients: dict[str, jax.Array] = {}

        def refill() -> None:
            gradients.clear()
            gradients.update(jax.block_until_ready(self.copy(self.own)))

        def run() -> None:
            nonlocal state
            mean, state = update(dict(gradients), state)
            jax.block_until_ready(mean)

        found = measure(run, refill, self.barrier, repeats)
        self.programs[variant] = update, state
        gradients.clear()
        if variant != "float":
            found["stages"] = self.time_stages(variant, repeats)
        return found

    def time_stages(self, variant: str, repeats: int) -> dict[str, list[float]]:
        """Seconds of each stage, whose arguments are what the one before it gave."""
        arguments: dict[str, Any] = {"key": self.place(np.asarray(derive_key(0, 0, self.host)))}
        seconds = {}
        for name, (function, inputs, output) in self.stages(variant).items():
            spare: list[Any] = []

            def refill(spare: list[Any] = spare) -> None:
                spare[:] = [jax.block_until_ready(self.copy(self.own))]

            def run(function: Callable = function, inputs: tuple = inputs, spare: list[Any] = spare) -> Any:
                return jax.block_until_ready(function(spare.pop(), *(arguments[each] for each in inputs)))

            refill()
            result = run()
            if output != "mean":  # of which nothing is made, and memory is short
                arguments[output] = result[0] if output == "words" else result
            del result
            seconds[name] = list(measure(run, refill, self.barrier, repeats)["seconds"])
        return seconds

    def stages(self, variant: str) -> dict[str, tuple[Callable, tuple[str, ...], str]]:
        """Name to compiled function, names of its arguments, name of its result.

        The first argument is donated: the gradients, into whose place the mean is decoded, as in the whole program.
        """
        codec, hosts, whole = Ternary(), self.hosts, (0, self.elements)
        added = hosts if variant == "sum" else 1
        num_added = hosts if variant in ("sum", "scatter") else 1
        num_workers = 1 if variant == "two_way" else hosts

        def share(tree: Tree) -> jax.Array:
            return collectives.maximum(codec.local_scales(list(tree.values()), self.sizes), (AXIS,))

        def encode(tree: Tree, scales: jax.Array, key: jax.Array) -> Any:
            return codec.encode_span(list(tree.values()), scales, key, whole, added, position=0, after=())

        def send(_: Tree, words: jax.Array, key: jax.Array) -> Any:
            nothing = jnp.zeros((1, 0), jnp.float32)
            axes = Axes((AXIS,))
            sent = send_bucket(variant, codec, words[None], nothing, axes, self.network, as_total=True)
            received = receive_bucket(variant, codec, sent, self.elements, axes, key, 0, after=sent.arrived)
            return received.words, received.total

        def decode(tree: Tree, received: Any, scales: jax.Array) -> Any:
            words, total = received
            tensors = list(tree.values())
            return codec.decode_span(words, total, scales, tensors, whole, num_added, num_workers, after=())

        functions = {
            "scales": (share, (), "scales"),
            "encode": (encode, ("scales", "key"), "words"),
            "wire": (send, ("words", "key"), "received"),
            "decode": (decode, ("received", "scales"), "mean"),
        }
        return {
            name: (self.over(function, donate_argnums=0, keep_unused=True), inputs, output)
            for name, (function, inputs, output) in functions.items()
        }

    def drop(self, variant: str) -> dict:
        """Forgets an exchange: another rate may be better served by another program."""
        del self.programs[variant]
        return {}


def main(size: str) -> None:
    worker = Worker(*join(), shapes_of(size))
    serve({"prepare": worker.prepare, "time": worker.time, "drop": worker.drop})


if __name__ == "__main__":
    main(sys.argv[1])
