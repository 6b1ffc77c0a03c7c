"""Hosts that JAX has joined: a mesh of one axis over them, on which each has arrays of its own."""

import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "data"
EVERYWHERE: Any = PartitionSpec()


def join() -> tuple[Mesh, int]:
    """Joins the other hosts' processes over gloo, one CPU device each; the mesh, and this host's number."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_num_cpu_devices", 1)
    hosts, host = int(os.environ["NETLAB_HOSTS"]), int(os.environ["NETLAB_HOST"])
    jax.distributed.initialize(os.environ["NETLAB_COORDINATOR"], hosts, host)
    return jax.make_mesh((hosts,), (AXIS,)), host


def over(
    mesh: Mesh, function: Callable, in_specs: Any = EVERYWHERE, out_specs: Any = EVERYWHERE, **options: Any
) -> Any:
    """The function on every host, compiled.

    What differs from host to host may be declared to be everywhere, which `check_vma=False` takes at its word.
    """
    placed = jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    return jax.jit(placed, **options)


def place(mesh: Mesh, array: Any) -> jax.Array:
    """On this host's device, and by name on all."""
    local = jax.device_put(array, jax.local_devices()[0])
    return jax.make_array_from_single_device_arrays(local.shape, NamedSharding(mesh, EVERYWHERE), [local])


def create_barrier(mesh: Mesh) -> Callable[[], Any]:
    """Waits until all hosts wait."""
    add, one = over(mesh, lambda x: lax.psum(x, AXIS)), place(mesh, np.ones(1, np.float32))
    return lambda: jax.block_until_ready(add(one))
