"""Top-k: sends the elements of largest magnitude of each tensor, as offsets and values."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxtern.compression.arguments import as_float
from jaxtern.compression.network.links import Traffic, all_gather, share_bytes
from jaxtern.compression.reducer import Group, Layout, Reduced, Reducer, State, Tensors, stateless
from jaxtern.compression.wrappers import error_feedback
from jaxtern.kernels.segments import fill_up

_VALUES = ("float32", "bfloat16")
_SAMPLES = 2**14  # of a tensor, from which a threshold is estimated
_BITS = 32  # of a word
_ROW = 32  # elements that `first_places` searches one by one


def top_k(
    density: float = 0.001, value_dtype: str = "float32", sampled: bool = False, feedback: bool = True
) -> Reducer:
    """Sends the k = ceil(density n) elements of largest magnitude of each tensor.

        sent_i = g_i where i is among the k largest |g|, else 0;  mean = sum over workers of sent / N

    With feedback, a worker adds what it has not sent to its next gradient (see `error_feedback`).

    Args:
      density: share of a tensor's elements that each worker sends, above 0 and at most 1.
      value_dtype: dtype of the values on the wire, "float32" or "bfloat16".
      sampled: whether to estimate a threshold from 2^14 strided samples, instead of finding the k elements exactly;
        faster for large tensors. The first elements above the threshold are sent, at most k.
      feedback: whether to wrap it in `error_feedback`.

    Returns:
      A reducer; without feedback it has no state.

    Raises:
      ValueError: for an argument out of its range.

    Reference:
      Lin et al., Deep Gradient Compression, ICLR 2018; Stich et al., Sparsified SGD with Memory, NeurIPS 2018.
    """
    given, density = density, as_float("density", density)
    if not 0 < density <= 1:
        raise ValueError(f"density={given!r}: must be a number above 0 and at most 1")
    if value_dtype not in _VALUES:
        raise ValueError(f"value_dtype={value_dtype!r}: must be one of {', '.join(_VALUES)}")

    def reduce(workers: list[Tensors], state: State, group: Group) -> Reduced:
        sizes = group.layout.sizes
        group.layout.require_int32([size + count_sent(size, density) for size in sizes])
        chosen = [[_choose(tensor.reshape(-1), density, sampled, value_dtype) for tensor in own] for own in workers]
        packed = [[(pack_places(p, n), v) for (p, v), n in zip(own, sizes, strict=True)] for own in chosen]
        rows, mean = group.gather(packed), []
        for (bits, values), size, shape in zip(rows, sizes, group.layout.shapes, strict=True):
            places = unpack_places(bits, values.shape[-1], size)
            mean.append((_add_rows(places, values, size) / group.size).reshape(shape))
        if not group.tracks:
            return Reduced(mean, state)
        sent = [
            [_add_rows(p[None], v[None], t.size).reshape(t.shape) for (p, v), t in zip(*pair, strict=True)]
            for pair in zip(chosen, workers, strict=True)
        ]
        return Reduced(mean, state, sent)

    def traffic(layout: Layout, num_workers: int) -> Traffic:
        counts, itemsize = [count_sent(size, density) for size in layout.sizes], jnp.dtype(value_dtype).itemsize
        pairs = zip(counts, layout.sizes, strict=True)
        words = [num_place_words(count, size) + -(-count * itemsize // 4) for count, size in pairs]
        total = all_gather(sum(words), num_workers)
        return total._replace(ways=("top_k",), of_tensors=share_bytes(total.bytes, words))

    reducer = Reducer(stateless, reduce, traffic)
    return error_feedback(reducer) if feedback else reducer


def count_sent(size: int, density: float) -> int:
    """k for a tensor of `size` elements."""
    return min(size, max(1, math.ceil(density * size - 1e-6)))  # a hair above a whole number is rounding


def _choose(flat: jax.Array, density: float, sampled: bool, value_dtype: str) -> tuple[jax.Array, jax.Array]:
    """Places, int32[k] in ascending order, and values [k] of the elements to send."""
    magnitude, k = jnp.abs(flat), count_sent(flat.size, density)
    if not sampled or flat.size <= _SAMPLES:
        places = jnp.sort(lax.top_k(magnitude, k)[1])
        return places, flat[places].astype(value_dtype)
    samples = magnitude[:: flat.size // _SAMPLES | 1]  # an odd stride meets all columns of a matrix
    threshold = lax.top_k(samples, count_sent(samples.size, density))[0][-1]
    threshold = jnp.where(jnp.isfinite(jnp.max(magnitude)), threshold, jnp.inf)  # sends what is not finite, if any
    places, is_there = first_places(jnp.where(threshold > 0, ~(magnitude < threshold), magnitude > 0), k)
    return places, jnp.where(is_there, flat[places], 0).astype(value_dtype)


def first_places(mask: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Finds the first places at which bool[n] is true: int32[count], and bool[count], whether each of them exists.

    Where there are no more, the place is n - 1.
    """
    rows = fill_up(mask, _ROW).reshape(-1, _ROW)
    ends = jnp.cumsum(jnp.sum(rows, axis=1, dtype=jnp.int32))
    wanted = jnp.arange(count, dtype=jnp.int32)
    row = jnp.minimum(jnp.searchsorted(ends, wanted, side="right"), len(rows) - 1).astype(jnp.int32)
    before = wanted - jnp.where(row > 0, ends[row - 1], 0)  # true ones in the row before the wanted one
    inside = jnp.sum(jnp.cumsum(rows[row], axis=1, dtype=jnp.int32) <= before[:, None], axis=1, dtype=jnp.int32)
    is_there = wanted < ends[-1]
    return jnp.where(is_there, row * _ROW + inside, mask.size - 1), is_there


def _add_rows(places: jax.Array, values: jax.Array, size: int) -> jax.Array:
    """Adds values at int32[N, k] places to float32[size], in the order of the rows."""

    def add(total: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        return total.at[row[0]].add(row[1].astype(jnp.float32)), None

    # Zeros like the values vary over the same axes, as a loop's carry must.
    return lax.scan(add, jnp.zeros_like(values, jnp.float32, (size,)), (places, values))[0]


def _low_bits(count: int, size: int) -> int:
    """l, where 2^l is the largest power of two up to size / count."""
    return max(size // count, 1).bit_length() - 1


def num_place_words(count: int, size: int) -> int:
    """Words of `pack_places`."""
    if not count:
        return 0
    low = _low_bits(count, size)
    return low * -(-count // _BITS) + -(-(count + (size >> low) + 1) // _BITS)


def pack_places(places: jax.Array, size: int) -> jax.Array:
    """Packs places into words, as offsets in blocks, and blocks in unary (Elias, 1974; Fano, 1971).

    For k places among n, blocks have 2^l elements, l = floor(log2(n / k)). The l bits of each offset are sent; the j-th
    place sets bit (its block + j) of a map of k + n / 2^l bits. That takes l + 2 to l + 3 bits for each place, or 12.0
    at a density of 0.001.

    Args:
      places: int32[k] below n, in ascending order.
      size: n.

    Returns:
      uint32[num_place_words(k, n)].
    """
    count = places.size
    if not count:
        return jnp.zeros((0,), jnp.uint32)
    low = _low_bits(count, size)
    values = fill_up(places.astype(jnp.uint32), _BITS).reshape(-1, _BITS)
    lanes = np.arange(_BITS, dtype=np.uint32)[None]
    planes = [jnp.sum((values >> np.uint32(bit) & 1) << lanes, axis=1, dtype=jnp.uint32) for bit in range(low)]
    ones = (places >> low) + jnp.arange(count, dtype=jnp.int32)
    blocks = jnp.zeros((-(-(count + (size >> low) + 1) // _BITS),), jnp.uint32)
    blocks = blocks.at[ones // _BITS].add(jnp.uint32(1) << (ones % _BITS).astype(jnp.uint32))  # no bit comes twice
    return jnp.concatenate([*planes, blocks])


def unpack_places(words: jax.Array, count: int, size: int) -> jax.Array:
    """The inverse of `pack_places`, from uint32[N, W] to int32[N, k]."""
    if not count:
        return jnp.zeros((words.shape[0], 0), jnp.int32)
    low, width = _low_bits(count, size), -(-count // _BITS)
    lanes = np.arange(_BITS, dtype=np.uint32)

    def unpack(row: jax.Array) -> jax.Array:
        planes = row[: low * width].reshape(low, width, 1) >> lanes[None, None] & 1
        offsets = sum((planes[bit].reshape(-1)[:count] << np.uint32(bit) for bit in range(low)), jnp.uint32(0))
        mask = (row[low * width :, None] >> lanes[None] & 1).reshape(-1) > 0
        blocks = first_places(mask, count)[0] - jnp.arange(count, dtype=jnp.int32)
        return (blocks << low) + offsets.astype(jnp.int32)

    return lax.map(unpack, words)
