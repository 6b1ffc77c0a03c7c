"""The mean of floats, added in the order of the workers: tensors travel in runs, one behind another."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxtern.compression import collectives
from jaxtern.compression.collectives import Axes, as_bits, count_workers, gather_words
from jaxtern.kernels import concatenate, follow
from jaxtern.kernels.segments import fill_up

_RUN = 2**20  # floats that are sent together, at least, where there are more
_PIECE = 2**22  # floats of one tensor that are sent together, at most
_PAIRED_BYTES = 2**17  # for each worker; from this size on, rounds of pairs take less time than an all-to-all
_APART_BYTES = 2**20  # what a collective returns; from this size on, another thread works on it
_KEPT = 3  # runs whose operands are kept, as XLA would give their memory to something that then waits for it

_follow_fused = functools.partial(follow, implementation="reference")  # XLA fuses it with what makes or uses the words


class Sent(NamedTuple):
    """A run whose first collective has begun."""

    words: list[jax.Array]  # operand and result of the collective
    apart: list[jax.Array]  # a word that exists once the collective has ended, for work of another thread; or nothing
    # Takes words that a second collective must follow; returns float32[n] and words that the next collective follows.
    end: Callable[[Sequence[jax.Array]], tuple[jax.Array, Sequence[jax.Array]]]


def mean_in_order(trees: Sequence[Sequence[jax.Array]], axes: Axes, dtype: Any) -> list[jax.Array]:
    """The float32 mean of the tensors of each worker on this device, as `Group.mean` describes it.

    While run i is on its way, i + 1 is rounded, and the mean of i - 1 computed.
    """
    runs = runs_of([leaf.size for leaf in trees[0]])
    means: list[list[jax.Array]] = [[] for _ in trees[0]]
    sent: list[Sent] = []
    before: Sequence[jax.Array] = ()  # what the next collective follows
    for turn in range(len(runs) + 1):
        if turn < len(runs):
            cut = [[own[at].reshape(-1)[start:end].astype(dtype) for at, start, end in runs[turn]] for own in trees]
            values = jnp.stack([jnp.concatenate(parts) for parts in cut])
            kept = [*sent[turn - _KEPT].words, *sent[turn - _KEPT].apart] if turn >= _KEPT else []
            sent.append(_start(values, axes, [*before, *kept], sent[turn - 2].apart if turn > 1 else ()))
            before = sent[turn].words[1:]
        if turn > 0:  # the run before ends while this one is on its way
            mean, before = sent[turn - 1].end(before)
            for at, start, end in runs[turn - 1]:
                means[at].append(mean[: end - start])
                mean = mean[end - start :]
    return [concatenate(parts).reshape(leaf.shape) for parts, leaf in zip(means, trees[0], strict=True)]


def _start(values: jax.Array, axes: Axes, after: Sequence[jax.Array], early: Sequence[jax.Array]) -> Sent:
    """Begins the mean of [V, n] floats of the workers on this device.

    Each device averages a shard, and all gather the shards, which sends as much as a ring all-reduce. Between two
    workers, and for a word or two, all values are gathered at once. The values are rounded once `early` is computed,
    and sent once `after` is.
    """
    words = follow(_follow_fused(jax.vmap(as_bits)(values), early), after)
    width, num_workers = words.shape[-1], count_workers(axes.workers) * words.shape[0]

    def to_floats(own: jax.Array) -> jax.Array:
        return lax.bitcast_convert_type(own, values.dtype).reshape(own.shape[0], -1).astype(jnp.float32)

    if num_workers == 2 and width and words.shape[0] == 1 and not axes.fast and collectives.is_mutual(axes.workers):
        total = collectives.add_words(words[0], axes.workers)  # XLA would copy the words of both to make rows of them
        apart = _apart(total)
        other = _follow_fused(total, apart) - words
        # In an order that does not depend on the device: XLA may fuse a select by device with what uses the mean, and
        # then give the devices other last bits. a + b is b + a.
        both = [to_floats(jnp.minimum(words, other)), to_floats(jnp.maximum(words, other))]
        return Sent([words, total], apart, lambda after: (_add_up(both)[0, : values.shape[1]], after))
    if gathers_mean(width, num_workers):
        rows = collectives.through_fast(lambda own: gather_words(own, axes.workers), words, axes)
        apart = _apart(rows)
        mean = _add_up(to_floats(_follow_fused(rows, apart))[:, : values.shape[1]])
        mean = mean.astype(values.dtype).astype(jnp.float32) if num_workers > 2 else mean
        return Sent([words, rows], apart, lambda after: (mean, after))
    places = axes.fast + axes.workers
    own = collectives.own_slice(fill_up(words, count_workers(places)), axes.fast)
    in_pairs = 4 * own.shape[-1] // count_workers(axes.workers) > _PAIRED_BYTES
    rows = collectives.scatter_words(own, axes.workers, in_pairs=in_pairs)
    apart = _apart(rows)

    def end(after: Sequence[jax.Array]) -> tuple[jax.Array, Sequence[jax.Array]]:
        mean = as_bits(_add_up(to_floats(_follow_fused(rows, apart))).astype(values.dtype))
        joined = gather_words(follow(mean, after)[None], places)
        shards = _follow_fused(joined, _apart(joined))
        return to_floats(shards.reshape(1, -1))[0, : values.shape[1]], [joined]

    return Sent([own, rows], apart, end)


def _apart(words: jax.Array) -> list[jax.Array]:
    """One of these words, for work of another thread; none if the words are few, as a thread then costs more."""
    return [follow(words[..., :1], [words], apart=True)] if 4 * words.size >= _APART_BYTES else []


def gathers_mean(num_words: int, num_workers: int) -> bool:
    """Whether all words of a run are gathered, which sends no more than averaging them shard by shard."""
    return num_words <= 2 * -(-num_words // num_workers)


def runs_of(sizes: Sequence[int]) -> list[list[tuple[int, int, int]]]:
    """Runs of (place, start, end): slices of neighbouring tensors, sent together; below `_RUN` + `_PIECE` elements."""
    runs, elements = [], _RUN
    for place, size in enumerate(sizes):
        for start in range(0, max(size, 1), _PIECE):
            if elements >= _RUN:
                runs.append([])
                elements = 0
            end = min(start + _PIECE, size)
            runs[-1].append((place, start, end))
            elements += end - start
    return runs


def _add_up(rows: Any) -> jax.Array:
    """The mean of float32[N, ...], or of N float32[...], over N, added one worker after the other."""
    if len(rows) <= 2:
        return (rows[0] + rows[-1]) / 2 if len(rows) == 2 else rows[0]
    total, _ = lax.scan(lambda total, row: (total + row, None), jnp.zeros_like(rows[0]), rows, unroll=len(rows) <= 8)
    return total / len(rows)
