"""One of N processes that average gradients; prints digests of means by every exchange. See test_processes.py."""

import hashlib
import json
import sys
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import jaxtern

EXACT = ("gather", "sum", "scatter")
METHODS = {
    "float16": lambda: jaxtern.float_mean("float16"),
    "top_k": lambda: jaxtern.top_k(0.05),
    "dgc": lambda: jaxtern.dgc(0.05, clip_norm=1.0),
    "low_rank": lambda: jaxtern.low_rank(2),
    "sign": jaxtern.sign,
    "sign two-way": lambda: jaxtern.sign(two_way=True),
}
SHAPES = {"large": (300, 257), "small": (129,), "one": (1,), "float": (9,)}


def local_gradients(worker: int) -> dict[str, np.ndarray]:
    """Of one worker, the same in whatever process."""
    random = np.random.default_rng(worker)
    return {name: random.standard_normal(shape, np.float32) for name, shape in SHAPES.items()}


def whole_gradients(worker: int) -> dict[str, np.ndarray]:
    """Of one worker, small whole numbers: means of what its two devices have are exact."""
    return {name: np.rint(12 * value) for name, value in local_gradients(worker).items()}


def digest(mean: Any) -> str:
    made = hashlib.sha256()
    for name in sorted(mean):
        made.update(np.asarray(mean[name]).tobytes())
    return made.hexdigest()


def options(name: str) -> dict[str, Any]:
    """What `compressed_mean` is given for a name such as "gather", "gather pieces" or "low_rank"."""
    exchange, *pieces = name.split()
    if name in METHODS:
        return {"reducer": METHODS[name]()}
    reducer = jaxtern.ternary(exchange=exchange, bucket_size=30_000 if pieces else None)
    return {"reducer": reducer, "exclude": lambda path: path == "float"}


def twice(transformation: Any, gradients: Any, tree: Any) -> Any:
    """The mean of the second of two updates, which starts from the state of the first; step 7 is the first."""

    def step(state: Any, _: Any) -> Any:
        mean, state = transformation.update(gradients, state)
        return state, mean

    state = transformation.init(tree)
    means = jax.lax.scan(step, state._replace(count=state.count + 7), length=2)[1]
    return jax.tree.map(lambda x: x[-1], means)


def main(coordinator: str, num_processes: int, process: int, names: list[str]) -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(coordinator, num_processes, process)
    devices = np.array(jax.devices()).reshape(num_processes, 2)
    mesh = Mesh(devices[:, 0], ("host",), axis_types=(AxisType.Auto,))
    own, everywhere = NamedSharding(mesh, PartitionSpec("host")), PartitionSpec()
    gradients = {
        name: jax.make_array_from_process_local_data(own, value[None])
        for name, value in local_gradients(process).items()
    }
    found = {}
    for name in names:
        transformation = jaxtern.compressed_mean("host", **options(name))

        def update(local: Any, transformation: Any = transformation) -> Any:
            tree = jax.tree.map(lambda x: x[0], local)
            return twice(transformation, tree, tree)

        mapped = jax.shard_map(update, mesh=mesh, in_specs=PartitionSpec("host"), out_specs=everywhere, check_vma=False)
        found[name] = digest(jax.tree.map(lambda x: x.addressable_data(0), jax.jit(mapped)(gradients)))
    found |= hierarchical_digests(Mesh(devices, ("host", "device"), axis_types=(AxisType.Auto,) * 2), process)
    # Hosts may be given different numbers; all must come to the same.
    network = jaxtern.calibrate(mesh, "host", bandwidth=1e9 / (1 + process))
    print(json.dumps({"digests": found, "network": [network.latency, network.bandwidth]}), flush=True)


def hierarchical_digests(mesh: Mesh, process: int) -> dict[str, str]:
    """Of floats between the two devices of a host, one above and one below its mean, and words between hosts."""
    own = NamedSharding(mesh, PartitionSpec("host", "device"))
    gradients = {
        name: jax.make_array_from_process_local_data(own, np.stack([value - 3, value + 3])[None])
        for name, value in whole_gradients(process).items()
    }
    found = {}
    for exchange in EXACT:
        transformation = jaxtern.compressed_mean("host", fast_axis_name="device", **options(exchange))

        def update(local: Any, transformation: Any = transformation) -> Any:
            tree = jax.tree.map(lambda x: x[0, 0], local)
            return twice(transformation, tree, tree)

        mapped = jax.shard_map(
            update, mesh=mesh, in_specs=PartitionSpec("host", "device"), out_specs=PartitionSpec(), check_vma=False
        )
        found[f"{exchange} hierarchical"] = digest(
            jax.tree.map(lambda x: x.addressable_data(1), jax.jit(mapped)(gradients))
        )
    return found


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
