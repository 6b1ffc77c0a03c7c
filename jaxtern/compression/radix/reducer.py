"""The radix reducer: quantized tensors, whose digits travel in words that add exactly."""

import jax
import jax.numpy as jnp

from jaxtern.compression import collectives
from jaxtern.compression.arguments import as_integer
from jaxtern.compression.network.links import Network, Traffic, all_reduce
from jaxtern.compression.radix import pipeline
from jaxtern.compression.radix.buckets import BUCKET_SIZE, plan_buckets
from jaxtern.compression.radix.cpu_chain import Memory
from jaxtern.compression.radix.exchanges import EXCHANGES, choose_exchange
from jaxtern.compression.radix.quantizer import Quantizer
from jaxtern.compression.reducer import Group, Layout, Reduced, Reducer, State, Tensors, carry_nothing, stateless

_IN_PLACE_SIZE = 2**16  # elements; below, the kernels are XLA's code, and better left to it as a whole


def ternary(
    clip_sigmas: float = 2.5,
    scale: str = "exact",
    block_size: int | None = None,
    exchange: str = "auto",
    bucket_size: int | None = BUCKET_SIZE,
    network: Network | None = None,
    implementation: str = "auto",
) -> Reducer:
    """Ternary digits times a shared scale, stochastically rounded: 1.6 bits an element of each worker.

    Every worker's tensor g becomes s t with trits t in {-1, 0, 1}: s = max over workers of min(c sigma, max|g|), and
    P(t != 0) = min(|g|/s, 1), so the mean is an unbiased estimate of the mean of the clipped gradients.

    Args: as `quantized`, with one level a side.

    Reference:
      Wen et al., TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning, NIPS 2017.
    """
    return quantized(1, clip_sigmas, scale, block_size, exchange, bucket_size, network, implementation)


def quantized(
    levels: int = 7,
    clip_sigmas: float = 2.5,
    scale: str = "exact",
    block_size: int | None = None,
    exchange: str = "auto",
    bucket_size: int | None = BUCKET_SIZE,
    network: Network | None = None,
    implementation: str = "auto",
) -> Reducer:
    """Digits of L levels a side times a shared scale, stochastically rounded, packed and added exactly.

    The digit q of g is floor(L clip(g/s, -1, 1) + u), u uniform in [0, 1); the mean is s/(L N) times the sum of all
    workers' digits, an exact integer. So E[mean] is the mean of the clipped gradients.

    Args:
      levels: L, levels a side, 1 to 32767.
      clip_sigmas: c, in standard deviations of a worker's tensor; 0: no clipping. It may be traced.
      scale: "exact", or "pow2" to round scales up to powers of two.
      block_size: elements under one scale; None: the whole tensor.
      exchange: "gather", "sum" and "scatter" give the same mean, bit for bit, over different collectives; "auto" is
        whichever of them is fastest by `network`. "two_way" sends fewest bits from four workers on, by rounding the
        mean once more before it is sent back: unbiased still, but noisier.
      bucket_size: elements; tensors travel in buckets of about so many, the last of the tree first, so that one is on
        its way while others are computed, encoded or decoded. On a CPU larger buckets travel in pieces. None: all in
        one. Noise, and so the mean's last digits, depend on it.
      network: the links by which "auto" chooses; None: 1 Gbit/s and 0.1 ms. `jaxtern.calibrate` measures them.
      implementation: of the kernels, "auto", "reference", "native" or "mosaic".

    Raises:
      ValueError: for an argument out of its range; from `reduce`, for an exchange that cannot add so many workers.
    """
    quantizer = Quantizer(clip_sigmas, scale, block_size, levels, implementation)
    if exchange not in ("auto", *EXCHANGES):
        raise ValueError(f"exchange={exchange!r}: must be one of auto, {', '.join(EXCHANGES)}")
    bucket_size = None if bucket_size is None else as_integer("bucket_size", bucket_size, 1)
    links = network or Network()

    def plan(layout: Layout, num_workers: int) -> pipeline.Plan:
        buckets = plan_buckets(layout, bucket_size)
        chosen = [choose_exchange(exchange, quantizer, each.size, num_workers, links) for each in buckets]
        return pipeline.Plan(buckets, quantizer, chosen, links)

    def reduce(workers: list[Tensors], state: State, group: Group) -> Reduced:
        workers = [[jnp.asarray(tensor, jnp.float32) for tensor in own] for own in workers]
        planned = _suit_device(plan(group.layout, group.size), group, bucket_size)
        is_chained = planned.piece_size is not None
        store = Memory(planned, workers[0], group) if is_chained else pipeline.Buckets(planned, workers, group)
        pipeline.run(planned, pipeline.list_pieces(planned, group), store, group)
        return Reduced(store.tensors, carry_nothing(group), store.sent)

    def traffic(layout: Layout, num_workers: int) -> Traffic:
        planned, total = plan(layout, num_workers), Traffic()
        for bucket, way in zip(planned.buckets, planned.exchanges, strict=True):
            scales = all_reduce(quantizer.num_scales(bucket.sizes), num_workers)
            total += scales + way.traffic(quantizer, bucket.size, num_workers)._replace(ways=(way.name,))
        return total

    return Reducer(stateless, reduce, traffic)


def _suit_device(plan: pipeline.Plan, group: Group, bucket_size: int | None) -> pipeline.Plan:
    """In place on a CPU, for larger trees where `shard_map` does not track what varies; there in pieces, too."""
    is_tracked = bool(collectives.checked_axes(group.axes.workers + group.axes.fast))
    is_large = sum(bucket.size for bucket in plan.buckets) >= _IN_PLACE_SIZE
    is_in_place = jax.default_backend() == "cpu" and not is_tracked and is_large and not group.tracks
    is_chained = is_in_place and group.local_workers == 1
    return plan._replace(is_in_place=is_in_place, piece_size=(bucket_size or 2**62) if is_chained else None)
