"""The radix reducers: the digits of quantized tensors travel in words that add exactly."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxtern.compression import collectives, wrappers
from jaxtern.compression.arguments import as_integer
from jaxtern.compression.network.links import Network, Traffic, maximum
from jaxtern.compression.radix import owed, pipeline
from jaxtern.compression.radix.buckets import BUCKET_SIZE, join_buckets, plan_buckets
from jaxtern.compression.radix.cpu_chain import Memory
from jaxtern.compression.radix.exchanges import EXCHANGES, choose_exchange
from jaxtern.compression.radix.quantizer import Quantizer
from jaxtern.compression.reducer import Group, Layout, Reduced, Reducer, State, Tensors, put, share_out
from jaxtern.kernels import dispatch, rotate

_IN_PLACE_SIZE = 2**16  # elements; smaller trees are better left to XLA as a whole


def ternary(
    *,
    clip_sigmas: float | None = None,
    block_size: int | None = None,
    rotation: bool = True,
    rounding: str = "dither",
    exchange: str = "auto",
    bucket_size: int | None = BUCKET_SIZE,
    network: Network | None = None,
    implementation: str = "auto",
    error_feedback: bool = False,
) -> Reducer:
    """Ternary digits times a shared scale: 1.6 bits an element of each worker.

    Args: as `quantized`, with one level a side.

    References:
      Wen et al., TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning, NIPS 2017; and those
      of `quantized`.
    """
    rest = exchange, bucket_size, network, implementation, error_feedback
    return quantized(1, clip_sigmas, block_size, rotation, rounding, *rest)


def terngrad(
    *,
    clip_sigmas: float | None = None,
    block_size: int | None = None,
    exchange: str = "auto",
    bucket_size: int | None = BUCKET_SIZE,
    network: Network | None = None,
    implementation: str = "auto",
) -> Reducer:
    """TernGrad: ternary digits of the gradient, clipped at c deviations and stochastically rounded.

    Each worker's tensor g becomes s t with trits t in {-1, 0, 1}, where s = max over workers of min(c sigma, max|g|)
    and P(t != 0) = min(|g|/s, 1), so the mean is an unbiased estimate of the mean of the clipped gradients.

    Args: as `quantized`.

    Reference:
      Wen et al., TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning, NIPS 2017.
    """
    rest = exchange, bucket_size, network, implementation
    return quantized(1, clip_sigmas, block_size, False, "stochastic", *rest)


def quantized(
    levels: int = 7,
    clip_sigmas: float | None = None,
    block_size: int | None = None,
    rotation: bool = True,
    rounding: str = "dither",
    exchange: str = "auto",
    bucket_size: int | None = BUCKET_SIZE,
    network: Network | None = None,
    implementation: str = "auto",
    error_feedback: bool = False,
) -> Reducer:
    """Digits of L levels a side times a shared scale, packed and added exactly.

    A random rotation R, the same on all workers, makes the elements of each tensor nearly normal. The digit of an
    element x is q = floor(L clip(a x/s, -1, 1) + u). The mean is R^-1 s/(L N) times the sum of all q - u + 1/2,
    an integer apart from the dither u, which all workers know. The factor a makes up for clipping (see
    docs/how_it_works.md).

    Args:
      levels: L, levels a side, 1 to 32767.
      clip_sigmas: s in standard deviations of a worker's elements; if rotated, in those of a normal variable with
        the same E[x^2] / E|x|. 0: the largest element. None: the least noise; 2.5 without rotation. It may be traced
        without rotation.
      block_size: elements that share a scale; None: 4096 with rotation, else the whole tensor.
      rotation: whether tensors are rotated before they are rounded.
      rounding: "dither" draws u for all workers, shifted for each, and subtracts it again; "stochastic" draws u for
        each worker and does not subtract it; "nearest" has u = 1/2, and only rotation makes the mean unbiased.
      exchange: "gather", "sum" and "scatter" give the same mean, bit for bit; "auto" takes the fastest of them by
        `network`. "two_way" sends fewest bits from three workers on; it rounds the mean again, unbiased but noisier.
      bucket_size: elements of the buckets in which tensors travel, the last of the tree first, so that one is on its
        way while others are computed, encoded or decoded. On CPUs larger buckets travel in pieces. None: a single
        bucket. Noise, and so the mean's last digits, depend on it.
      network: links by which "auto" chooses; None: 1 Gbit/s and 0.1 ms. `jaxtern.calibrate` measures them.
      implementation: implementation of the kernels, "auto", "reference", "native" or "mosaic".
      error_feedback: whether what a mean leaves out is added to the next one (see `jaxtern.error_feedback`). With
        "two_way", the owner of a shard of the mean also keeps what the second rounding leaves out. It then rounds
        to the nearest, and the rotation is the same in each step.

    References:
      Suresh et al., Distributed Mean Estimation with Limited Communication, ICML 2017 (rotation); Roberts, Picture
      Coding Using Pseudo-Random Noise, 1962 (dither); Suresh et al., Correlated Quantization for Distributed Mean
      Estimation and Optimization, ICML 2022 (its shifts).

    Raises:
      ValueError: for an argument out of its range; from `reduce`, for an exchange that cannot add so many workers.
    """
    quantizer = Quantizer(clip_sigmas, block_size, levels, rotation, rounding, implementation)
    if exchange not in ("auto", *EXCHANGES):
        raise ValueError(f"exchange={exchange!r}: must be one of auto, {', '.join(EXCHANGES)}")
    bucket_size = None if bucket_size is None else as_integer("bucket_size", bucket_size, 1)
    if not isinstance(network, Network | None):
        raise ValueError(f"network={network!r}: must be a jaxtern.Network, or None")
    keeps = error_feedback and exchange == "two_way"  # what the second rounding leaves out
    reducer = _create(quantizer, exchange, bucket_size, network or Network(), keeps)
    return wrappers.error_feedback(reducer) if error_feedback else reducer


def _create(quantizer: Quantizer, exchange: str, bucket_size: int | None, links: Network, keeps: bool) -> Reducer:
    """The reducer without feedback of the workers; `keeps`: whether it keeps the errors of `owed`."""

    def plan(layout: Layout, num_workers: int) -> pipeline.Plan:
        buckets = plan_buckets(layout, bucket_size)
        chosen = [choose_exchange(exchange, quantizer, each.size, num_workers, links) for each in buckets]
        return pipeline.Plan(buckets, quantizer, chosen, links)

    def init(layout: Layout, num_workers: int) -> State:
        return State(local=owed.zeros(quantizer, plan(layout, num_workers).buckets, num_workers) if keeps else ())

    def reduce(workers: list[Tensors], state: State, group: Group) -> Reduced:
        return _reduce(_suit_device(plan(group.layout, group.size), group, bucket_size), workers, state, group)

    def resize(local: Any, layout: Layout, num_workers: int) -> Any:
        return owed.resize(local, quantizer, plan(layout, num_workers).buckets, num_workers)

    def traffic(layout: Layout, num_workers: int) -> Traffic:
        total, planned = Traffic(), plan(layout, num_workers)
        for bucket, way in zip(planned.buckets, planned.exchanges, strict=True):
            scales = maximum(quantizer.num_scales(bucket.sizes), num_workers)
            total += scales + way.traffic(quantizer, bucket.size, num_workers)._replace(ways=(way.name,))
        return total

    return Reducer(init, reduce, traffic, resize if keeps else share_out)


def _reduce(planned: pipeline.Plan, workers: list[Tensors], state: State, group: Group) -> Reduced:
    keeps, count = any(state.local), len(group.layout.sizes)
    fixed = dataclasses.replace(group, step=jnp.zeros_like(group.step), late=0)  # kept errors need one fixed rotation
    turn = functools.partial(_turn, planned, fixed if keeps else group)
    pairs = [pair for bucket in planned.buckets for pair in zip(bucket.places, bucket.sizes, strict=True)]
    fillers = [jnp.zeros((size,), jnp.float32) for place, size in pairs if place >= count]
    workers = turn([[jnp.asarray(tensor, jnp.float32) for tensor in own] + fillers for own in workers])
    pieces = pipeline.list_pieces(planned, group)
    if keeps and group.size > 1:
        store = pipeline.Buckets(planned, workers, group)
        state = State(local=owed.run(planned, pieces, store, state.local, group))
    else:
        is_chained = planned.piece_size is not None
        store = Memory(planned, workers[0], group) if is_chained else pipeline.Buckets(planned, workers, group)
        pipeline.run(planned, pieces, store, group)
    sent = store.sent and [own[:count] for own in turn(store.sent, is_inverse=True)]  # varies, unlike the mean
    return Reduced(turn([store.tensors], is_inverse=True)[0][:count], state, sent)


def _turn(plan: pipeline.Plan, group: Group, trees: Sequence[Tensors], is_inverse: bool = False) -> list[Tensors]:
    """Rotates all tensors if the quantizer does, bucket by bucket, so that none waits for those after it."""
    turned, keys, first = [list(tensors) for tensors in trees], {}, group.shared_key("rotation")
    for bucket in plan.buckets if plan.quantizer.rotation else ():
        places = [place for place in bucket.places if place < len(group.layout.sizes)]
        own, varying = [tensors[place] for tensors in trees for place in places], group.layout.varying[places[0]]
        # A GPU's compiler would join what uses the same signs, and the first bucket would wait for the last.
        keys[varying], own = lax.optimization_barrier((keys.get(varying, first), own))
        parts = rotate(own, keys[varying], is_inverse=is_inverse, implementation=plan.quantizer.implementation)
        for number, tensors in enumerate(turned):
            put(tensors, places, parts[number * len(places) : (number + 1) * len(places)])
    return turned


def _suit_device(plan: pipeline.Plan, group: Group, bucket_size: int | None) -> pipeline.Plan:
    """Suits the plan to a device on which `shard_map` tracks nothing.

    CPUs decode the mean of a large tree into its tensors' memory; with one worker, they also work in pieces. Under vmap
    they do neither, as the workers' tensors are mapped and the mean is not. A lone GPU joins all buckets, as nothing
    travels beside other work and each kernel is lowered for each size; it gathers, as it has all words. Buckets of
    "two_way" stay as they are, as their tiles have scales of their own.
    """
    axes, platform = group.axes.workers + group.axes.fast, dispatch.device().platform
    is_tracked = bool(collectives.checked_axes(axes))
    size, is_alone = sum(bucket.size for bucket in plan.buckets), collectives.count_workers(axes) == 1
    is_exact = all(each.exact for each in plan.exchanges)
    if platform == "gpu" and not is_tracked and is_alone and is_exact and 0 < size <= dispatch.MAX_SIZE:
        buckets = [join_buckets(plan.buckets, len(group.layout.sizes))]
        return plan._replace(buckets=buckets, exchanges=[EXCHANGES["gather"]])
    is_in_place = platform == "cpu" and not is_tracked and size >= _IN_PLACE_SIZE and not group.tracks
    is_in_place = is_in_place and collectives.are_of_mesh(axes)
    is_chained = is_in_place and group.local_workers == 1
    return plan._replace(is_in_place=is_in_place, piece_size=(bucket_size or 2**62) if is_chained else None)
