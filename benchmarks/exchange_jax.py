"""The JAX worker of benchmarks/exchange.py: one host's part of every exchange, as a training step pays for it.

Local gradients lie in memory, their mean comes to lie in memory. The gradients are donated, since an optimiser never
needs them again, so that the mean takes their place; before every repeat they are copied anew, outside of the clock.

Arrays that differ from host to host are declared to be replicated (PartitionSpec()), which `shard_map` with
check_vma=False takes at its word: so gradients and mean have one shape, and the buffer can be passed on.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks.exchange_worker import Shapes, count_elements, digest, is_plausible, measure, serve, shapes_of
from jaxtern import Ternary, compressed_mean
from jaxtern.compression import exchange as collectives
from jaxtern.compression.wire import Axes, receive_bucket, send_bucket
from jaxtern.kernels import derive_key

AXIS = "data"


class Worker:
    """Gradients of one host, and the programs over all hosts."""

    def __init__(self, shapes: Shapes):
        self.hosts, self.host = int(os.environ["NETLAB_HOSTS"]), int(os.environ["NETLAB_HOST"])
        self.mesh = jax.make_mesh((self.hosts,), (AXIS,))
        self.shapes, self.elements = shapes, count_elements(shapes)
        self.sizes = tuple(count_elements((shape,)) for shape in shapes)
        random = np.random.default_rng(self.host)
        self.own = {f"{i:03d}": self.place(random.standard_normal(shape, np.float32)) for i, shape in enumerate(shapes)}
        self.copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))
        one, add = self.place(np.ones(1, np.float32)), self.over(lambda x: lax.psum(x, AXIS))
        self.barrier = lambda: jax.block_until_ready(add(one))
        self.programs: dict[str, Any] = {}

    def place(self, array: Any) -> jax.Array:
        """On this host's device, and by name on all."""
        local = jax.device_put(array, jax.local_devices()[0])
        return jax.make_array_from_single_device_arrays(local.shape, NamedSharding(self.mesh, PartitionSpec()), [local])

    def over(self, function: Callable, **options: Any) -> Callable:
        """The function on every host, compiled."""
        spec = PartitionSpec()
        return jax.jit(
            jax.shard_map(function, mesh=self.mesh, in_specs=spec, out_specs=spec, check_vma=False), **options
        )

    def prepare(self, variant: str) -> dict:
        """Compiles an exchange and checks what it gives."""
        if variant in self.programs:
            return {}
        transformation = compressed_mean(AXIS, codec=Ternary(), exchange=variant)
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
        arguments: dict[str, Any] = {"tree": self.own, "key": self.place(np.asarray(derive_key(0, 0, self.host)))}
        seconds = {}
        for name, (function, inputs, output) in self.stages(variant).items():
            spare: list[Any] = []

            def refill(name: str = name, spare: list[Any] = spare) -> None:
                spare[:] = [jax.block_until_ready(self.copy(self.own))] if name == "decode" else [None]

            def run(function: Callable = function, inputs: tuple = inputs, spare: list[Any] = spare) -> Any:
                return jax.block_until_ready(function(spare.pop(), *(arguments[each] for each in inputs)))

            refill()
            result = run()
            if output != "mean":  # of which nothing is made, and memory is short
                arguments[output] = result
            del result
            is_work = name != "flatten" or len(self.sizes) > 1  # a single tensor is flat already
            seconds[name] = list(measure(run, refill, self.barrier, repeats)["seconds"]) if is_work else [0.0] * repeats
            if name == "encode":
                del arguments["flat"]
        return seconds

    def stages(self, variant: str) -> dict[str, tuple[Callable, tuple[str, ...], str]]:
        """Name to compiled function, names of its arguments, name of its result.

        The first argument is donated: to decode, gradients whose place the mean takes, as in the whole program.
        """
        key = f"{variant} stages"
        if key in self.programs:
            return self.programs[key]
        codec, sizes, hosts = Ternary(), self.sizes, self.hosts
        added = hosts if variant == "sum" else 1
        num_added = hosts if variant in ("sum", "scatter") else 1
        num_workers = 1 if variant == "two_way" else hosts

        def send(_: None, words: jax.Array, key: jax.Array) -> Any:
            nothing = jnp.zeros((1, 0), jnp.float32)
            sent = send_bucket(variant, codec, words[None], nothing, Axes((AXIS,)))
            arguments = sent, sum(sizes), Axes((AXIS,)), key, 0
            return receive_bucket(variant, codec, *arguments, after=sent.arrived).words

        def decode(_: Any, words: jax.Array, scales: jax.Array) -> Any:
            return self.unflatten(codec.decode(words, scales, sizes, num_added, num_workers))

        functions = {
            "flatten": (lambda _, tree: self.flatten(tree), ("tree",), "flat"),
            "scales": (
                lambda _, flat: collectives.maximum(codec.local_scales(flat, sizes), (AXIS,)),
                ("flat",),
                "scales",
            ),
            "encode": (
                lambda _, flat, scales, key: codec.encode(flat, scales, key, sizes, added),
                ("flat", "scales", "key"),
                "words",
            ),
            "wire": (send, ("words", "key"), "received"),
            "decode": (decode, ("received", "scales"), "mean"),
        }
        self.programs[key] = {
            name: (self.over(function, donate_argnums=0, keep_unused=True), inputs, output)
            for name, (function, inputs, output) in functions.items()
        }
        return self.programs[key]

    def flatten(self, tree: dict[str, jax.Array]) -> jax.Array:
        return jnp.concatenate([tree[name].reshape(-1) for name in sorted(tree)])

    def unflatten(self, flat: jax.Array) -> dict[str, jax.Array]:
        parts = jnp.split(flat, np.cumsum(self.sizes)[:-1])
        return {name: part.reshape(self.own[name].shape) for name, part in zip(sorted(self.own), parts, strict=True)}

    def drop(self, variant: str) -> dict:
        """Nothing: programs take no memory worth the time of compiling them again."""
        del variant
        return {}


def main(size: str) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_num_cpu_devices", 1)
    hosts, host = int(os.environ["NETLAB_HOSTS"]), int(os.environ["NETLAB_HOST"])
    jax.distributed.initialize(os.environ["NETLAB_COORDINATOR"], hosts, host)
    worker = Worker(shapes_of(size))
    serve({"prepare": worker.prepare, "time": worker.time, "drop": worker.drop})


if __name__ == "__main__":
    main(sys.argv[1])
