"""Maximum, mean and variance: right, and the same bits however the call is batched."""

import functools
from collections.abc import Callable

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings

from jaxtern.kernels import Moments, Segments, dispatch, moments

pytestmark = pytest.mark.optimized

ROUNDING = 2.0**-11  # how far 12-bit deviations may move a variance, of itself
LOOP = 2**14  # elements of a chunk


IMPLEMENTATIONS = ["reference"] if dispatch.why_not_native() else ["reference", "native"]


@functools.cache
def _compiled(segments: Segments, implementation: str) -> Callable:
    return jax.jit(lambda g: moments(g, segments, implementation=implementation))


def _moments(gradient: np.ndarray, segments: Segments, implementation: str = "reference") -> Moments:
    run = _compiled(segments, implementation)
    return Moments(*(np.asarray(x) for x in run(gradient)))


def _exact(gradient: np.ndarray, segments: Segments) -> Moments:
    """In float64, block by block."""
    blocks, start = [], 0
    for size in segments.sizes:
        tensor = gradient[start : start + size].astype(np.float64)
        width = segments.block_size or max(size, 1)
        blocks += [tensor[i : i + width] for i in range(0, size, width)]
        start += size
    return Moments(*(np.array([f(b) for b in blocks]) for f in (lambda b: np.abs(b).max(), np.mean, np.var)))


def _assert_close(gradient: np.ndarray, segments: Segments) -> None:
    exact = _exact(gradient, segments)
    for implementation in IMPLEMENTATIONS:
        found = _moments(gradient, segments, implementation)
        np.testing.assert_array_equal(found.max_abs, exact.max_abs.astype(np.float32))
        np.testing.assert_allclose(found.variance, exact.variance, rtol=ROUNDING, atol=1e-30)
        near = ROUNDING * np.sqrt(exact.variance) + 1e-6 * np.abs(exact.mean)
        assert np.all(np.abs(found.mean - exact.mean) <= near), implementation


@given(
    st.lists(st.one_of(st.integers(0, 40), st.integers(41, 3000)), min_size=1, max_size=2),
    st.one_of(st.none(), st.integers(1, 700)),
    st.integers(0, 2**32 - 1),
)
@example([0], None, 0)
@example([1], None, 0)
@example([0, 5, 0], 5, 0)
@example([7, 1], 1, 0)
@settings(max_examples=8)
def test_moments_equal_numpy_for_any_layout(sizes: list[int], block_size: int | None, seed: int):
    gradient = np.random.default_rng(seed).uniform(-3, 1, sum(sizes)).astype(np.float32)
    segments = Segments(tuple(sizes), block_size)
    assert _moments(gradient, segments).variance.shape == (segments.num_scales,)
    _assert_close(gradient, segments)


@pytest.mark.few("16385", "262145")
@pytest.mark.parametrize("n", [LOOP - 1, LOOP, LOOP + 1, 16 * LOOP, 16 * LOOP + 1, 2**20 + 3])
def test_moments_equal_numpy_around_the_lengths_of_chunks(n: int):
    _assert_close(np.random.default_rng(n).standard_normal(n, np.float32), Segments((n,)))


def test_moments_equal_numpy_for_wide_blocks_and_a_short_last_one():
    n = 2 * LOOP + 77
    _assert_close(np.random.default_rng(0).standard_normal(n, np.float32), Segments((n,), LOOP + 5))


@pytest.mark.parametrize("mean", [1e4, -1e4])
@pytest.mark.parametrize("n", [100, 50_000])
def test_variance_is_sound_where_the_mean_is_large(mean: float, n: int):
    gradient = (np.random.default_rng(n).standard_normal(n) + mean).astype(np.float32)
    _assert_close(gradient, Segments((n,)))


@pytest.mark.parametrize("n", [1000, 2**20])
@pytest.mark.parametrize("first", [30.0, 1e4])
def test_variance_is_sound_where_the_first_element_lies_far_from_the_rest(first: float, n: int):
    gradient = np.random.default_rng(n).standard_normal(n, np.float32)
    gradient[0] = first
    _assert_close(gradient, Segments((n,)))


@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, 1e-20, 3e38, 1 / 3])
@pytest.mark.parametrize(("n", "block_size"), [(1, None), (3, 2), (1000, None), (1000, 64), (LOOP + 3, None)])
def test_a_constant_tensor_has_variance_exactly_zero(value: float, n: int, block_size: int | None):
    found = _moments(np.full(n, value, np.float32), Segments((n,), block_size))
    np.testing.assert_array_equal(found.variance, 0.0)
    np.testing.assert_array_equal(found.max_abs, np.float32(abs(value)))
    np.testing.assert_allclose(found.mean, np.float32(value), rtol=2.0**-21)


def test_variance_is_never_negative():
    one_ulp_apart = [np.float32(1), np.nextafter(np.float32(1), np.float32(2))]
    gradient = np.random.default_rng(0).choice(one_ulp_apart, 7 * 1000)
    assert np.all(_moments(gradient, Segments((gradient.size,), 7)).variance >= 0)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_is_summed_in_float32(dtype: jnp.dtype):
    gradient = jnp.asarray(np.random.default_rng(1).standard_normal(5000), dtype)
    found = jax.jit(lambda g: moments(g, Segments((5000,))))(gradient)
    assert {x.dtype for x in found} == {jnp.dtype(jnp.float32)}
    np.testing.assert_array_equal(
        found.variance, _moments(np.asarray(gradient, np.float32), Segments((5000,))).variance
    )
    _assert_close(np.asarray(gradient, np.float32), Segments((5000,)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 5, 9])
def test_what_is_not_finite_shows_in_its_own_maximum_alone(bad: float, place: int):
    gradient = np.arange(30, dtype=np.float32)
    clean = _moments(gradient, Segments((10, 10, 10)))
    gradient[10 + place] = bad
    found = _moments(gradient, Segments((10, 10, 10)))
    np.testing.assert_array_equal(np.isfinite(found.max_abs), [True, False, True])
    for got, want in zip(found, clean, strict=True):
        np.testing.assert_array_equal(got[[0, 2]], want[[0, 2]])


@pytest.mark.few("reference-1000*", "native-262149*")
@pytest.mark.parametrize(
    ("n", "block_size"),
    [
        (7, None),
        (1000, 96),
        (16 * LOOP + 5, None),
        (1, None),
        (LOOP - 1, None),
        (LOOP + 1, None),
        (3 * LOOP, LOOP + 1),
    ],
)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_moments_are_the_same_bits_alone_unrolled_and_batched(n: int, block_size: int | None, implementation: str):
    gradients = np.random.default_rng(n).standard_normal((4, n), np.float32) * np.float32(1e-3)
    segments = Segments((n,), block_size)

    def one(gradient: jax.Array) -> Moments:
        return moments(gradient, segments, implementation=implementation)

    alone = list(map(jax.jit(one), gradients))
    unrolled = jax.jit(lambda gs: [one(g) for g in gs])(list(gradients))
    for batch in (1, 4):
        batched = jax.jit(jax.vmap(one))(gradients[:batch])
        for worker in range(batch):
            for part, rows in zip(alone[worker], batched, strict=True):
                np.testing.assert_array_equal(rows[worker], part)
    for worker in range(4):
        for part, again in zip(alone[worker], unrolled[worker], strict=True):
            np.testing.assert_array_equal(again, part)


@pytest.mark.few("sizes2")
@pytest.mark.parametrize("sizes", [(40_000, 5, 0, 16_384, 300, 33_000), (900, 124, 1024), (3904, 192, 4096)])
def test_moments_of_a_bucket_are_those_of_its_tensors_alone(sizes: tuple[int, ...]):
    gradient = np.random.default_rng(0).standard_normal(sum(sizes), np.float32)
    gradient *= np.repeat(np.arange(1, len(sizes) + 1, dtype=np.float32), sizes)  # the last has the largest maximum
    together = _moments(gradient, Segments(sizes))
    starts = np.cumsum(sizes) - sizes
    alone = [_moments(gradient[a : a + size], Segments((size,))) for a, size in zip(starts, sizes, strict=True) if size]
    for found, expected in zip(together, zip(*alone, strict=True), strict=True):
        np.testing.assert_array_equal(found, np.concatenate(expected))


def test_moments_are_the_same_bits_where_the_gradient_is_a_product_computed_in_the_same_program():
    segments, factor = Segments((1000,)), np.float32(1 / 3)
    alone = jax.jit(lambda g: moments(g, segments))
    fused = jax.jit(lambda g, c: moments(g * c, segments))
    for seed in range(40):
        gradient = np.random.default_rng(seed).standard_normal(1000, np.float32)
        found, expected = fused(gradient, factor), alone(gradient * factor)
        assert found.max_abs == expected.max_abs, f"seed {seed}"
        assert found.variance == expected.variance, f"seed {seed}"


def test_moments_refuse_what_is_no_gradient_of_the_layout():
    with pytest.raises(ValueError, match=r"gradient\.dtype=int32: must be a floating-point type"):
        moments(jnp.zeros((3,), jnp.int32), Segments((3,)))
    with pytest.raises(ValueError, match=r"gradient\.shape=\(4,\): the segments hold \(3,\) elements"):
        moments(jnp.zeros((4,)), Segments((3,)))
    with pytest.raises(ValueError, match=r"moments: implementation='fast': must be one of auto, reference"):
        moments(jnp.zeros((3,)), Segments((3,)), implementation="fast")


@pytest.mark.few("40000")
@pytest.mark.parametrize("size", [5, 40_000, 2**22 + 30_000])
def test_moments_of_a_tensor_do_not_depend_on_what_is_beside_it(size: int):
    """Buckets are cut one way where tensors are exchanged bucket by bucket, and not at all where all are one chain."""
    random = np.random.default_rng(size)
    tensor, other = (jnp.asarray(random.standard_normal(each), jnp.float32) for each in (size, 2**22 + 2**20))
    run = jax.jit(moments, static_argnums=1)
    alone = run(tensor, Segments((size,)))
    for parts in ((tensor, other), (other[:100_000], tensor)):
        beside = run(jnp.concatenate(parts), Segments(tuple(part.size for part in parts)))
        place = next(i for i, part in enumerate(parts) if part is tensor)
        for found, expected in zip(beside, alone, strict=True):
            assert np.asarray(found)[place].tobytes() == np.asarray(expected)[0].tobytes()
