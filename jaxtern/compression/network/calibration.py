"""Measures the links of a running mesh: alpha and beta of the cost model."""

import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxtern.compression import collectives
from jaxtern.compression.network.links import Network, all_gather

SECONDS = 1.5  # for all measurements, without compilation
LEAST_WORDS, FIRST_WORDS, MAX_WORDS = 2**10, 2**14, 2**22  # of each worker
ENOUGH_SECONDS = 0.1  # a collective that takes longer is large enough


def calibrate(
    mesh: Mesh, axis_name: str | tuple[str, ...], *, latency: float | None = None, bandwidth: float | None = None
) -> Network:
    """Measures the links between the workers of a mesh, in less than two seconds plus compilation.

    The latency is that of a message of a tiny all-gather, over gloo the way there and back; the bandwidth is that of an
    all-gather of about 0.1 s. All hosts return the values of the slowest link. Every process of the mesh must call it.

    Args:
      mesh: mesh of the devices.
      axis_name: axes over the workers, as in `compressed_mean`.
      latency: seconds, to use on this host instead of measuring.
      bandwidth: bytes a second, likewise. Hosts may pass different values; the slowest counts.

    Raises:
      ValueError: for an axis that the mesh does not have, or a number out of its range.
    """
    names = collectives.as_axis_names(axis_name)
    for name in names:
        if name not in mesh.axis_names:
            raise ValueError(f"axis_name={name!r}: the mesh has {', '.join(map(str, mesh.axis_names))}")
    known = {"latency": latency, "bandwidth": bandwidth}
    given = Network(**{name: value for name, value in known.items() if value is not None})
    num_workers = int(np.prod([mesh.shape[name] for name in names]))
    if num_workers == 1:
        return given
    # Measured even if it is given here, as another host may need it, and collectives take all hosts.
    one_word = _rows(mesh, names, np.zeros(1, np.uint32))
    gather = _over(mesh, names, lambda x: collectives.gather_words(x, names, mutual=False).sum(axis=0))
    alpha = _median_seconds(gather, one_word) / all_gather(1, num_workers).messages
    beta = _measure_bandwidth(mesh, names, num_workers)
    own = [alpha if latency is None else latency, 1 / (beta if bandwidth is None else bandwidth)]
    slowest = _slowest(mesh, names, own)
    return Network(float(slowest[0]), 1 / float(slowest[1]))


def _measure_bandwidth(mesh: Mesh, names: tuple[str, ...], num_workers: int) -> float:
    """Bytes a second of the largest all-gather that the time allows, less what a small one takes."""
    gather = _over(mesh, names, lambda x: collectives.gather_words(x, names).sum(axis=0))
    begin, width, bandwidth = time.perf_counter(), FIRST_WORDS, 0.0
    latency = _median_seconds(gather, _rows(mesh, names, np.zeros(LEAST_WORDS, np.uint32)))
    while True:
        seconds = _median_seconds(gather, _rows(mesh, names, np.zeros(width, np.uint32)))
        bandwidth = all_gather(width - LEAST_WORDS, num_workers).bytes / max(seconds - latency, 0.1 * seconds)
        spent = time.perf_counter() - begin
        # All processes must agree to go on, so they use the times of the slowest.
        seconds, spent = (float(x) for x in _slowest(mesh, names, [seconds, spent]))
        if seconds > ENOUGH_SECONDS or width >= MAX_WORDS or spent + 16 * seconds > SECONDS:
            return bandwidth
        width *= 4


def _median_seconds(collective: Callable, argument: jax.Array) -> float:
    jax.block_until_ready(collective(argument))  # compiles, and lets all begin together
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        jax.block_until_ready(collective(argument))
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def _over(mesh: Mesh, names: tuple[str, ...], function: Callable) -> Callable:
    own, everywhere = PartitionSpec(names), PartitionSpec()
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=own, out_specs=everywhere, check_vma=False))


def _rows(mesh: Mesh, names: tuple[str, ...], row: np.ndarray) -> jax.Array:
    """An array [workers, width] with this host's row for each of its own workers."""
    num_workers = int(np.prod([mesh.shape[name] for name in names]))
    rows = np.broadcast_to(row, (num_workers, row.size))
    sharding = NamedSharding(mesh, PartitionSpec(names))
    return jax.make_array_from_callback(rows.shape, sharding, lambda index: rows[index])


def _slowest(mesh: Mesh, names: tuple[str, ...], values: list[float]) -> np.ndarray:
    """The elementwise maximum over all processes of the mesh."""
    own = _rows(mesh, names, np.asarray(values, np.float32))
    reduce = _over(mesh, names, lambda x: collectives.maximum(jnp.max(x, axis=0), names))
    return np.asarray(reduce(own).addressable_data(0))
