"""Dither that is taken off again: an error that is uniform and independent of the gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtern.kernels import Segments, decode_span, derive_key, encode_span, ternary_decode, ternary_encode
from jaxtern.kernels.dither import Dither, dithered, nearest

pytestmark = pytest.mark.optimized

KEY = derive_key(5, 0, 1)
SEGMENTS = Segments((700, 3000, 1, 129))


def gradients(num_workers: int) -> np.ndarray:
    random = np.random.default_rng(num_workers)
    return random.uniform(-1, 1, (num_workers, SEGMENTS.num_elements)).astype(np.float32)


def encode(gradient: np.ndarray, bits: jax.Array, **options) -> jax.Array:
    return ternary_encode(jnp.asarray(gradient), jnp.ones(SEGMENTS.num_scales), bits, SEGMENTS, **options)


@pytest.mark.parametrize("num_workers", [1, 2, 3, 5, 8, 100])
def test_the_sum_of_all_dithers_is_known_from_one_draw(num_workers: int):
    bits = np.arange(2**16, dtype=np.uint32)
    shifts = [int(dithered(KEY, worker, num_workers)[3]) for worker in range(num_workers)]
    total = sum(((bits + shift) % 2**16).astype(np.int64) for shift in shifts) - num_workers * 2**15
    whole = Dither(dithered(KEY, 0, num_workers), num_workers).of(jnp.asarray(bits))
    np.testing.assert_array_equal(np.asarray(whole, np.float64) * 2**16, total)


@pytest.mark.few("native*", "reference-5-2")
@pytest.mark.parametrize("levels", [1, 2, 7])
@pytest.mark.parametrize("num_workers", [1, 2, 5])
@pytest.mark.parametrize("implementation", ["reference", "native"])
def test_each_worker_is_off_by_half_a_level_at_most(num_workers: int, levels: int, implementation: str):
    """What is left of N workers is a mean of uniform errors; that of their sum is what their own errors give."""
    rows, options = gradients(num_workers), {"levels": levels, "radix": 2 * levels * num_workers + 1}
    options |= {"implementation": implementation}
    scales, errors = jnp.ones(SEGMENTS.num_scales), []

    @jax.jit
    def both_ways(row: jax.Array, worker: int) -> tuple[jax.Array, jax.Array]:
        bits = dithered(KEY, worker, num_workers)
        words = encode(row, bits, offset=512, **options)
        return words, ternary_decode(
            words[None], scales, SEGMENTS, num_workers=1, dither=Dither(bits, 1, 512), **options
        )

    words = []
    for worker, row in enumerate(rows):
        found, own = both_ways(row, worker)
        words.append(found)
        errors.append(np.asarray(own, np.float64) - row)
        assert np.abs(errors[-1]).max() <= 0.5 / levels + 2e-5
        uniform = np.sort(errors[-1] * levels) + 0.5  # Kolmogorov's distance; 2 exp(-2 n d^2) = 1e-9
        assert np.abs(uniform - (np.arange(uniform.size) + 0.5) / uniform.size).max() < (10.7 / uniform.size) ** 0.5
        assert abs(np.corrcoef(row, errors[-1])[0, 1]) < 6.1 / row.size**0.5

    @jax.jit
    def decode(words: list[jax.Array]) -> jax.Array:
        dither = Dither(dithered(KEY, 0, num_workers), num_workers, 512)
        total = sum(words[1:], words[0])[None]
        return ternary_decode(total, scales, SEGMENTS, num_workers=num_workers, dither=dither, **options)

    mean = decode(words)
    np.testing.assert_allclose(mean, rows.mean(0) + np.mean(errors, 0), rtol=0, atol=1e-6)


def test_workers_alike_cancel_each_others_errors():
    rows = np.repeat(gradients(1), 8, axis=0)
    words = jnp.stack([encode(row, dithered(KEY, worker, 8)) for worker, row in enumerate(rows)])
    mean = ternary_decode(
        words, jnp.ones(SEGMENTS.num_scales), SEGMENTS, num_workers=8, dither=Dither(dithered(KEY, 0, 8), 8)
    )
    assert np.abs(np.asarray(mean) - rows[0]).max() <= 0.5 / 8 + 2e-5


@pytest.mark.parametrize("implementation", ["reference", "native"])
def test_an_offset_may_be_known_only_when_the_program_runs(implementation: str):
    row, bits, scales = gradients(1)[0], dithered(KEY, 1, 3), jnp.ones(SEGMENTS.num_scales)

    @jax.jit
    def both_ways(offset: int | jax.Array) -> tuple[jax.Array, jax.Array]:
        words = encode(row, bits, offset=offset, implementation=implementation)
        options = {"num_workers": 1, "dither": Dither(bits, 1, offset), "implementation": implementation}
        return words, ternary_decode(words[None], scales, SEGMENTS, **options)

    for offset in (0, 1024, 2**31):
        expected = encode(row, bits, offset=offset, implementation="reference")
        words, mean = both_ways(jnp.uint32(offset))
        np.testing.assert_array_equal(words, expected)
        assert np.abs(np.asarray(mean) - row).max() <= 0.5 + 2e-5


def test_spans_have_the_bits_of_the_whole():
    row, bits, options = gradients(1)[0], dithered(KEY, 1, 3), {"num_workers": 1, "radix": 7}
    tensors = [jnp.asarray(part) for part in np.split(row, np.cumsum(SEGMENTS.sizes)[:-1])]
    scales = jnp.arange(1.0, 1 + SEGMENTS.num_scales)
    start, size, offset = 512, 2000, 1024
    words, _ = encode_span(tensors, scales, bits, SEGMENTS, start=start, size=size, radix=7, offset=offset)
    for implementation in ("reference", "native"):
        found = decode_span(
            words[None], scales, SEGMENTS, tensors, start=start, size=size, dither=Dither(bits, 1, offset),
            implementation=implementation, **options,
        )  # fmt: skip
        flat = np.concatenate([np.asarray(part) for part in found])
        np.testing.assert_array_equal(flat[:start], row[:start])
        error = flat[start : start + size] - row[start : start + size]
        assert np.abs(error / np.repeat(scales, SEGMENTS.sizes)[start : start + size]).max() <= 0.5 + 2e-5


def test_nearest_rounds_to_the_nearest():
    row = gradients(1)[0]
    for implementation in ("reference", "native"):
        words = encode(row, nearest(), levels=3, radix=7, implementation=implementation)
        options = {"num_workers": 1, "levels": 3, "radix": 7}
        found = ternary_decode(words[None], jnp.ones(4), SEGMENTS, **options)
        assert np.abs(np.asarray(found) - row).max() <= 1 / 6 + 2e-5
