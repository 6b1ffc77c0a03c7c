"""Spans of tensors that lie apart: the words and means of the same elements in one vector, and no copy."""

from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings

from jaxtern.kernels import (
    Segments,
    decode_span,
    derive_key,
    dispatch,
    encode_span,
    follow,
    num_words,
    ternary_decode,
    ternary_encode,
)

pytestmark = pytest.mark.optimized

KEY = derive_key(3, 14, 15)

needs_native = pytest.mark.skipif(bool(dispatch.why_not_native()), reason=dispatch.why_not_native())
BOTH = pytest.param("reference", marks=pytest.mark.slow), pytest.param("native", marks=needs_native)
both = pytest.mark.parametrize("implementation", BOTH)


def _tensors(sizes: tuple[int, ...], seed: int = 0) -> list[jax.Array]:
    random = np.random.default_rng(seed)
    shapes = [(2, size // 2) if size % 2 == 0 and size else (size,) for size in sizes]
    return [jnp.asarray(random.standard_normal(shape), jnp.float32) for shape in shapes]


def _flat(tensors: list[jax.Array]) -> jax.Array:
    return jnp.concatenate([each.reshape(-1) for each in tensors])


def _scales(segments: Segments) -> jax.Array:
    return jnp.asarray(np.random.default_rng(5).uniform(0.5, 3, segments.num_scales), jnp.float32)


def _alone(segments: Segments, start: int, size: int) -> tuple[Segments, np.ndarray]:
    """The span as a bucket of its own: a tensor for each scale that it touches, and which scales these are."""
    bounds = np.clip(segments.bounds(), start, start + size) - start
    sizes = np.diff(bounds)
    return Segments(tuple(int(each) for each in sizes[sizes > 0])), np.flatnonzero(sizes)


def _words(size: int, rows: int, radix: int, levels: int) -> jax.Array:
    gradient, segments = _flat(_tensors((size,), 9)), Segments((size,))
    options = {"radix": radix, "levels": levels, "implementation": "reference"}
    keys = [derive_key(0, 0, row) for row in range(rows)]
    scales = jnp.ones(segments.num_scales)
    return jnp.stack([ternary_encode(gradient, scales, key, segments, **options) for key in keys])


@st.composite
def spans(draw: st.DrawFn) -> tuple[Segments, int, int]:
    """Tensors (and blocks), and a span of them that begins and ends anywhere."""
    edges = st.sampled_from([1, 127, 128, 129, 2560, 2561, 20_000])
    sizes = draw(st.lists(st.one_of(st.integers(0, 700), edges), min_size=1, max_size=5))
    segments = Segments(tuple(sizes), draw(st.sampled_from([None, None, 1, 100, 128, 3000])))
    start = draw(st.integers(0, segments.num_elements))
    return segments, start, draw(st.integers(0, segments.num_elements - start))


@both
@given(spans(), st.sampled_from([1, 2, 100]), st.sampled_from([0, 512, 2**31]))
@example((Segments((100_000, 7, 90_000)), 511, 150_003), 1, 512)
@example((Segments((100_000, 7, 90_000), 1000), 99_900, 60_000), 1, 0)
@settings(max_examples=5)
def test_a_span_is_encoded_as_if_it_were_alone(
    implementation: str, span: tuple[Segments, int, int], levels: int, offset: int
):
    segments, start, size = span
    tensors, scales, options = _tensors(segments.sizes), _scales(segments), {"levels": levels, "offset": offset}
    options["radix"] = 2 * levels + 1
    alone, touched = _alone(segments, start, size)
    vector = _flat(tensors)[start : start + size]
    expected = ternary_encode(vector, scales[touched], KEY, alone, implementation="reference", **options)
    arguments = {"start": start, "size": size, "implementation": implementation}
    words, same = jax.jit(lambda *tensors: encode_span(tensors, scales, KEY, segments, **arguments, **options))(
        *tensors
    )
    np.testing.assert_array_equal(words, expected)
    assert all(np.array_equal(a, b) for a, b in zip(same, tensors, strict=True))


@both
@given(spans(), st.sampled_from([1, 2, 100]), st.sampled_from([1, 2, 3, 5]), st.booleans())
@example((Segments((100_000, 7, 90_000)), 511, 150_003), 1, 2, True)
@example((Segments((409,)), 116, 209), 100, 5, True)  # whose units would be others if XLA divided scales that it knows
@settings(max_examples=5)
def test_a_span_is_decoded_into_its_place_and_no_other(
    implementation: str, span: tuple[Segments, int, int], levels: int, workers: int, as_total: bool
):
    segments, start, size = span
    as_total = as_total and workers == 2
    tensors, scales, radix = _tensors(segments.sizes), _scales(segments), 2 * levels + 1
    words = _words(size, workers, radix, levels)
    alone, touched = _alone(segments, start, size)
    options = {"num_workers": workers, "radix": radix, "levels": levels}
    mean = ternary_decode(words, scales[touched], alone, implementation="reference", **options)
    expected = _flat(tensors).at[start : start + size].set(mean)
    rows, total = (words[:1], words.sum(axis=0, dtype=jnp.uint32)[None]) if as_total else (words, None)
    options |= {"start": start, "size": size, "total": total, "implementation": implementation}
    found = jax.jit(lambda *tensors: decode_span(rows, scales, segments, tensors, **options))(*tensors)
    np.testing.assert_array_equal(_flat(found).view(jnp.uint32), expected.view(jnp.uint32))
    assert [each.shape for each in found] == [each.shape for each in tensors]


@needs_native
def test_donated_tensors_are_decoded_into_without_a_copy():
    segments, options = Segments((80_000, 20_000)), {"implementation": "native"}
    words = _words(5000, 1, 3, 1)

    def turn(words: jax.Array, *tensors: jax.Array) -> list[jax.Array]:
        own, kept = encode_span(tensors, jnp.ones(2), KEY, segments, start=79_000, size=5000, **options)
        options["after"] = [own]
        return decode_span(words, jnp.ones(2), segments, kept, start=79_000, size=5000, num_workers=1, **options)

    tensors = _tensors(segments.sizes)
    compiled = jax.jit(turn, donate_argnums=(1, 2)).lower(words, *tensors).compile()
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.alias_size_in_bytes == 4 * segments.num_elements
    assert memory.temp_size_in_bytes < 4 * 5000
    addresses = [each.unsafe_buffer_pointer() for each in tensors]
    assert [each.unsafe_buffer_pointer() for each in compiled(words, *tensors)] == addresses


@pytest.mark.slow
@needs_native
def test_many_programs_at_once_do_not_disturb_one_another():
    """A call returns before its work is done, and XLA hands its frame to the next: four devices run one program."""
    mesh = jax.make_mesh((4,), ("device",))
    spec = jax.sharding.PartitionSpec("device")
    segments, options = Segments((90_000, 30_000)), {"start": 0, "size": 120_000, "implementation": "native"}

    def turn(*tensors: jax.Array) -> jax.Array:
        return encode_span([each[0] for each in tensors], jnp.ones(2), KEY, segments, **options)[0][None]

    placed = [
        jax.device_put(
            np.random.default_rng(seed).standard_normal((4, size), np.float32), jax.sharding.NamedSharding(mesh, spec)
        )
        for seed, size in enumerate(segments.sizes)
    ]
    over = jax.jit(jax.shard_map(turn, mesh=mesh, in_specs=spec, out_specs=spec))
    vectors = jnp.concatenate([jnp.asarray(np.asarray(each)) for each in placed], axis=1)
    expected = jax.vmap(lambda vector: ternary_encode(vector, jnp.ones(2), KEY, segments, implementation="reference"))(
        vectors
    )
    for _ in range(20):
        np.testing.assert_array_equal(over(*placed), expected)


@both
@pytest.mark.parametrize("apart", [False, True])
def test_words_that_follow_others_stay_as_they_are(implementation: str, apart: bool):
    words, after = jnp.arange(300, dtype=jnp.uint32), [jnp.full((2, 3), 2**32 - 1, jnp.uint32)]
    options = {"apart": apart, "implementation": implementation}
    found = jax.jit(lambda words, *after: follow(words, after, **options))(words, *after)
    np.testing.assert_array_equal(found, words)
    assert follow(words, [jnp.zeros((0,), jnp.uint32)], implementation=implementation) is words


@both
def test_what_does_not_fit_is_refused(implementation: str):
    segments, tensors = Segments((600, 20)), _tensors((600, 20))
    words, options = jnp.zeros((1, num_words(600, 3)), jnp.uint32), {"implementation": implementation}

    def encode(tensors: Any = tensors, **own: Any) -> None:
        encode_span(tensors, jnp.ones(2), KEY, segments, **({"start": 0, "size": 600} | own), **options)

    def decode(**own: Any) -> None:
        own = {"start": 0, "size": 600, "num_workers": 2, "radix": 3} | own
        decode_span(own.pop("words", words), jnp.ones(2), segments, tensors, **own, **options)

    with pytest.raises(ValueError, match=r"start=21, size=600: must lie within 620 elements"):
        encode(start=21)
    with pytest.raises(ValueError, match=r"start=-1, size=600: must lie within 620 elements"):
        encode(start=-1)
    with pytest.raises(ValueError, match=r"tensors of \(600,\) elements: the segments hold \(600, 20\)"):
        encode(tensors[:1])
    with pytest.raises(ValueError, match=r"tensor is bfloat16\[20\]: must be float32\[20\]"):
        encode([tensors[0], jnp.zeros(20, jnp.bfloat16)])
    with pytest.raises(ValueError, match=r"offset=3: must be a multiple of 512"):
        encode(offset=3)
    with pytest.raises(ValueError, match=r"words is uint32\[2, 128\]: must be uint32\[1, 128\]"):
        decode(words=jnp.concatenate([words, words]), total=words)
    with pytest.raises(ValueError, match=r"total is uint32\[1, 100\]: must be uint32\[1, 128\]"):
        decode(total=words[:, :100])
    with pytest.raises(ValueError, match=r"rows dividing num_workers=3"):
        decode(total=words, num_workers=3)
