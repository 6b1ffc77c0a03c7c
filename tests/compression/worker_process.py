"""One of N processes that average gradients; prints the mean's digest for every exchange. See test_processes.py."""

import hashlib
import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxtern import calibrate, compressed_mean

SHAPES = {"large": (300, 257), "small": (129,), "one": (1,), "float": (9,)}


def local_gradients(worker: int) -> dict[str, np.ndarray]:
    """Of one worker, the same in whatever process."""
    random = np.random.default_rng(worker)
    return {name: random.standard_normal(shape, np.float32) for name, shape in SHAPES.items()}


def digest(mean: Any) -> str:
    made = hashlib.sha256()
    for name in sorted(mean):
        made.update(np.asarray(mean[name]).tobytes())
    return made.hexdigest()


def options(name: str) -> dict[str, Any]:
    """What `compressed_mean` is given for a name such as "gather" or "gather pieces"."""
    exchange, *pieces = name.split()
    return {"exchange": exchange, "exclude": lambda path: path == "float", "bucket_size": 30_000 if pieces else None}


def main(coordinator: str, num_processes: int, process: int, names: list[str]) -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 1)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(coordinator, num_processes, process)
    mesh = jax.make_mesh((num_processes,), ("host",), axis_types=(AxisType.Auto,))
    own, everywhere = NamedSharding(mesh, PartitionSpec("host")), PartitionSpec()
    gradients = {
        name: jax.make_array_from_process_local_data(own, value[None])
        for name, value in local_gradients(process).items()
    }
    found = {}
    for name in names:
        transformation = compressed_mean("host", **options(name))

        def update(local: Any, transformation: Any = transformation) -> Any:
            state = transformation.init(None)._replace(count=jnp.int32(7))
            return transformation.update(jax.tree.map(lambda x: x[0], local), state)[0]

        mapped = jax.shard_map(update, mesh=mesh, in_specs=PartitionSpec("host"), out_specs=everywhere, check_vma=False)
        found[name] = digest(jax.tree.map(lambda x: x.addressable_data(0), jax.jit(mapped)(gradients)))
    # Hosts may be given different numbers; all must come to the same.
    network = calibrate(mesh, "host", bandwidth=1e9 / (1 + process))
    print(json.dumps({"digests": found, "network": [network.latency, network.bandwidth]}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
