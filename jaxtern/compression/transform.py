"""The optax transformations: local gradients in, their mean on every worker out."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from jaxtern.compression import buckets, cost, exchange as exchange_lib
from jaxtern.compression.codecs import Codec, Ternary
from jaxtern.compression.exchange import AxisNames
from jaxtern.compression.statistics import Statistics, measure
from jaxtern.kernels import derive_key


class CompressedMeanState(NamedTuple):
    """State of `compressed_mean`; the same on every worker.

    Attributes:
      count: int32 scalar, updates so far; with the seed it fixes all noise to come.
      statistics: of the last update, or None where they were not asked for.
    """

    count: jax.Array
    statistics: Statistics | None


def ternary_mean(
    axis_name: str | tuple[str, ...],
    *,
    clip_sigmas: float = 2.5,
    min_size: int = 1,
    exclude: buckets.PathPredicate | None = None,
    scale: str = "exact",
    block_size: int | None = None,
    levels: int = 1,
    exchange: str = "auto",
    seed: int = 0,
) -> optax.GradientTransformation:
    """The mean of ternary gradients over `axis_name`, in place of `lax.pmean`.

    Every worker's tensor g becomes s t with trits t in {-1, 0, 1}: s = max over workers of min(c sigma, max|g|), and
    P(t != 0) = min(|g|/s, 1), so the mean is an unbiased estimate of the mean of the clipped gradients.

        optimizer = optax.chain(jaxtern.ternary_mean("data"), optax.adam(1e-3))

    Args:
      axis_name: the axis of `shard_map`, `pmap` or `vmap` over which the workers lie, or a tuple of them.
      clip_sigmas: c, in standard deviations of a worker's tensor; 0: no clipping.
      min_size: tensors with fewer elements stay float.
      exclude: takes a tensor's path, as "conv1/kernel"; where true, the tensor stays float.
      scale: "exact", or "pow2" to round scales up to powers of two.
      block_size: elements under one scale; None: the whole tensor.
      levels: L, levels a side; 1 is ternary.
      exchange: "gather", "sum", "float" (no compression), or "auto": the one that sends fewest bits.
      seed: of the noise, 0 to 2^32 - 1.

    Returns:
      An optax transformation whose updates are the mean, the same bits on every worker.

    Raises:
      ValueError: for an argument out of its range; from `update`, for gradients that are not floating-point or are
        already summed, and for an axis that does not exist.

    Reference:
      Wen et al., TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning, NIPS 2017.
    """
    codec = Ternary(clip_sigmas=clip_sigmas, scale=scale, block_size=block_size, levels=levels)
    return compressed_mean(axis_name, codec=codec, exchange=exchange, min_size=min_size, exclude=exclude, seed=seed)


def compressed_mean(
    axis_name: str | tuple[str, ...],
    *,
    codec: Codec | str = "ternary",
    exchange: str = "auto",
    min_size: int = 1,
    exclude: buckets.PathPredicate | None = None,
    seed: int = 0,
    virtual_workers: int | None = None,
    statistics: bool = False,
) -> optax.GradientTransformation:
    """The mean of compressed gradients over `axis_name`: one maximum of all scales, one exchange of all words.

    Tensors that stay float are gathered and added in the order of the workers, in the same exchange where it is
    `gather` and in one more where it is `sum`, so that all results are the same bits however workers lie on devices.

    Args:
      axis_name: as in `ternary_mean`, with `min_size`, `exclude`, `exchange` and `seed`.
      codec: a `Codec`, "ternary", or "float" for a plain pmean.
      virtual_workers: None: `updates` are the gradients of one worker; V: a sequence of V trees, the gradients of V
        workers that live on each device. The result is the same bits as from V times as many devices.
      statistics: also measure zero trits, scale, and the angle to the float mean; costs a float all-reduce a step.

    Returns:
      An optax transformation with a `CompressedMeanState`.

    Raises:
      ValueError: as `ternary_mean`.
    """
    names = exchange_lib.as_axis_names(axis_name)
    codec, exchange = _resolve(codec, exchange)
    _require_arguments(min_size, exclude, seed, virtual_workers)

    def init(params: Any) -> CompressedMeanState:
        del params
        nothing = Statistics(*(jnp.zeros((), jnp.float32) for _ in Statistics._fields))
        return CompressedMeanState(jnp.zeros((), jnp.int32), nothing if statistics else None)

    def update(updates: Any, state: CompressedMeanState, params: Any = None) -> tuple[Any, CompressedMeanState]:
        del params
        workers = (updates,) if virtual_workers is None else tuple(updates)
        if virtual_workers is not None and len(workers) != virtual_workers:
            raise ValueError(f"updates: {len(workers)} trees of gradients for virtual_workers={virtual_workers}")
        num_workers = exchange_lib.count_workers(names) * len(workers)
        layout = buckets.plan_layout(workers[0], min_size, exclude)
        _require_local(workers, layout.paths, names)
        if exchange == "float":
            mean, measured = _float_mean(workers, names), state.statistics
        else:
            chosen = choose_exchange(exchange, codec, num_workers)
            first = exchange_lib.worker_index(names) * len(workers)
            keys = [derive_key(seed, state.count, first + index) for index in range(len(workers))]
            mean, measured = _compressed_mean(workers, keys, layout, codec, chosen, names, statistics)
        return mean, CompressedMeanState(state.count + 1, measured)

    # optax types a state as a tree of arrays, which has no place for None.
    return optax.GradientTransformation(init, update)  # pyright: ignore[reportArgumentType]


def _compressed_mean(
    workers: Sequence[Any],
    keys: Sequence[jax.Array],
    layout: buckets.Layout,
    codec: Codec,
    exchange: str,
    names: AxisNames,
    statistics: bool,
) -> tuple[Any, Statistics | None]:
    """The way of a gradient: flatten, scales, maximum, encode, exchange, decode, unflatten."""
    num_workers = exchange_lib.count_workers(names) * len(workers)
    num_added = num_workers if exchange == "sum" else 1
    sizes = layout.sizes(compressed=True)
    gradients, floats = zip(*(buckets.flatten(tree, layout) for tree in workers), strict=True)
    scales = functools.reduce(jnp.maximum, [codec.local_scales(gradient, sizes) for gradient in gradients])
    scales = exchange_lib.maximum(scales, names) if scales.size else scales
    words = [codec.encode(own, scales, key, sizes, num_added) for own, key in zip(gradients, keys, strict=True)]
    all_words, all_floats = _exchange(words, floats, exchange, names)
    mean = codec.decode(all_words, scales, sizes, num_added, num_workers)
    measured = None
    if statistics:
        sent = [codec.decode(own[None], scales, sizes, num_added, num_workers=1) for own in words]
        measured = measure(gradients, sent, mean, scales, names)
    return buckets.unflatten(mean, _mean_in_order(all_floats), layout), measured


def _exchange(
    words: Sequence[jax.Array], floats: Sequence[jax.Array], exchange: str, names: AxisNames
) -> tuple[jax.Array, jax.Array]:
    """Words to uint32[rows, W] and float tensors to float32[N, m], in as few collectives as can be."""
    float_words = [lax.bitcast_convert_type(vector, jnp.uint32) for vector in floats]
    if exchange == "gather":
        payload = jnp.stack([jnp.concatenate(both) for both in zip(words, float_words, strict=True)])
        rows = exchange_lib.gather_words(payload, names)
        all_words, all_floats = rows[:, : words[0].size], rows[:, words[0].size :]
    else:
        all_words = exchange_lib.add_words(functools.reduce(jnp.add, words), names)
        all_floats = exchange_lib.gather_words(jnp.stack(float_words), names)
    return all_words, lax.bitcast_convert_type(all_floats, jnp.float32)


def _float_mean(workers: Sequence[Any], names: AxisNames) -> Any:
    """pmean of the workers' mean."""
    if len(workers) > 1:
        workers = [jax.tree.map(lambda *leaves: functools.reduce(jnp.add, leaves) / len(leaves), *workers)]
    return exchange_lib.float_mean(workers[0], names)


def _mean_in_order(rows: jax.Array) -> jax.Array:
    """float32[N, m] to the mean over N, added one worker after the other whatever the devices."""
    total, _ = lax.scan(lambda total, row: (total + row, None), jnp.zeros_like(rows[0]), rows)
    return total / rows.shape[0]


def _resolve(codec: Codec | str, exchange: str) -> tuple[Codec, str]:
    """The codec and exchange that the arguments name; either may say "float"."""
    if exchange not in ("auto", *cost.EXCHANGES):
        raise ValueError(f"exchange={exchange!r}: must be one of auto, {', '.join(cost.EXCHANGES)}")
    if isinstance(codec, str):
        if codec not in ("ternary", "float"):
            raise ValueError(f"codec={codec!r}: must be ternary, float, or a Codec")
        return Ternary(), "float" if codec == "float" else exchange
    if not hasattr(codec, "encode"):
        raise ValueError(f"codec={codec!r}: must be ternary, float, or a Codec")
    return codec, exchange


def choose_exchange(exchange: str, codec: Codec, num_workers: int) -> str:
    """What "auto" means for so many workers.

    Raises:
      ValueError: for "sum" where the words of so many workers cannot be added.
    """
    if exchange == "auto":
        return cost.cheapest_exchange(codec, num_workers)
    if exchange == "sum" and not codec.can_add(num_workers):
        raise ValueError(f"exchange='sum': the words of {num_workers} workers of {codec} do not add; take 'gather'")
    return exchange


def _require_arguments(
    min_size: int, exclude: buckets.PathPredicate | None, seed: int, virtual_workers: int | None
) -> None:
    if virtual_workers is not None and (not isinstance(virtual_workers, int) or virtual_workers < 1):
        raise ValueError(f"virtual_workers={virtual_workers!r}: must be None or an integer of 1 or more")
    if isinstance(min_size, bool) or not isinstance(min_size, int) or min_size < 1:
        raise ValueError(f"min_size={min_size!r}: must be an integer of 1 or more")
    if exclude is not None and not callable(exclude):
        raise ValueError(f"exclude={exclude!r}: must be None or a function of a path")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise ValueError(f"seed={seed!r}: must be an integer from 0 to 2^32 - 1")


def _require_local(workers: Sequence[Any], paths: tuple[str, ...], names: AxisNames) -> None:
    """Refuses gradients that shard_map has already summed, as it does for weights that do not vary."""
    checked = set(exchange_lib.checked_axes(names))
    for tree in workers:
        for path, leaf in zip(paths, jax.tree.leaves(tree), strict=True):
            if not checked <= exchange_lib.varying_axes(leaf):
                raise ValueError(
                    f"gradient {path!r} is the same on all workers of axis {'/'.join(sorted(checked))!r}: shard_map has"
                    " summed it already. Differentiate with respect to jax.lax.pcast(params, axis, to='varying'), or"
                    " pass check_vma=False to shard_map."
                )
