"""The stateful reducers written a second time, in NumPy, as literally as their papers have them.

Every model takes gradients as lists [steps][workers][tensors] of arrays, and returns the means as lists
[steps][tensors], and the state after the last step. It computes in the dtype of the gradients: float32 as the reducers
do, or float64 to see how much of a difference is rounding. Sums over workers are in the order of the workers.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ml_dtypes  # noqa: F401  gives NumPy the dtype "bfloat16"
import numpy as np

Tensors = list[np.ndarray]
Gradients = list[list[Tensors]]  # [steps][workers][tensors]


class Run(NamedTuple):
    """What a model returns.

    Attributes:
      means: [steps][tensors].
      state: after the last step, by name.
    """

    means: list[Tensors]
    state: dict[str, Any]


def _mean(tensors: Sequence[np.ndarray]) -> np.ndarray:
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total / len(tensors)


def _zeros(gradients: Gradients) -> list[Tensors]:
    """[workers][tensors]."""
    return [[np.zeros_like(tensor) for tensor in tensors] for tensors in gradients[0]]


def orthogonalise(matrix: np.ndarray, epsilon: float = 1e-8) -> np.ndarray:
    """Modified Gram-Schmidt: each column over its norm + epsilon, then taken out of the columns after it.

    Vogels et al., PowerSGD, NeurIPS 2019, Algorithm 1, line 5; epsilon as in the authors' code and PyTorch's hook.
    """
    matrix = matrix.copy()
    for i in range(matrix.shape[1]):
        matrix[:, i] /= np.linalg.norm(matrix[:, i]) + matrix.dtype.type(epsilon)
        for j in range(i + 1, matrix.shape[1]):
            matrix[:, j] -= (matrix[:, i] @ matrix[:, j]) * matrix[:, i]
    return matrix


def orthogonalise_twice(matrix: np.ndarray) -> np.ndarray:
    """Modified Gram-Schmidt, twice, without an epsilon: columns are unit vectors or, where they depend on others, zero.

    Once is not enough: a column that depends on those before it leaves nothing but rounding, and its direction is then
    not orthogonal to theirs. A second time it is ("twice is enough": Parlett, The Symmetric Eigenvalue Problem, 6.9).
    """
    for least in (1e-6, 0.5):  # what must be left of a column's length; after the first time nearly all is, or little
        before = np.linalg.norm(matrix, axis=0)
        matrix = matrix.copy()
        for i in range(matrix.shape[1]):
            norm = np.linalg.norm(matrix[:, i])
            matrix[:, i] = matrix[:, i] / norm if norm > least * before[i] else 0
            for j in range(i + 1, matrix.shape[1]):
                matrix[:, j] -= (matrix[:, i] @ matrix[:, j]) * matrix[:, i]
    return matrix


def power_sgd(
    gradients: Gradients,
    rank: int,
    q0: Sequence[np.ndarray | None],
    orthogonalised: Callable[[np.ndarray], np.ndarray] = orthogonalise,
) -> Run:
    """Low-rank means with a warm start and error feedback.

    Vogels, Karimireddy, Jaggi: PowerSGD, NeurIPS 2019, Algorithm 1 (the compressor) and Algorithm 2 (error feedback,
    here of gradients, not of steps). With M_w the tensor as a matrix, of as many columns as Q has rows, and N workers:

        A_w = M_w + e_w;  P = orthogonalised(mean_w A_w Q);  Q = mean_w A_w^T P;  mean = P Q^T;  e_w = A_w - mean

    Args:
      rank: r; of a matrix with fewer rows or columns, those.
      q0: of each tensor the first Q, [columns, min(r, rows, columns)]; None: its mean is plain.
      orthogonalised: `orthogonalise`, or `orthogonalise_twice`.

    Returns:
      Means, and the state: "queries" [tensors] and "errors" [workers][tensors].
    """
    queries, errors, means = list(q0), _zeros(gradients), []
    for workers in gradients:
        decoded = []
        for i, query in enumerate(queries):
            if query is None:
                decoded.append(_mean([tensors[i] for tensors in workers]))
                continue
            shape = workers[0][i].shape
            matrices = [
                (tensors[i] + error[i]).reshape(-1, len(query)) for tensors, error in zip(workers, errors, strict=True)
            ]
            assert query.shape == (matrices[0].shape[1], min(rank, *matrices[0].shape))
            left = orthogonalised(_mean([matrix @ query for matrix in matrices]))
            queries[i] = right = _mean([matrix.T @ left for matrix in matrices])
            product = left @ right.T
            for error, matrix in zip(errors, matrices, strict=True):
                error[i] = (matrix - product).reshape(shape)
            decoded.append(product.reshape(shape))
        means.append(decoded)
    return Run(means, {"queries": queries, "errors": errors})


def one_bit(tensor: np.ndarray, block_size: int | None = None) -> np.ndarray:
    """C(x) = mean|x| sign(x) in each block of the flat tensor, where sign(0) is +1.

    Zheng, Huang, Kwok: Communication-Efficient Distributed Blockwise Momentum SGD with Error-Feedback, NeurIPS 2019,
    the blockwise compressor.

    Args:
      block_size: elements under one scale, the last block may have fewer; None: all.
    """
    flat = tensor.reshape(-1)
    coded = np.empty_like(flat)
    size = block_size or max(flat.size, 1)
    for start in range(0, flat.size, size):
        block = flat[start : start + size]
        scale = np.abs(block).mean(dtype=block.dtype)
        coded[start : start + size] = np.where(block >= 0, scale, -scale)
    return coded.reshape(tensor.shape)


def sign_feedback(
    gradients: Gradients,
    *,
    two_way: bool = False,
    block_size: int | None = None,
    server_block_size: int | None = None,
) -> Run:
    """One bit an element, with error feedback at the workers and, two-way, at the server.

    One-way: Karimireddy et al.: Error Feedback Fixes SignSGD, ICML 2019, Algorithm 2. Two-way: Zheng, Huang, Kwok,
    NeurIPS 2019, Algorithm 1 (dist-EF-SGD) at a constant learning rate. With C = `one_bit`:

        p_w = g_w + e_w;  d_w = C(p_w);  e_w = p_w - d_w;  one-way: mean = mean_w d_w
        two-way: q = mean_w d_w + e_s;  mean = C(q);  e_s = q - mean

    Args:
      block_size: elements of a tensor under one scale of a worker; None: the whole tensor.
      server_block_size: elements under one scale of the server, such as the tensor's size over N, rounded up, where
        each worker serves its own part; None: the whole tensor.

    Returns:
      Means, and the state: "errors" [workers][tensors] and "server_errors" [tensors].
    """
    errors, means = _zeros(gradients), []
    server_errors = [np.zeros_like(tensor) for tensor in gradients[0][0]]
    for workers in gradients:
        decoded = []
        for i in range(len(workers[0])):
            sent = []
            for tensors, error in zip(workers, errors, strict=True):
                wanted = tensors[i] + error[i]
                sent.append(one_bit(wanted, block_size))
                error[i] = wanted - sent[-1]
            mean = _mean(sent)
            if two_way:
                wanted = mean + server_errors[i]
                mean = one_bit(wanted, server_block_size)
                server_errors[i] = wanted - mean
            decoded.append(mean)
        means.append(decoded)
    return Run(means, {"errors": errors, "server_errors": server_errors})


def num_kept(size: int, density: float) -> int:
    """k of top-k: density times size rounded up, one at least. A hair above a whole number is rounding: 0.1 * 30."""
    return max(1, math.ceil(density * size - 1e-6))


def largest(tensor: np.ndarray, count: int) -> np.ndarray:
    """bool as the tensor: the `count` elements that are largest in magnitude; of equal ones those of lower index."""
    chosen = np.zeros(tensor.size, bool)
    chosen[np.argsort(-np.abs(tensor.reshape(-1)), kind="stable")[:count]] = True
    return chosen.reshape(tensor.shape)


def top_k_feedback(gradients: Gradients, density: float) -> Run:
    """The k largest elements of each tensor, with error feedback.

    Stich, Cordonnier, Jaggi: Sparsified SGD with Memory, NeurIPS 2018, Algorithm 1. Per worker and tensor:

        p = g + e;  sent = p where |p| is among the k largest, else 0;  e = p - sent;  mean = mean_w sent_w

    Returns:
      Means, and the state: "errors" [workers][tensors].
    """
    errors, means = _zeros(gradients), []
    for workers in gradients:
        decoded = []
        for i in range(len(workers[0])):
            sent = []
            for tensors, error in zip(workers, errors, strict=True):
                wanted = tensors[i] + error[i]
                chosen = largest(wanted, num_kept(wanted.size, density))
                sent.append(np.where(chosen, wanted, 0).astype(wanted.dtype))
                error[i] = np.where(chosen, 0, wanted).astype(wanted.dtype)
            decoded.append(_mean(sent))
        means.append(decoded)
    return Run(means, {"errors": errors})


def clip_local(tensors: Tensors, threshold: float, num_workers: int) -> Tensors:
    """All of a worker's tensors times min(1, t / norm), the norm that of all of them together, t = threshold N^-1/2.

    Lin et al., Deep Gradient Compression, ICLR 2018, section 3.2, local gradient clipping.
    """
    norm = math.sqrt(sum(float(np.square(tensor.astype(np.float64)).sum()) for tensor in tensors))
    limit = threshold / math.sqrt(num_workers)
    factor = 1.0 if norm <= limit else limit / norm
    return [tensor * tensor.dtype.type(factor) for tensor in tensors]


def warm_up_densities(density: float, stages: int) -> list[float]:
    """Densities of the stages of warm-up and the one after it: each the last times density ** (1 / (stages + 1)).

    Lin et al., Deep Gradient Compression, ICLR 2018, section 3.3: 25 %, 6.25 %, 1.5625 %, .4 %, .1 %; the authors' code
    (`warmup_compress_ratio`) makes .251, .063, .0158, .00398 of 0.001 in four stages.
    """
    factor = density ** (1 / (stages + 1))
    return [max(factor ** (stage + 1), density) for stage in range(stages)] + [density]


def dgc(
    gradients: Gradients,
    density: float | Sequence[float],
    momentum: float,
    *,
    clip_threshold: float | None = None,
    masks_momentum: bool = True,
) -> Run:
    """Deep gradient compression: top-k of accumulated momentum.

    Lin et al., Deep Gradient Compression, ICLR 2018, Algorithm 4 and section 3. Per worker and tensor, in this order:

        g clipped (`clip_local`);  u = m u + g;  v = v + u;  sent = v where |v| is among the k largest, else 0;
        v = 0 where sent;  u = 0 where sent (momentum factor masking);  mean = mean_w sent_w

    Args:
      density: of what is sent; one for each step where it warms up.
      momentum: m.
      clip_threshold: of the norm of the mean's tensors together; None: nothing is clipped.
      masks_momentum: whether u is zeroed too.

    Returns:
      Means, and the state: "momenta" u and "velocities" v, [workers][tensors].
    """
    densities = density if isinstance(density, Sequence) else [density] * len(gradients)
    momenta, velocities, means = _zeros(gradients), _zeros(gradients), []
    for workers, share in zip(gradients, densities, strict=True):
        sent = []
        for tensors, us, vs in zip(workers, momenta, velocities, strict=True):
            if clip_threshold is not None:
                tensors = clip_local(tensors, clip_threshold, len(workers))
            sent.append([])
            for i, gradient in enumerate(tensors):
                us[i] = gradient.dtype.type(momentum) * us[i] + gradient
                vs[i] = vs[i] + us[i]
                chosen = largest(vs[i], num_kept(gradient.size, share))
                sent[-1].append(np.where(chosen, vs[i], 0).astype(gradient.dtype))
                vs[i] = np.where(chosen, 0, vs[i]).astype(gradient.dtype)
                if masks_momentum:
                    us[i] = np.where(chosen, 0, us[i]).astype(gradient.dtype)
        means.append([_mean(column) for column in zip(*sent, strict=True)])
    return Run(means, {"momenta": momenta, "velocities": velocities})


def float16_mean(gradients: Gradients, dtype: str) -> Run:
    """Means of tensors that travel in 16 bits: rounded by each worker, added as float32, and, N > 2, rounded again.

    PyTorch's fp16_compress_hook and bf16_compress_hook, but that those also add in 16 bits.

    Args:
      dtype: "float16" or "bfloat16"; rounding is to the nearest, to even.

    Returns:
      Means, float32, and no state.
    """
    means = []
    for workers in gradients:
        decoded = []
        for i in range(len(workers[0])):
            mean = _mean([tensors[i].astype(dtype).astype(np.float32) for tensors in workers])
            decoded.append(mean.astype(dtype).astype(np.float32) if len(workers) > 2 else mean)
        means.append(decoded)
    return Run(means, {})
