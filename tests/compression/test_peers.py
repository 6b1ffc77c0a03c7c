"""What other projects' tests assert of their compressors, asserted of ours: their inputs, their tolerances.

Where ours cannot hold what theirs does, because the workers share a scale here, the docstring says so and the test
asserts what does hold.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec

import jaxtern

# Every reducer, for what holds of all of them. Each biased one is here with its feedback.
REDUCERS: dict[str, Callable[..., Any]] = {
    "float32": lambda: jaxtern.float_mean("float32"),
    "bfloat16": lambda: jaxtern.float_mean("bfloat16"),
    "float16": lambda: jaxtern.float_mean("float16"),
    "ternary": jaxtern.ternary,
    "terngrad": jaxtern.terngrad,
    "8 bits": lambda: plain(127),
    "sign": jaxtern.sign,
    "sign, two-way": lambda: jaxtern.sign(two_way=True),
    "top_k": lambda: jaxtern.top_k(0.1),
    "low_rank": lambda rank=2: jaxtern.low_rank(rank),
    "dgc": lambda: jaxtern.momentum_correction(jaxtern.top_k(0.1, feedback=False), momentum=0.5),
}
# Levels of the tensor itself, which is neither rotated nor clipped: what the peers below do.
plain = functools.partial(jaxtern.quantized, clip_sigmas=0.0, rotation=False, rounding="stochastic")


def _placed(reducer: Any, num_workers: int) -> tuple[Any, Mesh]:
    mesh = Mesh(jax.devices("cpu")[:1], "workers", axis_types=(AxisType.Auto,))
    return jaxtern.compressed_mean("workers", reducer, virtual_workers=num_workers), mesh


def _on_device(run: Callable, mesh: Mesh) -> Callable:
    everywhere = PartitionSpec()
    return jax.shard_map(run, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False)


def _split(tensors: list[Any], num_workers: int) -> list[list[Any]]:
    return [[tensor[worker] for tensor in tensors] for worker in range(num_workers)]


def reduce_all(reducer: Any, *tensors: np.ndarray) -> tuple[list[np.ndarray], Any]:
    """All steps in one program: tensors [steps, N, ...] to their means [steps, ...] and the state before the first."""
    num_workers = tensors[0].shape[1]
    transformation, mesh = _placed(reducer, num_workers)

    def run(tensors: list[jax.Array]) -> Any:
        start = transformation.init([tensor[0, 0] for tensor in tensors])

        def step(state: Any, own: list[jax.Array]) -> Any:
            return transformation.update(_split(own, num_workers), state)[::-1]

        return jax.lax.scan(step, start, tensors)[1], start

    return jax.device_get(jax.jit(_on_device(run, mesh))([jnp.asarray(tensor) for tensor in tensors]))


def reduce_once(reducer: Any, *tensors: Any) -> list[np.ndarray]:
    """Means of one step of tensors [N, ...]."""
    return [mean[0] for mean in reduce_all(reducer, *(jnp.asarray(tensor)[None] for tensor in tensors))[0]]


def as_lists(*tensors: np.ndarray) -> list[list[list[np.ndarray]]]:
    """Tensors [steps, N, ...] as the models take them."""
    steps, num_workers = tensors[0].shape[:2]
    return [[[tensor[t, w] for tensor in tensors] for w in range(num_workers)] for t in range(steps)]


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def assert_means(found: list[np.ndarray], expected: list[list[np.ndarray]], **tolerances: float) -> None:
    for place, tensor in enumerate(found):
        np.testing.assert_allclose(tensor, np.stack([means[place] for means in expected]), **tolerances)


# FedJAX, fedjax/aggregators/compression_test.py


def test_ternary_leaves_what_has_two_values_as_it_is():
    """FedJAX, test_terngrad_quantize_identity: [0, 2, 2] within 2.5 sigma, exactly."""
    value = np.float32([0, 2, 2])
    (mean,) = reduce_once(jaxtern.terngrad(), [value, value])
    np.testing.assert_array_equal(mean, value)


def test_ternary_clips_at_two_and_a_half_sigmas():
    """FedJAX, test_terngrad_quantize_clipping: 100 and -100 among 98 zeros become +-35.355339."""
    value = np.float32([100, -100] + 98 * [0])
    (mean,) = reduce_once(jaxtern.terngrad(), [value, value])
    np.testing.assert_allclose(mean[:2], [35.355339, -35.355339], rtol=1e-6)
    assert not mean[2:].any()


def test_quantized_leaves_values_on_its_levels_and_equal_values_as_they_are():
    """FedJAX, test_uniform_stochastic_quantize_identity and _all_equal: [0, 2, 2, 4] and [4, 4, 4, 4], exactly."""
    values = np.float32([[0, 2, 2, 4], [4, 4, 4, 4]])
    for value, mean in zip(values, reduce_once(plain(2), *values[:, None]), strict=True):
        np.testing.assert_array_equal(mean, value)


@pytest.mark.parametrize(
    ("levels", "value"),
    [(1, [0, 1, 2]), (124, [0, 1, 100]), (124, [[0, 1, 100], [0.3, 2.3, 45]])],
    ids=["two values", "125 values", "two dimensions"],
)
def test_quantized_is_unbiased_over_500_draws(levels: int, value: list):
    """FedJAX, test_binary_ and test_uniform_stochastic_quantize_unbiasedness: 500 draws, to two decimals.

    Theirs holds by the choice of a key: one draw of 1 has a deviation of 1, the mean of 500 one of .045. Here 512
    copies of the tensor are drawn each time, which leaves .002.
    """
    drawn = np.broadcast_to(np.float32(value), (250, 2, 512, *np.shape(value)))
    ((means,), _) = reduce_all(plain(levels), drawn)
    assert (means != np.float32(value)).any()
    np.testing.assert_allclose(means.mean(axis=(0, 1), dtype=np.float64), value, rtol=0, atol=1.5e-2)


def test_ternary_sends_log2_of_3_bits_an_element_and_a_scale():
    """FedJAX, test_terngrad_quantizer counts log2(3) bits an element and 64 a tensor; five trits a byte are 1.6."""
    elements = 10_240  # whole tiles of words
    report = jaxtern.wire_report({"w": jnp.zeros(elements)}, jaxtern.terngrad(exchange="gather"), num_workers=2)
    assert np.log2(3) * elements <= 8 * report.bytes <= 1.6 * elements + 64


# torchft, torchft/quantization_test.py and collectives_test.py


@pytest.mark.few("float32")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_8_bits_keep_4_percent_of_uniform_tensors(dtype: str):
    """torchft: the mean of |found - wanted| / (wanted + 1e-7) is at most .05 (quantization), .04 (all-reduce).

    Two workers; uniform tensors times 1, 100 and 1000, the same on both workers and of each its own. All within .04.
    """
    random = np.random.default_rng(0)
    kinds = [(size, 1) for size in (128, 512, 4096)] + [(size, 2) for size in (256, 1024, 2048)]
    drawn = [random.random((own, size), np.float32) * times for size, own in kinds for times in (1, 100, 1000)]
    tensors = [jnp.asarray(np.broadcast_to(tensor, (2, tensor.shape[1])), dtype) for tensor in drawn]
    for tensor, mean in zip(tensors, reduce_once(plain(127), *tensors), strict=True):
        assert mean.dtype == tensor.dtype
        wanted = np.asarray(tensor, np.float32).mean(axis=0)
        error = np.abs(np.asarray(mean, np.float32) - wanted) / (wanted + 1e-7)
        assert error.mean() <= 0.04


# hivemind, tests/test_compression.py


@pytest.mark.parametrize(("reducer", "limit"), [("float16", 5e-8), ("8 bits", 8e-4)])
def test_mean_squared_error_of_normal_tensors(reducer: str, limit: float):
    """hivemind, test_tensor_compression: 128 x 128 x 64 normal elements, 5e-8 in float16, 8e-4 in 8 bits."""
    tensor = normal(0, 128, 128, 64)
    (mean,) = reduce_once(REDUCERS[reducer](), np.stack([tensor, tensor]))
    assert np.square(mean - tensor).mean() < limit


@pytest.mark.few("ternary", "top_k", "sign, two-way")
@pytest.mark.parametrize("reducer", REDUCERS)
def test_zeros_stay_finite(reducer: str):
    """hivemind, test_tensor_compression: 5 x 5 zeros through every compression. Ours stay zeros."""
    ((means,), _) = reduce_all(REDUCERS[reducer](), np.zeros((3, 2, 5, 5), np.float32))
    np.testing.assert_array_equal(means, 0)


@pytest.mark.parametrize(("reducer", "least", "most"), [("float16", 0, 1e-5), ("8 bits", 1e-5, 1e-2)])
def test_mean_squared_error_of_means_of_two(reducer: str, least: float, most: float):
    """hivemind, test_allreduce_compression: roots of two ramps, and normal tensors; lossy, but within bounds."""
    ramps = np.sqrt(np.stack([np.linspace(0, 500, 1000), np.linspace(300, 800, 1000)])).astype(np.float32)
    tensors = ramps, normal(1, 2, 1000)
    for tensor, mean in zip(tensors, reduce_once(REDUCERS[reducer](), *tensors), strict=True):
        assert least < np.square(mean - tensor.mean(axis=0)).mean() <= most


# CGX, test/test_cgx.py


@pytest.mark.few("2 bits")
@pytest.mark.parametrize("levels", [1, 7, 127], ids=["2 bits", "4 bits", "8 bits"])
def test_tensors_of_equal_elements_are_exact(levels: int):
    """CGX, test_compressed_exact: at 2, 4 and 8 bits, of 1 to 1,000,000 elements in float16 and float32.

    Theirs also where each worker has another number, as every worker has scales of its own; ours share one.
    """
    tensors = [jnp.full((4, size), 3, dtype) for size in (1, 2, 128, 100_003) for dtype in ("float32", "float16")]
    for mean in reduce_once(plain(levels), *tensors):
        np.testing.assert_array_equal(np.asarray(mean, np.float32), 3)


@pytest.mark.parametrize(("levels", "block_size"), [(1, 64), (7, 512), (127, 2048)])
def test_error_is_below_one_level_of_the_block(levels: int, block_size: int):
    """CGX, test_compressed_non_exact: ramps times the worker's number; the error of the sum is below 2 b W (W + 1) / L.

    There b, the block's elements, is its range, since a block has an offset. Ours have none: one level is max|g| / L
    of the block, over all workers.
    """
    ramps = [np.arange(size, dtype=np.float32) - size / 2 for size in (128, 1025, 16_384)]
    workers = np.float32([1, 2, 3, 4])
    tensors = [np.multiply.outer(workers, ramp) for ramp in ramps]
    means = reduce_once(plain(levels, block_size=block_size), *tensors)
    for ramp, mean in zip(ramps, means, strict=True):
        blocks = np.pad(np.abs(ramp), (0, -ramp.size % block_size)).reshape(-1, block_size)
        level = np.repeat(workers.max() * blocks.max(axis=1) / levels, block_size)[: ramp.size]
        assert (np.abs(mean - workers.mean() * ramp) <= level * (1 + 1e-5)).all()


# PyTorch, test/distributed/algorithms/ddp_comm_hooks/test_ddp_hooks.py and test/distributed/test_c10d_nccl.py


def _hook_gradients() -> np.ndarray:
    """Of mean(p x^(1 + rank)) by p, for two workers."""
    x = normal(2020, 40, 20)
    return np.stack([x, x**2]) / np.float32(x.size)


@pytest.mark.parametrize(("reducer", "atol"), [("float32", 0.0), ("float16", 1e-4), ("bfloat16", 1e-4)])
def test_float_means_are_close_to_the_plain_mean(reducer: str, atol: float):
    """PyTorch, test_ddp_comm_hook_allreduce_hook and _fp16compress_hook: rtol 1e-5, in 16 bits atol 1e-4."""
    gradients = _hook_gradients()
    (mean,) = reduce_once(REDUCERS[reducer](), gradients)
    np.testing.assert_allclose(mean, gradients.mean(axis=0), rtol=1e-5, atol=atol)


@pytest.mark.parametrize("num_workers", [2, 4])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_means_in_16_bits_are_their_formula(models: Any, dtype: str, num_workers: int):
    """PyTorch's fp16_compress_hook and bf16_compress_hook also add in 16 bits; ours only travel so. To the bit."""
    gradients = normal(15, 1, num_workers, 300)
    ((found,), _) = reduce_all(REDUCERS[dtype](), gradients)
    assert_means([found], models.float16_mean(as_lists(gradients), dtype).means, rtol=0, atol=0)


@pytest.mark.few("2")
@pytest.mark.parametrize("rank", [1, 2])
def test_low_rank_is_exact_where_the_mean_has_so_low_a_rank(rank: int):
    """PyTorch, test_powerSGD_ddp_comm_hook_nccl: gradients of .25 everywhere come out as without a hook.

    Theirs has 2 x 2 elements, and the hook starts at step 1,000, so nothing is compressed there. With rank 2 the
    second column of P is nothing but rounding, which one Gram-Schmidt makes a direction of its own: the mean is then
    wrong by as much as itself.
    """
    matrices = np.full((40, 20), 0.25, np.float32), normal(4, 40, 1) * normal(5, 1, 20)
    wanted = [matrix * np.float32(scale) for matrix in matrices for scale in (1, 1e-6)]
    steps = [np.broadcast_to(matrix, (5, 2, 40, 20)) for matrix in wanted]
    for means, matrix in zip(reduce_all(REDUCERS["low_rank"](rank), *steps)[0], wanted, strict=True):
        np.testing.assert_allclose(means, np.stack([matrix] * 5), rtol=0, atol=1e-5 * np.abs(matrix).max())


# DeepSpeed, tests/onebit/test_nccl_backend.py and test_compressed_backend.py; BytePS, tests/test_onebit.py


@pytest.mark.parametrize(("reducer", "two_way"), [("sign", False), ("sign, two-way", True)])
def test_signs_are_their_formula_with_both_errors(models: Any, reducer: str, two_way: bool):
    """DeepSpeed: uniform elements of mean .01 times the rank; means as by the formula, to 1e-6. Here over five steps.

    Their scale is the root mean square, ours the mean of magnitudes, as dist-EF-SGD's and BytePS'.
    """
    num_workers, size = 2, 1024
    offsets = np.float32(0.01) * np.arange(num_workers, dtype=np.float32)[:, None]
    gradients = np.random.default_rng(6).random((5, num_workers, size), np.float32) - np.float32(0.5) + offsets
    ((found,), _) = reduce_all(REDUCERS[reducer](), gradients)
    order = np.arange(size).reshape(32, num_workers, -1).transpose(1, 0, 2).reshape(-1)  # a worker serves whole words
    expected = models.sign_feedback(as_lists(gradients[..., order]), two_way=two_way, server_block_size=size // 2)
    assert_means([found[..., order]], expected.means, rtol=0, atol=1e-6)


# powersgd, tests/powersgd_test.py; Paddle, test_dgc_op.py; BytePS, tests/test_topk.py


def test_low_rank_is_its_formula(models: Any):
    """powersgd, test_error_feedback_mechanism: rank 2 and random gradients; what is decoded and what is kept add up.

    So they do in the model, whose means these are over five steps, from the same first Q.
    """
    tensors = normal(7, 5, 2, 30, 20), normal(8, 5, 2, 16, 3, 6), normal(9, 5, 2, 11)
    found, start = reduce_all(REDUCERS["low_rank"](), *tensors)
    leaves = jax.tree.leaves(start)
    queries = [next(leaf for leaf in leaves if leaf.size == 2 * n).reshape(n, 2) for n in (20, 18)]
    expected = models.power_sgd(as_lists(*tensors), 2, [*queries, None], models.orthogonalise_twice)
    assert_means(found, expected.means, rtol=0, atol=1e-4)


def test_top_k_is_its_formula_and_loses_nothing(models: Any):
    """BytePS, test_topk: k of 1, 3, 5 largest, as by NumPy. With zeros behind, all that was kept back arrives."""
    tensors = normal(10, 14, 2, 60), normal(11, 14, 2, 5, 6), np.round(normal(12, 14, 2, 40))  # the last with ties
    for tensor in tensors:
        tensor[4:] = 0
    found, _ = reduce_all(REDUCERS["top_k"](), *tensors)
    assert_means(found, models.top_k_feedback(as_lists(*tensors), 0.1).means, rtol=0, atol=0)
    for mean, tensor in zip(found, tensors, strict=True):
        np.testing.assert_allclose(mean.sum(axis=0), tensor.mean(axis=1).sum(axis=0), atol=1e-5)


def test_a_threshold_of_samples_that_are_zero_sends_what_is_not():
    """A gradient of 500 elements at its end, below the density, in steps that would send 1,000."""
    gradient = np.zeros((100_000,), np.float32)
    gradient[-500:] = 1 + np.arange(500)
    (means,), _ = reduce_all(jaxtern.top_k(0.01, sampled=True), np.broadcast_to(gradient, (2, 2, 100_000)))
    np.testing.assert_array_equal(means, [gradient] * 2)


def test_momentum_correction_is_its_formula(models: Any):
    """Paddle, test_dgc_op: u = m u + g, v = v + u, k = a share of the size, u and v zero where v was sent.

    Its tolerance is 1e-7 for those zeros. m = .5 is exact, so that all is, with or without fused multiply-add.
    """
    tensors = normal(13, 6, 2, 60), normal(14, 6, 2, 5, 6)
    found, _ = reduce_all(REDUCERS["dgc"](), *tensors)
    assert_means(found, models.dgc(as_lists(*tensors), 0.1, 0.5).means, rtol=0, atol=1e-7)


# optax, optax/_src/alias_test.py and sharding_test.py


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("reducer", REDUCERS)
def test_update_keeps_shapes_dtypes_and_the_types_of_its_state(reducer: str, dtype: str):
    """optax, test_preserve_dtype and test_state_shape_dtype_shard_stability; nothing is compiled for it."""
    transformation, mesh = _placed(REDUCERS[reducer](), 2)
    tree = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape in [(6, 8), (2, 3, 4), (5,), (), (0, 3)]]

    def run(own: list[jax.Array]) -> Any:
        state = transformation.init(own)
        return *transformation.update([own, own], state), state

    mean, state, start = jax.eval_shape(_on_device(run, mesh), tree)
    assert [(x.shape, x.dtype) for x in mean] == [(x.shape, x.dtype) for x in tree]
    assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == jax.tree.map(lambda x: (x.shape, x.dtype), start)


@pytest.mark.parametrize(
    ("shape", "columns"),
    [((5, 5, 192, 256), 256), ((256, 192, 5, 5), 4800), ((512, 8, 64), 512), ((8, 64, 512), 512), ((24, 17), 17)],
)
def test_low_rank_cuts_a_tensor_where_both_sides_together_are_smallest(shape: tuple[int, ...], columns: int):
    layout = jaxtern.Layout(("kernel",), (shape,), (np.dtype(np.float32),), ((),))
    (factor,) = jax.eval_shape(lambda: jaxtern.low_rank(2).init(layout, 1)).shared
    assert factor.shape == (columns, 2)
    rows = math.prod(shape) // columns
    assert jaxtern.low_rank(2).traffic(layout, 2).bytes == 4 * 2 * (rows + columns)
