"""Low rank: every matrix as the product of two thin ones (PowerSGD)."""

import math

import jax
import jax.numpy as jnp
from jax import lax

from jaxtern.compression.arguments import as_float, as_integer, require_number
from jaxtern.compression.network.links import Traffic, mean_in_order, share_bytes
from jaxtern.compression.reducer import Group, Layout, Reduced, Reducer, State, Tensors, put
from jaxtern.compression.wrappers import error_feedback
from jaxtern.kernels import derive_key, random_bits
from jaxtern.kernels.rounding import settle


def low_rank(rank: int = 1, min_ratio: float = 2.0, feedback: bool = True) -> Reducer:
    """Approximates each tensor with rank r, by a step of subspace iteration from the last update's result.

    A tensor is taken as a matrix M: its axes are cut in two where the sum of both sides is smallest. With E the mean
    over workers:

        P = orthonormalise(E[M Q]),  Q' = E[M^T P],  mean = P Q'^T

    The next update starts from Q'. With feedback, a worker adds what the mean leaves out, M - P Q'^T, to its next M
    (see `error_feedback`).

    Args:
      rank: r, 1 or more; a matrix takes at most the smaller of its sides.
      min_ratio: a tensor is compressed if it has more than so many times the elements of P and Q together. Others, and
        those of one dimension or none, travel as floats.
      feedback: whether to wrap it in `error_feedback`.

    Returns:
      A reducer whose shared state is the list of all Q, float32[m, r].

    Raises:
      ValueError: for an argument out of its range.

    Reference:
      Vogels et al., PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization, NeurIPS 2019,
      algorithms 1 and 2.
    """
    rank = as_integer("rank", rank, 1)
    require_number("min_ratio", min_ratio)
    min_ratio = as_float("min_ratio", min_ratio)

    def init(layout: Layout, num_workers: int) -> State:
        factors = []
        for number, place in enumerate(_split(layout, rank, min_ratio)[0]):
            _, columns, own = _sides(layout.shapes[place], rank)
            bits = random_bits(derive_key(0, number, 0), jnp.arange(columns * own, dtype=jnp.uint32))
            factors.append((bits.astype(jnp.float32) / 2**15 - 1).reshape(columns, own))  # uniform about zero
        return State(factors)

    def reduce(workers: list[Tensors], state: State, group: Group) -> Reduced:
        places, others = _split(group.layout, rank, min_ratio)
        picked = [[own[place] for place in places] for own in workers]
        matrices = [[x.astype(jnp.float32).reshape(_sides(x.shape, 1)[:2]) for x in own] for own in picked]
        floats = [[own[place] for place in others] for own in workers]
        products = [[_multiply(m, q) for m, q in zip(own, state.shared, strict=True)] for own in matrices]
        lefts, float_means = group.mean([list(pair) for pair in zip(products, floats, strict=True)])
        lefts = [_orthonormalise(left) for left in lefts]
        # Computes Q'^T = P^T M: M^T P reads M column by column, which takes a CPU ten times as long.
        rights = group.mean([[_multiply(p.T, m) for m, p in zip(own, lefts, strict=True)] for own in matrices])
        mean: Tensors = list(workers[0])
        products = [_multiply(*pair) for pair in zip(lefts, rights, strict=True)]
        put(mean, places, [x.reshape(group.layout.shapes[place]) for x, place in zip(products, places, strict=True)])
        put(mean, others, float_means)
        factors = [_keep_alive(new.T, old) for new, old in zip(rights, state.shared, strict=True)]
        # As in the paper, the error is measured from the mean; floats are sent as they are.
        sent = [[own[place] if place in others else mean[place] for place in range(len(mean))] for own in workers]
        return Reduced(mean, State(factors, state.local), sent)

    reducer = Reducer(init, reduce, lambda layout, num_workers: _traffic(layout, num_workers, rank, min_ratio))
    return error_feedback(reducer) if feedback else reducer


def _traffic(layout: Layout, num_workers: int, rank: int, min_ratio: float) -> Traffic:
    places, others = _split(layout, rank, min_ratio)
    sides = [_sides(layout.shapes[place], rank) for place in places]
    lefts = [rows * own for rows, _, own in sides] + [layout.sizes[place] for place in others]
    rights = [columns * own for _, columns, own in sides]
    total = mean_in_order(lefts, num_workers) + mean_in_order(rights, num_workers)
    elements = list(layout.sizes)
    put(elements, places, [(rows + columns) * own for rows, columns, own in sides])
    return total._replace(ways=("low_rank",), of_tensors=share_bytes(total.bytes, elements))


def _sides(shape: tuple[int, ...], rank: int) -> tuple[int, int, int]:
    """Rows, columns and rank of the matrix of a tensor with more than one axis."""
    cuts = [(math.prod(shape[:place]), math.prod(shape[place:])) for place in range(len(shape) - 1, 0, -1)]
    rows, columns = min(cuts, key=sum)
    return rows, columns, min(rank, rows, columns)


def _split(layout: Layout, rank: int, min_ratio: float) -> tuple[list[int], list[int]]:
    """Places of the tensors that are compressed, and of the others."""
    compressed = []
    for place, (shape, size) in enumerate(zip(layout.shapes, layout.sizes, strict=True)):
        if len(shape) > 1 and size:
            rows, columns, own = _sides(shape, rank)
            if size > min_ratio * (rows + columns) * own:
                compressed.append(place)
    return compressed, [place for place in range(len(layout.shapes)) if place not in compressed]


@jax.custom_batching.custom_vmap
def _multiply(left: jax.Array, right: jax.Array) -> jax.Array:
    """The product, kept apart: fused with code around it, its sums would depend on how workers lie on devices."""
    return settle(jnp.matmul(*lax.optimization_barrier((left, right)), precision=lax.Precision.HIGHEST))


@_multiply.def_vmap
def _multiply_each(size: int, batched: list[bool], *factors: jax.Array) -> tuple[jax.Array, bool]:
    """One by one: as a batch or in a loop, XLA may add in another order."""
    own = [[x[at] if is_batched else x for x, is_batched in zip(factors, batched, strict=True)] for at in range(size)]
    return jnp.stack([_multiply(*pair) for pair in own]), True


def _orthonormalise(matrix: jax.Array) -> jax.Array:
    """Modified Gram-Schmidt over the columns of float32[n, r], twice; a column that depends on others becomes zero.

    After one pass, only rounding is left of such a column, which scaled to length 1 is not orthogonal to the others
    (Parlett, The Symmetric Eigenvalue Problem, 6.9).
    """
    columns = [matrix[:, index] for index in range(matrix.shape[1])]
    for least in (1e-6, 0.5):  # share of its length that a column must keep
        lengths = [_length(column) for column in columns]
        for index, before in enumerate(lengths):
            for other in columns[:index]:
                columns[index] = columns[index] - settle(_dot(other, columns[index]) * other)
            length = _length(columns[index])
            share = jnp.where(length > least * before, 1 / jnp.where(length > 0, length, 1.0), 0)
            columns[index] = settle(columns[index] * share)
    return jnp.stack(columns, axis=1)


def _dot(left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.sum(settle(left * right))


def _length(column: jax.Array) -> jax.Array:
    """The norm, without overflow or underflow of squares."""
    largest = jnp.max(jnp.abs(column))
    scaled = settle(column * (1 / jnp.where(largest > 0, largest, 1.0)))
    return largest * jnp.sqrt(_dot(scaled, scaled))


def _keep_alive(new: jax.Array, old: jax.Array) -> jax.Array:
    """The new factor, with old columns in place of zero or non-finite ones, which would stay so for ever."""
    size = jnp.sum(jnp.abs(new), axis=0)
    return jnp.where((size > 0) & jnp.isfinite(size), new, old)
