"""The Mosaic GPU kernels against their references, bit for bit: interpreted on the CPU, or compiled where a GPU is."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings

from jaxtern.kernels import (
    Segments,
    derive_key,
    dispatch,
    moments,
    num_words,
    rotate,
    shard_sum,
    ternary_decode,
    ternary_encode,
)
from jaxtern.kernels.dither import Dither, complete, dithered, nearest
from jaxtern.kernels.moments_reference import partials_reference
from jaxtern.kernels.radix import RUN
from jaxtern.kernels.rotation import BLOCK
from jaxtern.kernels.ternary_decode import units_of
from jaxtern.kernels.ternary_encode import steps_of

if jax.__version_info__ < dispatch.MIN_JAX:
    pytest.skip("the kernels need a newer JAX", allow_module_level=True)

from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxtern.kernels.mosaic.moments import partials_mgpu
from jaxtern.kernels.mosaic.rotation import rotate_blocks_mgpu
from jaxtern.kernels.mosaic.shards import shard_sum_mgpu
from jaxtern.kernels.mosaic.ternary_decode import ternary_decode_mgpu
from jaxtern.kernels.mosaic.ternary_encode import ternary_encode_mgpu

pytestmark = pytest.mark.newest
DTYPES = ["float32", "bfloat16", "float16"]
DEFAULT = 2  # warpgroups
WARPGROUPS = [1, 2]
KEY = derive_key(3, 14, 15)
BITS = [complete(KEY), nearest(), dithered(KEY, 2, 5)]

# Every example is traced and compiled anew, so there are few.
few_examples = settings(max_examples=2, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=["interpreted", pytest.param("compiled", marks=pytest.mark.gpu)])
def run(request: pytest.FixtureRequest, capfd: pytest.CaptureFixture) -> Callable[..., Any]:
    """Calls `kernel(*arrays, interpret)`; interpreted, it looks for races too."""

    def call(kernel: Callable, *arrays: jax.Array) -> Any:
        if request.param == "compiled":
            return jax.jit(lambda *xs: kernel(*xs, None))(*arrays)
        found = jax.jit(lambda *xs: kernel(*xs, plgpu.InterpretGPUParams(detect_races=True)))(*arrays)
        found = jax.tree.map(np.asarray, found)
        assert "RACE DETECTED" not in capfd.readouterr().out
        return found

    return call


def _assert_same(found: Any, expected: Any) -> None:
    for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


@st.composite
def buckets(draw: st.DrawFn) -> Segments:
    """Small tensors, one of several tiles, and blocks."""
    sizes = draw(st.lists(st.one_of(st.integers(0, 400), st.integers(2000, 5000)), min_size=1, max_size=4))
    block_size = draw(st.one_of(st.none(), st.none(), st.integers(100, 5000)))
    return Segments(tuple(sizes) if sum(sizes) else (1,), block_size)


def _gradient(segments: Segments, dtype: str, seed: int = 0) -> jax.Array:
    random = np.random.default_rng(seed)
    return jnp.asarray(random.standard_normal(segments.num_elements), jnp.float32).astype(dtype)


def _scales(segments: Segments, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).uniform(0.5, 3, segments.num_scales), jnp.float32)


def _mosaic_encode(segments: Segments, warpgroups: int = DEFAULT, **options: Any) -> Callable:
    radix, levels = options.get("radix", 3), options.get("levels", 1)
    rest = (segments, radix, levels, options.get("offset", 0), warpgroups)

    def encode(gradient: jax.Array, scales: jax.Array, key: jax.Array, interpret: Any) -> Any:
        return ternary_encode_mgpu(gradient, steps_of(scales, levels), complete(key), *rest, interpret)

    return encode


@few_examples
@given(
    buckets(), st.integers(1, 16), st.sampled_from([1, 2, 64, 65, 1000]), st.sampled_from(DTYPES),
    st.sampled_from(WARPGROUPS), st.sampled_from(BITS),
)  # fmt: skip
@example(Segments((5120,)), 1, 1, "float32", DEFAULT, BITS[0])
@example(Segments((2560, 2560, 2560)), 1, 1, "float32", 1, BITS[1])
@example(Segments((7000,)), 2, 1, "bfloat16", DEFAULT, BITS[2])
@example(Segments((11 * 512, 1)), 3, 1, "float16", DEFAULT, BITS[0])
def test_encode_equals_its_reference(
    run: Callable, segments: Segments, added: int, levels: int, dtype: str, warpgroups: int, bits: jax.Array
):
    options = {"radix": min(2 * levels * added + 1, 2**16), "levels": levels, "offset": 1024}
    arrays = _gradient(segments, dtype), _scales(segments), bits
    expected = ternary_encode(*arrays, segments, **options, implementation="reference")
    _assert_same(run(_mosaic_encode(segments, warpgroups, **options), *arrays), expected)


@few_examples
@given(
    buckets(), st.integers(1, 12), st.booleans(), st.sampled_from([1, 2, 100]), st.sampled_from(WARPGROUPS),
    st.booleans(), st.booleans(),
)  # fmt: skip
@example(Segments((5120,)), 1, False, 1, DEFAULT, False, False)
@example(Segments((5120, 77)), 9, False, 1, DEFAULT, True, False)
@example(Segments((2600, 1)), 4, True, 1, 1, True, False)
@example(Segments((5120, 77)), 1, False, 1, DEFAULT, True, True)
def test_decode_equals_its_reference(
    run: Callable, segments: Segments, num_workers: int, added: bool, levels: int, warpgroups: int, dithers: bool,
    by_tile: bool,
):  # fmt: skip
    radix = 2 * levels * (num_workers if added else 1) + 1
    gradient, scales, zero = _gradient(segments, "float32"), _scales(segments), num_workers * levels
    words = [
        ternary_encode(gradient, scales, derive_key(0, 0, i), segments, radix=radix, levels=levels)
        for i in range(num_workers)
    ]
    rows = sum(words[1:], words[0])[None] if added else jnp.stack(words)
    tile_scales = jnp.linspace(0.1, 2, rows.shape[1] // RUN) if by_tile else None
    options = {"num_workers": num_workers, "radix": radix, "levels": levels, "tile_scales": tile_scales}

    def dither(offset: jax.Array) -> Dither | None:
        return Dither(dithered(KEY, 0, 1), num_workers, offset) if dithers else None

    offset = jnp.uint32(1024)
    expected = ternary_decode(rows, scales, segments, dither=dither(offset), implementation="reference", **options)

    def decode(rows: jax.Array, scales: jax.Array, offset: jax.Array, interpret: Any) -> jax.Array:
        numbers = units_of(scales, zero), segments, zero, radix, dither(offset), tile_scales
        return ternary_decode_mgpu(rows, *numbers, warpgroups, interpret)

    _assert_same(run(decode, rows, scales, offset), expected)


@few_examples
@given(buckets(), st.sampled_from(DTYPES), st.floats(-100, 100))
@example(Segments((16384,)), "float32", 0.0)
@example(Segments((20000, 1, 16385)), "float32", 5.0)
@example(Segments((127,)), "float16", 0.0)
@example(Segments((300, 200), 150), "bfloat16", 0.0)
def test_moments_equal_their_reference(run: Callable, segments: Segments, dtype: str, mean: float):
    gradient = (_gradient(segments, "float32") + jnp.float32(mean)).astype(dtype)
    expected = jax.jit(lambda g: partials_reference(g, segments))(gradient)
    _assert_same(run(lambda g, interpret: partials_mgpu(g, segments, 1, interpret), gradient), expected)


@few_examples
@given(st.integers(1, 6000), st.integers(1, 12), st.sampled_from([1, 2, 100]), st.sampled_from(WARPGROUPS))
@example(2560 * 2, 4, 1, DEFAULT)
@example(2560 * 13, 2, 1, DEFAULT)
@example(2560, 2, 1, DEFAULT)  # the second tile of sums reaches beyond the words
@example(1, 3, 7, 1)
@example(3000, 127, 1, DEFAULT)
@example(3000, 5, 1000, DEFAULT)
def test_shard_sum_equals_its_reference(run: Callable, n: int, num_workers: int, levels: int, warpgroups: int):
    digits = np.random.default_rng(n).integers(0, 2 * levels + 1, (num_workers, n), dtype=np.uint32)
    words = _words(digits, 2 * levels + 1)
    radix = 2 * levels * num_workers + 1
    expected = shard_sum(words, n, levels=levels, implementation="reference")
    found = run(lambda w, interpret: shard_sum_mgpu(w, n, levels, radix, warpgroups, interpret), words)
    _assert_same(found, expected)


@pytest.mark.parametrize("is_inverse", [False, True])
def test_rotation_equals_its_reference(run: Callable, is_inverse: bool):
    """Of blocks of two tensors, the first of one block, which vary with the workers."""
    random = np.random.default_rng(0)
    vectors = [jnp.asarray(random.standard_t(2, (2, blocks * BLOCK)), jnp.float32) for blocks in (1, 2)]
    expected = [
        rotate([vector[worker] for vector in vectors], KEY, is_inverse=is_inverse, implementation="reference")
        for worker in range(2)
    ]
    firsts = jnp.asarray([0, 0, BLOCK // 64], jnp.uint32)

    def turn(blocks: jax.Array, key: jax.Array, firsts: jax.Array, interpret: Any) -> jax.Array:
        return jax.vmap(lambda own: rotate_blocks_mgpu(own, key, firsts, is_inverse, interpret))(blocks)

    found = run(turn, jnp.concatenate(vectors, axis=1).reshape(2, 3, BLOCK), KEY, firsts)
    for own, parts in zip(found, expected, strict=True):
        _assert_same(own.reshape(-1), jnp.concatenate(parts))


def _words(digits: np.ndarray, radix: int) -> jax.Array:
    """Of gradients that are whole levels, which no rounding changes."""
    levels, n = (radix - 1) // 2, digits.shape[1]
    gradients = (digits.astype(np.float32) - levels) / levels
    return jnp.stack([
        ternary_encode(jnp.asarray(row), jnp.ones(1), KEY, Segments((n,)), radix=radix, levels=levels)
        for row in gradients
    ])  # fmt: skip


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_comes_out_as_nan_in_its_own_segment(run: Callable, bad: float):
    segments = Segments((3000, 700, 3000))
    gradient = _gradient(segments, "float32").at[3100].set(bad)
    partials = run(lambda g, interpret: partials_mgpu(g, segments, 1, interpret), gradient)
    np.testing.assert_array_equal(np.isfinite(partials[0]), [True, False, True])
    scales = jnp.where(jnp.isfinite(jnp.asarray(partials[0])), 1.0, jnp.nan)
    words = run(_mosaic_encode(segments), gradient, scales, KEY)

    def decode(words: jax.Array, units: jax.Array, interpret: Any) -> jax.Array:
        return ternary_decode_mgpu(words[None], units, segments, 1, 3, None, None, DEFAULT, interpret)

    mean = run(decode, jnp.asarray(words), units_of(scales, 1))
    np.testing.assert_array_equal(np.isnan(mean), np.repeat([False, True, False], segments.sizes))


def test_a_batch_is_what_its_rows_are_alone(run: Callable):
    segments = Segments((3000, 50))
    gradients = jnp.stack([_gradient(segments, "float32", seed) for seed in (0, 1)])
    scales = jnp.stack([_scales(segments, seed) for seed in (0, 1)])
    keys = jnp.stack([derive_key(0, 0, worker) for worker in (0, 1)])
    encode = _mosaic_encode(segments)

    def batch(gradients: jax.Array, scales: jax.Array, keys: jax.Array, interpret: Any) -> jax.Array:
        return jax.vmap(lambda *row: encode(*row, interpret))(gradients, scales, keys)

    expected = jnp.stack([ternary_encode(*row, segments) for row in zip(gradients, scales, keys, strict=True)])
    _assert_same(run(batch, gradients, scales, keys), expected)


RACE = """
import jax, jax.numpy as jnp, numpy as np
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtern.kernels.mosaic import mgpu

def everyone_writes_the_first_run(item, vector, out):
    mgpu.store(out, 0, mgpu.load(vector, item * 128))

interpret = plgpu.InterpretGPUParams(detect_races=True)
outputs = (((128,), np.float32),)
mgpu.launch(everyone_writes_the_first_run, (), [jnp.ones(512)], outputs, 4, 2, interpret)[0].block_until_ready()
"""


def test_interpret_mode_finds_a_race():
    ended = subprocess.run(  # some versions of JAX only print it; others raise, and no kernel can be interpreted after
        [sys.executable, "-c", RACE],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert "RACE DETECTED" in ended.stdout + ended.stderr


LARGE = Segments((2**28 - 777, 777))
LARGE_WORKERS = 4


def _traced(kernel: Callable, *arrays: tuple[tuple[int, ...], str]) -> Any:
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in arrays]
    return jax.jit(lambda *xs: kernel(*xs, None)).trace(*shapes)


def _decode_large(words: jax.Array, units: jax.Array, interpret: Any) -> jax.Array:
    return ternary_decode_mgpu(words, units, LARGE, LARGE_WORKERS, 3, None, None, DEFAULT, interpret)


TRACED = {
    "moments": lambda dtype: _traced(lambda g, i: partials_mgpu(g, LARGE, 1, i), ((LARGE.num_elements,), dtype)),
    "ternary_encode": lambda dtype: _traced(
        _mosaic_encode(LARGE), ((LARGE.num_elements,), dtype), ((2,), "float32"), ((2,), "uint32")
    ),
    "ternary_decode": lambda _: _traced(
        _decode_large, ((LARGE_WORKERS, LARGE.num_words(3)), "uint32"), ((2,), "float32")
    ),
    "shard_sum": lambda _: _traced(
        lambda w, i: shard_sum_mgpu(w, 2**28, 1, 2 * LARGE_WORKERS + 1, DEFAULT, i),
        ((LARGE_WORKERS, num_words(2**28, 3)), "uint32"),
    ),
    "rotate": lambda _: _traced(
        lambda x, k, f, i: rotate_blocks_mgpu(x, k, f, False, i),
        ((2**28 // BLOCK, BLOCK), "float32"), ((2,), "uint32"), ((2**28 // BLOCK,), "uint32"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        *((op, dtype) for op in ("moments", "ternary_encode") for dtype in DTYPES),
        *((op, "") for op in ("ternary_decode", "shard_sum", "rotate")),
    ],
)
def test_every_op_lowers_for_cuda_to_one_launch(op: str, dtype: str):
    assert _launches(TRACED[op](dtype).lower(lowering_platforms=("cuda",)).as_text()) == 1


@pytest.mark.parametrize("op", TRACED)
def test_no_op_casts_bits_of_unsigned_integers_to_signed_ones(op: str):
    """Mosaic would go on to take them for unsigned, so that a negative digit became a huge float."""
    casts = [
        equation for equation in _equations(TRACED[op]("float32").jaxpr.jaxpr) if "bitcast" in str(equation.primitive)
    ]
    assert not [e for e in casts if e.invars[0].aval.dtype == jnp.uint32 and e.outvars[0].aval.dtype == jnp.int32]


def _equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a jaxpr and of those in its parameters."""
    for equation in jaxpr.eqns:
        yield equation
        for leaf in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda each: hasattr(each, "eqns")):
            inner = getattr(leaf, "jaxpr", leaf)
            if hasattr(inner, "eqns"):
                yield from _equations(inner)


def _launches(program: str) -> int:
    return sum("custom_call @mosaic_gpu" in line for line in program.splitlines())


@pytest.mark.parametrize(
    ("layout", "exchange", "check_vma"),
    [("mesh:4", "gather", False), ("mesh:4", "sum", True), ("mesh:1 unrolled:4", "scatter", False)],
)
def test_each_op_is_lowered_once_a_bucket(
    monkeypatch: pytest.MonkeyPatch, workers: Callable, layout: str, exchange: str, check_vma: bool
):
    """Lowering a kernel takes seconds, so virtual workers share it."""
    from jaxtern import compressed_mean, ternary

    monkeypatch.setattr(dispatch, "why_not_mosaic", lambda: "")
    monkeypatch.setattr(dispatch, "device", lambda: SimpleNamespace(platform="gpu"))
    placed = workers(layout)
    # a lone device takes these two buckets as one, and adds no words of shards
    reducer = ternary(exchange=exchange, bucket_size=2**22 if layout == "mesh:4" else 50, implementation="mosaic")
    transformation = compressed_mean(placed.names, reducer, virtual_workers=placed.virtual_workers)
    shapes = {"kernel": (4, 100, 50), "bias": (4, 50)}
    gradients = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    step = placed.replicated(transformation.update, check_vma=check_vma)
    lowered = step.trace(gradients, transformation.init(None)).lower(lowering_platforms=("cuda",))
    assert _launches(lowered.as_text()) == 5  # two rotations, moments, encode, decode


@pytest.mark.gpu
def test_auto_takes_the_kernels_on_a_gpu():
    gradient = _gradient(Segments((100_000,)), "float32")
    text = jax.jit(lambda g: moments(g, Segments((100_000,)))).lower(gradient).as_text()
    assert dispatch.pick_implementation("moments", "auto", 100_000) == "mosaic"
    assert _launches(text) == 1
