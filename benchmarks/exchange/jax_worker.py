"""The JAX worker of benchmarks.exchange: one host's part of every method, as a training step pays for it.

Local gradients lie in memory, their mean comes to lie in memory. The gradients are donated, since an optimiser never
needs them again, so that the mean takes their place, and so is the state; before every repeat they are copied anew,
outside of the clock.

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

from benchmarks.exchange.methods import BIASED, create_reducer, tensors_of
from benchmarks.exchange.shapes import Shapes, count_elements, is_plausible, shapes_of
from benchmarks.netlab.mesh import AXIS, EVERYWHERE, create_barrier, join, over, place
from benchmarks.netlab.worker import digest, measure, serve
from jaxtern import Group, Network, compressed_mean, state_specs
from jaxtern.compression.collectives import Axes
from jaxtern.compression.radix.buckets import Piece
from jaxtern.compression.radix.exchanges import EXCHANGES, second_dither
from jaxtern.compression.radix.quantizer import Quantizer, Received
from jaxtern.compression.transform import layout_of
from jaxtern.kernels import derive_key, rotate

Tree = dict[str, jax.Array]


class Worker:
    """Gradients of one host, and the programs over all hosts."""

    def __init__(self, mesh: Mesh, host: int, shapes: Shapes):
        self.hosts, self.host = mesh.size, host
        self.place, self.over, self.barrier = partial(place, mesh), partial(over, mesh), create_barrier(mesh)
        self.shapes, self.elements = shapes, count_elements(shapes)
        self.sizes = tuple(count_elements((shape,)) for shape in shapes)
        random = np.random.default_rng(self.host)
        self.layout = layout_of(tensors_of(shapes))
        self.own = {
            path: self.place(random.standard_normal(shape, np.float32))
            for path, shape in zip(self.layout.paths, shapes, strict=True)
        }
        self.copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))
        self.programs: dict[str, Any] = {}
        self.network = Network()

    def prepare(self, variant: str, bytes_a_second: float) -> dict:
        """Compiles a method for links of a rate, and checks what it gives."""
        self.network = Network(bandwidth=bytes_a_second)
        transformation, specs = compressed_mean(AXIS, create_reducer(variant, self.network)), state_specs(AXIS)
        both = EVERYWHERE, specs
        update = self.over(transformation.update, both, both, donate_argnums=(0, 1))
        mean, state = update(self.copy(self.own), self.over(transformation.init, EVERYWHERE, specs)(self.own))
        self.programs[variant] = update, jax.block_until_ready(state)
        return self.check(jax.block_until_ready(mean), variant in BIASED)

    def check(self, mean: dict[str, jax.Array], is_biased: bool) -> dict:
        """Digest of the bits, and how the first tensor compares with its float mean."""
        first = next(iter(mean))
        found, wanted = mean[first], self.over(lambda x: lax.pmean(x, AXIS))(self.own[first])
        squares = float(jnp.vdot(wanted, wanted))
        slope, spread = float(jnp.vdot(found, wanted)) / squares, float(jnp.sum((found - wanted) ** 2)) / squares
        sound = is_plausible(slope, spread, found.size, is_biased)
        bits = digest(np.asarray(mean[name].addressable_data(0)) for name in sorted(mean))
        return {"digest": bits, "slope": slope, "spread": spread, "is_plausible": sound}

    def time(self, variant: str, repeats: int) -> dict:
        """All in one program, then, of ternary words, every stage by itself."""
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
        if variant in EXCHANGES:
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
        quantizer, hosts, whole, way = Quantizer(), self.hosts, (0, self.elements), EXCHANGES[variant]
        added = way.num_added(hosts)
        num_added, num_workers = hosts if way.adds else 1, hosts if way.exact else 1
        piece = Piece(0, 0, self.elements, 0, self.sizes)

        def share(tree: Tree) -> jax.Array:
            turned = rotate(list(tree.values()), self.group().shared_key("rotation"))
            return quantizer.share_scales([quantizer.measure(turned, self.sizes)], self.group())

        def encode(tree: Tree, scales: jax.Array, key: jax.Array) -> Any:
            return quantizer.encode_span(list(tree.values()), scales, key, whole, added, position=0, after=())

        def send(_: Tree, words: jax.Array) -> Any:
            sent = way.send(quantizer, words[None], self.group(), self.network)
            received = way.receive(quantizer, sent, piece, self.group(), sent.arrived)
            return received.words, received.total, received.tile_scales

        def decode(tree: Tree, received: Any, scales: jax.Array) -> Any:
            words, total, tile_scales = received
            dither = quantizer.dither(self.group(), 0) if way.exact else second_dither(self.group(), 0)
            own = Received(words, num_added, num_workers, total, tile_scales)
            mean = quantizer.decode_span(own, scales, list(tree.values()), whole, dither)
            return rotate(mean, self.group().shared_key("rotation"), is_inverse=True)

        functions = {
            "scales": (share, (), "scales"),
            "encode": (encode, ("scales", "key"), "words"),
            "wire": (send, ("words",), "received"),
            "decode": (decode, ("received", "scales"), "mean"),
        }
        return {
            name: (self.over(function, donate_argnums=0, keep_unused=True), inputs, output)
            for name, (function, inputs, output) in functions.items()
        }

    def group(self) -> Group:
        """All hosts, in the first step; to be called where the axis is bound."""
        return Group(self.layout, Axes((AXIS,)), 1, 0, jnp.int32(0))

    def drop(self, variant: str) -> dict:
        """Forgets a method: another rate may be better served by another program."""
        del self.programs[variant]
        return {}


def main(size: str) -> None:
    serve(lambda: Worker(*join(), shapes_of(size)), ("prepare", "time", "drop"))


if __name__ == "__main__":
    main(sys.argv[1])
