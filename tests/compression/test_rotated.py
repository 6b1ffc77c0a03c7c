"""What rotation promises: no bias whatever the tensors are like, and the noise of a normal variable."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.sharding import AxisType, Mesh, PartitionSpec

import jaxtern
from jaxtern.compression.radix import owed
from jaxtern.compression.radix.gaussian import MAGNITUDE, ROUNDINGS, Code, best_code, entropy, stretches
from jaxtern.compression.radix.quantizer import Quantizer
from jaxtern.kernels import derive_key

pytestmark = pytest.mark.optimized

FAILURE = 1e-9  # probability with which a test fails though what it claims holds
NUM_WORKERS, NUM_STEPS = 4, 200
RANDOM = np.random.default_rng(0)
TENSORS = {
    "heavy-tailed": RANDOM.standard_t(2, (120, 100)),
    "sparse": RANDOM.standard_normal(9000) * (RANDOM.random(9000) < 0.002),
    "one of 5000": np.eye(1, 5000, 77)[0],
    "a row of 100": np.repeat(np.eye(1, 100, 3)[0], 60).reshape(100, 60) * RANDOM.standard_normal((100, 60)),
    "constant": np.full(3000, 0.7),
    "of three sizes": RANDOM.standard_normal((3, 4096)) * [[1], [1e-3], [30]],
    "small": RANDOM.standard_normal(33),
    "one": np.array(-2.5),
}


@functools.cache
def run_of(rounding: str, levels: int, exchange: str = "gather") -> tuple[Any, Any]:
    """Gradients [N, ...] of workers whose sizes differ fourfold, and means [NUM_STEPS, ...] of the same gradients."""
    reducer = jaxtern.quantized(levels, rounding=rounding, exchange=exchange)
    return _gradients(), means_of(_gradients(), reducer)


def _gradients() -> dict[str, np.ndarray]:
    sizes = np.array([1.0, 0.5, 2.0, 1.0], np.float32)
    return {name: sizes.reshape(-1, *[1] * x.ndim) * x.astype(np.float32)[None] for name, x in TENSORS.items()}


def means_of(gradients: dict[str, np.ndarray], reducer: jaxtern.Reducer) -> Any:
    """The means [NUM_STEPS, ...] of gradients [N, ...]."""
    transformation = jaxtern.compressed_mean("workers", reducer, virtual_workers=NUM_WORKERS)
    trees = [jax.tree.map(lambda x, w=w: jnp.asarray(x[w]), gradients) for w in range(NUM_WORKERS)]

    def step(state: Any, _: None) -> tuple[Any, Any]:
        mean, state = transformation.update(trees, state)
        return state, mean

    def steps() -> Any:
        return jax.lax.scan(step, transformation.init(trees[0]), None, length=NUM_STEPS)[1]

    mesh = Mesh(jax.devices("cpu")[:1], "workers", axis_types=(AxisType.Auto,))
    mapped = jax.shard_map(steps, mesh=mesh, in_specs=(), out_specs=PartitionSpec(), check_vma=False)
    return jax.device_get(jax.jit(mapped)())


@pytest.mark.parametrize(
    ("rounding", "exchange", "name"),
    [
        *(("dither", "gather", name) for name in TENSORS),
        *(("dither", "two_way", name) for name in TENSORS),
        *(("stochastic", "gather", name) for name in TENSORS),
        *(("nearest", "gather", name) for name in ("a row of 100", "constant", "of three sizes")),
    ],
)
def test_the_mean_of_any_tensor_is_unbiased(rounding: str, exchange: str, name: str):
    """Along the gradient to 2 % beyond Student's t of so many draws; and each element of it, to 3 % of the largest.

    Of tensors of which few elements hold the most, nearest is bent.
    """
    gradients, means = run_of(rounding, 1, exchange)
    expected = gradients[name].mean(axis=0, dtype=np.float64).ravel()
    errors = means[name].reshape(NUM_STEPS, -1) - expected
    limit = scipy.stats.t.isf(FAILURE / (2 * errors.shape[1]), NUM_STEPS - 1) / math.sqrt(NUM_STEPS)
    along = errors @ expected / (expected @ expected)
    assert abs(along.mean()) <= limit * along.std(ddof=1) + 0.02
    assert (np.abs(errors.mean(axis=0)) <= limit * errors.std(axis=0, ddof=1) + 0.03 * np.abs(expected).max()).all()


@pytest.mark.parametrize("name", ["heavy-tailed", "sparse", "of three sizes"])
@pytest.mark.parametrize("levels", [1, 3])
def test_the_noise_is_that_of_a_normal_variable(name: str, levels: int):
    """A bound for the largest worker's scale, which all share: the clipped energy of each, and a twelfth of a level."""
    gradients, means = run_of("dither", levels)
    errors = means[name].reshape(NUM_STEPS, -1) - gradients[name].mean(axis=0, dtype=np.float64).ravel()
    energies = np.sum(gradients[name].reshape(NUM_WORKERS, -1).astype(np.float64) ** 2, axis=1)
    bound = NUM_WORKERS * energies.max() * best_code(levels, "dither").noise / NUM_WORKERS**2
    assert np.mean(np.sum(errors**2, axis=1)) < 1.1 * bound


@pytest.mark.slow
@pytest.mark.parametrize(("rounding", "most"), [("dither", 0.06), ("stochastic", 0.11)])
def test_few_equal_elements_are_bent_by_little(rounding: str, most: float):
    """Sums of few equal elements are not normal, but of few values; the docs tell these shares."""
    gradients = {str(k): np.float32(np.tile(np.arange(4096) < k, (NUM_WORKERS, 1))) for k in range(1, 17)}
    means = means_of(gradients, jaxtern.ternary(rounding=rounding))
    shares = [means[str(k)][:, :k].mean() - 1 for k in range(1, 17)]
    assert 0.02 < np.abs(shares).max() < most


@pytest.mark.parametrize("agreement", [0.0, 0.5])
@pytest.mark.parametrize("levels", [1, 3])
def test_a_second_rounding_adds_noise_in_proportion_to_the_mean(levels: int, agreement: float):
    """Not to the workers' gradients, which are larger the less they agree. Its scale clips a little less than best."""
    random = np.random.default_rng(2)
    own, shared = random.standard_normal((NUM_WORKERS, 30_000)), random.standard_normal(30_000)
    gradients = {"a": (math.sqrt(1 - agreement) * own + math.sqrt(agreement) * shared).astype(np.float32)}
    mean = gradients["a"].mean(axis=0, dtype=np.float64)
    noise = {
        exchange: np.mean((means_of(gradients, jaxtern.quantized(levels, exchange=exchange))["a"] - mean) ** 2)
        for exchange in ("gather", "two_way")
    }
    added = (noise["two_way"] - noise["gather"]) / (np.mean(mean**2) + noise["gather"])
    code = best_code(levels, "dither")
    assert 0.9 * code.noise < added < 1.25 * code.noise


def test_a_second_rounding_does_not_clip_a_small_tensor_by_what_lies_beside_it():
    """Workers agree on the small one, whose mean is then as large as the scale, and on nothing of the other."""
    random = np.random.default_rng(3)
    gradients = {"large": random.standard_normal((NUM_WORKERS, 5000)), "small": np.ones((NUM_WORKERS, 40))}
    gradients = {name: x.astype(np.float32) for name, x in gradients.items()}
    along = means_of(gradients, jaxtern.ternary(exchange="two_way"))["small"].mean(axis=1)
    limit = scipy.stats.t.isf(FAILURE / 2, NUM_STEPS - 1) / math.sqrt(NUM_STEPS)
    assert abs(along.mean() - 1) <= limit * along.std(ddof=1) + 0.01


@pytest.mark.parametrize("name", TENSORS)
def test_what_two_roundings_leave_out_does_not_pile_up(name: str):
    """Of the same gradients in each step: what is owed stays about as large as a mean, and so it is sent."""
    mean = _gradients()[name].mean(axis=0, dtype=np.float64)
    sums = np.cumsum(_means_with_feedback()[name], axis=0, dtype=np.float64)
    for step in (50, 100, NUM_STEPS):
        assert np.linalg.norm(sums[step - 1] - step * mean) <= 1.7 * np.linalg.norm(mean)


@functools.cache
def _means_with_feedback() -> Any:
    return means_of(_gradients(), jaxtern.ternary(exchange="two_way", error_feedback=True))


def test_errors_of_a_tensor_whose_gradient_became_small_do_not_drown_others():
    """Half of a shard owes 10^6 of its units, and half nothing; both are kept, and the second half is sent."""
    quantizer, half = Quantizer(), 2560
    mean = jnp.asarray(np.random.default_rng(1).standard_normal(2 * half), jnp.float32)
    units, error = (jnp.repeat(jnp.array(pair), half) for pair in ([1e-6, 1.0], [1.0, 0.0]))
    _, left = owed.serve(quantizer, mean, error, units, derive_key(0, 0, 0))
    assert np.square(left[half:]).mean() < 2
    np.testing.assert_allclose(left[:half], 1.0, rtol=1e-4)


def test_zeros_stay_zeros_and_what_is_not_finite_takes_its_block_alone():
    transformation = jaxtern.compressed_mean("workers", jaxtern.ternary(), virtual_workers=2)
    gradients = {"zero": jnp.zeros(5000), "bad": jnp.ones(3 * 4096).at[5000].set(jnp.nan)}
    mesh = Mesh(jax.devices("cpu")[:1], "workers", axis_types=(AxisType.Auto,))
    update = jax.shard_map(
        lambda tree: transformation.update([tree, tree], transformation.init(tree))[0],
        mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False,
    )  # fmt: skip
    mean = jax.device_get(jax.jit(update)(gradients))
    np.testing.assert_array_equal(mean["zero"], 0)
    np.testing.assert_array_equal(np.isfinite(mean["bad"]), np.repeat([True, False, True], 4096))


@pytest.mark.few("dither*", "stochastic-1")
@pytest.mark.parametrize("levels", [1, 2, 7])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_a_code_foretells_normal_variables(levels: int, rounding: str):
    """Six deviations of the means over 2^21 draws, which fail in 2e-9."""
    code, random = best_code(levels, rounding), np.random.default_rng(1)
    x = random.standard_normal(2**21)
    u = np.full(x.size, 0.5) if rounding == "nearest" else random.random(x.size)
    stretch = float(stretches(levels, rounding, np.array(MAGNITUDE**2), np.array(code.scale * MAGNITUDE)))
    digits = np.floor(np.clip(stretch * x / code.scale, -1, 1) * levels + u)
    y = (digits - (u - 0.5 if rounding == "dither" else 0)) * code.scale / levels
    for found, expected in ((x * y - x * x, 0.0), ((y - x) ** 2, code.noise)):
        assert abs(found.mean() - expected) < 6 * found.std() / x.size**0.5
    bits = []
    for part in np.array_split(np.argsort(u), 64 if rounding == "dither" else 1):
        shares = np.bincount((digits[part] + levels).astype(int), minlength=2 * levels + 1) / part.size
        bits += [-np.sum(shares * np.log2(np.maximum(shares, 1e-30)))]
    assert entropy(code) == pytest.approx(np.mean(bits), abs=0.01)
    assert entropy(code) < math.log2(2 * levels + 1)


def test_more_levels_and_a_dither_have_less_noise():
    for rounding in ROUNDINGS:
        noises = [best_code(levels, rounding).noise for levels in (1, 2, 3, 7, 15)]
        assert noises == sorted(noises, reverse=True)
    for levels in (1, 2, 3, 7):
        assert best_code(levels, "nearest").noise < 1.05 * best_code(levels, "dither").noise
        assert best_code(levels, "dither").noise < best_code(levels, "stochastic").noise
    assert best_code(1, "dither").noise < 0.3  # TernGrad's: 1.01
    assert Code(1, "stochastic", 2.5).noise == pytest.approx(1.01, abs=0.01)


def test_entropy_of_many_levels_goes_on_as_that_of_fewer():
    """From 257 levels of two workers on, their sum is taken as a normal variable."""
    few, many = (entropy(Code(levels, "dither", 3.0), 2) for levels in (256, 257))
    assert many == pytest.approx(few, abs=0.02)
    assert 13 < entropy(Code(8000, "dither", 3.0), 16) < 17


def test_the_sum_of_two_workers_digits_has_less_entropy_than_both():
    code = best_code(1, "dither")
    assert entropy(code) < entropy(code, 2) < 2 * entropy(code)
    steps = [entropy(code, num_workers + 1) - entropy(code, num_workers) for num_workers in (15, 16, 17)]
    assert steps == pytest.approx([math.log2(17 / 16) / 2] * 3, rel=0.1)  # each more adds its variance
