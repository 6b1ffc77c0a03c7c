"""The C implementation against the reference, bit for bit."""

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings

from jaxtern.kernels import (
    Segments,
    concatenate,
    derive_key,
    digits_per_word,
    dispatch,
    moments,
    shard_sum,
    ternary_decode,
    ternary_encode,
)
from jaxtern.kernels.moments_reference import centres_of, partials_reference
from jaxtern.kernels.native.calls import moments_native
from jaxtern.kernels.segments import split

pytestmark = pytest.mark.optimized

KEY = derive_key(3, 14, 15)
CHUNK, TILE = 16384, 2560
MANY_ITEMS = 24 * TILE + 77  # so that several threads have work

needs_native = pytest.mark.skipif(bool(dispatch.why_not_native()), reason=dispatch.why_not_native())
both = pytest.mark.parametrize("implementation", ["reference", pytest.param("native", marks=needs_native)])


def _assert_same(found: Any, expected: Any) -> None:
    """The same bits, or a NaN where there has to be one."""
    for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        got, want = np.asarray(got), np.asarray(want)
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        if got.dtype == np.float32:
            np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
            got, want = (np.where(np.isnan(x), 0, x).view(np.uint32) for x in (got, want))
        np.testing.assert_array_equal(got, want)


def _gradient(n: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(n), jnp.float32)


def _scales(segments: Segments, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).uniform(0.5, 3, segments.num_scales), jnp.float32)


def _words(segments: Segments, rows: int, **options: Any) -> jax.Array:
    gradient, scales = _gradient(segments.num_elements), _scales(segments)
    options["implementation"] = "reference"

    def encode(row: jax.Array) -> jax.Array:
        return ternary_encode(gradient, scales, derive_key(0, 0, row), segments, **options)

    return jax.jit(lambda numbers: jax.lax.map(encode, numbers))(jnp.arange(rows))


@st.composite
def buckets(draw: st.DrawFn) -> Segments:
    """Lengths around runs, tiles and chunks, in tensors and blocks."""
    edges = st.sampled_from([1, 127, 128, 129, TILE, TILE + 1, CHUNK - 1, CHUNK + 1, MANY_ITEMS])
    sizes = draw(st.lists(st.one_of(st.integers(0, 700), edges), min_size=1, max_size=3))
    return Segments(tuple(sizes), draw(st.one_of(st.none(), st.sampled_from([1, 100, 128, 512, 5000, CHUNK + 3]))))


@needs_native
@given(
    buckets(), st.sampled_from([1, 2, 64, 65, 1000, 32767]), st.integers(1, 16), st.sampled_from([0, 512, 2**31]),
    st.sampled_from([0.0, np.nan, np.inf, -np.inf, 1e-40, 1e30]),
)  # fmt: skip
@example(Segments((MANY_ITEMS,)), 1, 1, 0, 0.0)
@example(Segments((700, 0, 90, 3), 50), 1, 2, 512, np.nan)
@settings(max_examples=5)
def test_encode_equals_its_reference(segments: Segments, levels: int, added: int, offset: int, odd: float):
    options = {"radix": min(2 * levels * added + 1, 2**16), "levels": levels, "offset": offset}
    gradient = _gradient(segments.num_elements).at[: segments.num_elements : 97].set(odd)
    arrays = gradient, _scales(segments), KEY
    found, expected = (
        jax.jit(lambda *arrays, each=each: ternary_encode(*arrays, segments, **options, implementation=each))(*arrays)
        for each in ("native", "reference")
    )
    _assert_same(found, expected)


@needs_native
@given(buckets(), st.sampled_from([1, 2, 100]), st.sampled_from([1, 2, 3, 4, 5, 9, 12]), st.booleans(), st.booleans())
@example(Segments((MANY_ITEMS,)), 1, 2, False, True)
@example(Segments((TILE, 77)), 1, 12, True, False)
@settings(max_examples=5)
def test_decode_equals_its_reference(segments: Segments, levels: int, num_workers: int, added: bool, by_tile: bool):
    radix = 2 * levels * (num_workers if added else 1) + 1
    rows = _words(segments, num_workers, radix=radix, levels=levels)
    rows = rows.sum(axis=0, dtype=jnp.uint32)[None] if added else rows
    scales = _scales(segments)
    scales = scales.at[: segments.num_scales : 3].set(np.nan) if segments.num_scales > 1 else scales
    options = {"num_workers": num_workers, "radix": radix, "levels": levels}
    options["tile_scales"] = jnp.linspace(0.1, 2, rows.shape[1] // 128) if by_tile else None
    found, expected = (
        jax.jit(lambda *arrays, each=each: ternary_decode(*arrays, segments, **options, implementation=each))(
            rows, scales
        )
        for each in ("native", "reference")
    )
    _assert_same(found, expected)


@needs_native
@pytest.mark.parametrize("radix", [3, 5, 7, 9, 12, 16, 17, 85, 255, 256, 1625, 1626, 65535, 65536])
def test_every_digit_of_a_word_is_found(radix: int):
    depth = digits_per_word(radix)
    edges = [0, radix**depth - 1, *(radix**k - 1 for k in range(1, depth)), *(radix**k for k in range(depth))]
    words = np.random.default_rng(radix).integers(0, radix**depth, (1, 128), dtype=np.uint64)
    words[0, : len(edges)] = edges
    options = {"num_workers": (radix - 1) // 2, "radix": radix}
    arrays = jnp.asarray(words.astype(np.uint32)), jnp.ones(1)
    segments = Segments((128 * depth,))

    def decode(implementation: str) -> jax.Array:
        return jax.jit(lambda *x: ternary_decode(*x, segments, **options, implementation=implementation))(*arrays)

    _assert_same(decode("native"), decode("reference"))


@needs_native
@given(buckets(), st.floats(-100, 100, width=32), st.sampled_from([1.0, np.nan, np.inf, 1e-40, 1e-30, 1e30]))
@example(Segments((CHUNK * 9 + 5,)), 3.0, 1.0)
@example(Segments((MANY_ITEMS,), 512), 0.0, 1.0)
@example(Segments((1000, 0, 129), 64), 3.0, 1.0)  # blocks of a run and less have a loop of their own
@example(Segments((257, 5), 128), -0.5, 1e30)
@example(Segments((300,), 16), 1.0, np.nan)
@settings(max_examples=3)
def test_moments_equal_their_reference(segments: Segments, mean: float, factor: float):
    gradient = (_gradient(segments.num_elements) + jnp.float32(mean)) * jnp.float32(factor)
    tensors = split(gradient, segments.sizes)
    found = jax.jit(lambda g: moments_native([g], segments, is_split=False))(gradient)
    apart = jax.jit(lambda tensors: moments_native(tensors, segments, is_split=True))(tensors)
    bounds = segments.bounds()
    expected = jax.jit(lambda g: (partials_reference(g, segments), centres_of(g, bounds[:-1], bounds[1:])))(gradient)
    _assert_same(apart, found)
    if np.isfinite(factor):
        _assert_same(found, expected)
    else:
        np.testing.assert_array_equal(np.isfinite(found[0][0]), np.isfinite(expected[0][0]))


@needs_native
@given(st.integers(1, 20_000), st.sampled_from([1, 2, 7, 1000]), st.sampled_from([1, 2, 3, 4, 5, 16]))
@example(MANY_ITEMS, 1, 2)
@example(TILE, 1, 2)  # the second tile of sums reaches beyond the words
@settings(max_examples=5)
def test_shard_sum_equals_its_reference(n: int, levels: int, num_workers: int):
    words = _words(Segments((n,)), num_workers, radix=2 * levels + 1, levels=levels)
    found, expected = (
        jax.jit(lambda words, each=each: shard_sum(words, n, levels=levels, implementation=each))(words)
        for each in ("native", "reference")
    )
    _assert_same(found, expected)


@needs_native
def test_numbers_too_small_for_float32_are_zeros_on_every_thread():
    """XLA's threads flush them where its own code runs; they have to where ours does."""
    gradient = jnp.full(MANY_ITEMS, 1e-40, jnp.float32)
    native, reference = (
        jax.jit(lambda g, each=each: moments(g, Segments((MANY_ITEMS,)), implementation=each))(gradient)
        for each in ("native", "reference")
    )
    _assert_same(native, reference)


@needs_native
def test_what_native_lacks_is_refused():
    half, segments = jnp.zeros(300, jnp.bfloat16), Segments((300,))
    with pytest.raises(ValueError, match=r"moments: implementation='native': gradient\.dtype=bfloat16 is not float32"):
        moments(half, segments, implementation="native")
    with pytest.raises(ValueError, match=r"ternary_encode: implementation='native': gradient\.dtype=bfloat16"):
        ternary_encode(half, jnp.ones(1), KEY, segments, implementation="native")


@pytest.mark.slow
@needs_native
@pytest.mark.parametrize(("layout", "exchange"), [("mesh:4", "gather"), ("mesh:2 unrolled:2", "sum")])
def test_a_step_on_many_devices_gives_the_bits_of_the_reference(workers: Callable, layout: str, exchange: str):
    from jaxtern import compressed_mean, ternary

    placed = workers(layout)
    unrolled = {} if placed.virtual_workers is None else {"virtual_workers": placed.virtual_workers}
    gradients = {"kernel": _gradient(4 * 90_000).reshape(4, 300, 300), "bias": _gradient(4 * 50).reshape(4, 50)}

    def update(implementation: str, check_vma: bool, call: Callable = lambda f, *arguments: f(*arguments)) -> Any:
        method = ternary(exchange=exchange, implementation=implementation)
        transformation = compressed_mean(placed.names, method, **unrolled)
        mapped = placed.replicated(transformation.update, check_vma=check_vma)
        return call(mapped, gradients, transformation.init(None))[0]

    expected = update("reference", False)
    assert update("reference", True, jax.eval_shape)["bias"].shape == expected["bias"].shape  # and is traced
    for check_vma in (False, True):
        _assert_same(update("native", check_vma), expected)


@needs_native
@pytest.mark.parametrize("layout", ["vmap:3", "pmap:3"])
def test_a_batch_is_what_its_rows_are_alone(workers: Callable, layout: str):
    segments = Segments((3000, 50))
    gradients, scales = _gradient(3 * 3050).reshape(3, 3050), _scales(segments)

    def both_ways(gradient: jax.Array, scales: jax.Array) -> jax.Array:
        words = ternary_encode(gradient, scales, KEY, segments, implementation="native")
        return ternary_decode(words[None], scales, segments, num_workers=1, implementation="native")

    found = workers(layout).over(both_ways)(gradients, scales)
    _assert_same(found, np.stack([both_ways(gradient, scales) for gradient in gradients]))


@both
@pytest.mark.parametrize("shapes", [[], [(0,)], [(3, 4)], [(1,), (0, 2), (), (129,)], [(300, 301), (5,), (2**17 + 3,)]])
def test_concatenate_is_every_part_behind_the_other(shapes: list[tuple[int, ...]], implementation: str):
    parts = [jnp.asarray(_gradient(int(np.prod(shape)), seed)).reshape(shape) for seed, shape in enumerate(shapes)]
    found = jax.jit(lambda parts: concatenate(parts, implementation=implementation))(parts)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.concatenate([np.zeros(0), *(np.asarray(x).reshape(-1) for x in parts)]))
