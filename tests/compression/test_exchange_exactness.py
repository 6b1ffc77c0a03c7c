"""Whatever the exchange: the sum of all workers' levels, exactly, as NumPy counts them."""

import functools
import math
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from jax import lax

from jaxtern import Network, compressed_mean, float_mean, ternary_mean
from jaxtern.compression import float_runs
from jaxtern.compression.radix.exchanges import choose_exchange
from jaxtern.compression.radix.quantizer import Quantizer

pytestmark = pytest.mark.optimized

EXACT = ("sum", "scatter", "gather")
plain_mean = functools.partial(ternary_mean, rotation=False, rounding="stochastic")
SHAPES = st.lists(st.integers(0, 12), max_size=3).map(tuple)


def _normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def _expected_sums(
    numpy_levels: Callable, gradients: list[np.ndarray], step: int, **options: int
) -> list[tuple[Any, float]]:
    """The sum over workers and the scale of every tensor; positions run on from tensor to tensor."""
    sums, offset = [], 0
    for tensor in gradients:
        scale = np.abs(tensor).max(initial=0)
        drawn = [
            numpy_levels(local, scale, step=step, worker=worker, offset=offset, **options)
            for worker, local in enumerate(tensor)
        ]
        sums.append((sum(drawn), scale))
        offset += math.prod(tensor.shape[1:])
    return sums


@settings(max_examples=5)
@given(st.integers(1, 127), st.lists(SHAPES, min_size=1, max_size=2), st.sampled_from([1, 1, 2, 7]), st.integers(0, 99))
@example(127, [(12, 12)], 1, 0)
@example(1, [(), (3, 5)], 1, 0)
@example(42, [(85,), (0, 3)], 1, 1)
def test_every_exact_exchange_decodes_to_the_integer_sum_of_all_levels(
    updates_over: Callable,
    numpy_levels: Callable,
    assert_exact_mean: Callable,
    num_workers: int,
    shapes: list[tuple[int, ...]],
    levels: int,
    step: int,
):
    gradients = [_normal(i, num_workers, *shape) for i, shape in enumerate(shapes)]
    means = {}
    for exchange in EXACT:
        make = functools.partial(plain_mean, clip_sigmas=0, levels=levels, exchange=exchange, seed=21)
        means[exchange], _ = updates_over(make, f"vmap:{num_workers}")(gradients, step)
    expected = _expected_sums(numpy_levels, gradients, step, levels=levels, seed=21)
    for *others, gathered, (total, scale) in zip(*(means[name] for name in EXACT), expected, strict=True):
        for other in others:
            np.testing.assert_array_equal(other, gathered)
        for mean in gathered:
            assert_exact_mean(mean, total, scale, num_workers * levels)


@pytest.mark.parametrize(("exchange", "num_workers"), [("sum", 2), ("gather", 3), ("scatter", 8), ("sum", 127)])
def test_workers_that_all_send_their_scale_neither_carry_nor_saturate(
    updates_over: Callable, exchange: str, num_workers: int
):
    signs = np.random.default_rng(0).choice([-1, 1], 100).astype(np.float32)
    gradients = jnp.asarray(np.broadcast_to(3 * signs, (num_workers, 100)))
    make = functools.partial(plain_mean, clip_sigmas=0, exchange=exchange)
    mean, _ = updates_over(make, f"vmap:{num_workers}")(gradients)
    np.testing.assert_allclose(mean, gradients, rtol=2e-7)


def test_one_worker_still_ternarises(updates_over: Callable, numpy_levels: Callable, assert_exact_mean: Callable):
    gradient = _normal(2, 1, 500)
    scale = np.abs(gradient).max()
    make = functools.partial(plain_mean, clip_sigmas=0)
    for layout, check_vma in (("vmap:1", False), ("pmap:1", False), ("mesh:1", False), ("mesh:1", True)):
        mean, _ = updates_over(make, layout, check_vma=check_vma)(gradient, 5)
        assert_exact_mean(mean[0], numpy_levels(gradient[0], scale, step=5), scale, 1)


@pytest.mark.parametrize("layout", ["mesh:7", "pmap:7", "vmap:7", "mesh:3 mesh:2", "mesh:2 vmap:3"])
def test_the_float_mean_equals_pmean_bit_for_bit(workers: Callable, layout: str):
    placed = workers(layout)
    n = placed.size
    gradients = {"a": _normal(3, n, 40, 5), "b": jnp.asarray(_normal(4, n, 33), jnp.bfloat16), "none": None}
    transformation = compressed_mean(placed.names, float_mean())

    def both(local: Any, _: Any) -> Any:
        return transformation.update(local, transformation.init(local))[0], lax.pmean(local, placed.names)

    for found, leaf in zip(*map(jax.tree.leaves, placed.over(both)(gradients, 0)), strict=True):
        np.testing.assert_array_equal(found, leaf)


@pytest.mark.parametrize(("exchange", "block_size"), [("gather", None), ("sum", 16), ("scatter", 16)])
def test_what_is_not_finite_on_one_worker_is_nan_on_all_and_in_no_other_tensor(
    updates_over: Callable, exchange: str, block_size: int | None
):
    gradients = {"a": _normal(5, 4, 50), "b": _normal(6, 4, 6, 8), "c": _normal(7, 4, 50), "float": _normal(8, 4, 3)}
    make = functools.partial(ternary_mean, exchange=exchange, block_size=block_size, min_size=10)
    update = updates_over(make, "vmap:4")
    clean, _ = update(gradients)
    nan = np.arange(48) // (block_size or 48) == 28 // (block_size or 48)
    for bad in (np.nan, np.inf, -np.inf):
        broken = {key: value.copy() for key, value in gradients.items()}
        broken["b"][2, 3, 4], broken["float"][1, 1] = bad, bad
        mean, _ = update(broken)
        for key in "ac":
            np.testing.assert_array_equal(mean[key], clean[key])
        for found, whole in zip(mean["b"].reshape(4, 48), clean["b"].reshape(4, 48), strict=True):
            np.testing.assert_array_equal(np.isnan(found), nan)
            np.testing.assert_array_equal(found[~nan], whole[~nan])
        np.testing.assert_array_equal(np.isfinite(mean["float"]), [[True, False, True]] * 4)


def test_auto_takes_what_sends_fewer_bits_and_gathers_where_words_cannot_be_added():
    fast = Network(latency=0.0)

    def choose(
        exchange: str, quantizer: Quantizer, num_workers: int, size: int = 2**24, network: Network = fast
    ) -> str:
        return choose_exchange(exchange, quantizer, size, num_workers, network).name

    ternary, many = Quantizer(), Quantizer(levels=1000)
    assert [choose("auto", ternary, n) for n in (1, 2, 3, 4, 8)] == ["gather", "gather", *["scatter"] * 3]
    assert choose("auto", ternary, 64) == "scatter"
    assert choose("auto", ternary, 8, size=100) == "sum"  # shards of so few would be filled up more
    assert choose("auto", ternary, 8, size=10**5, network=Network(latency=0.1)) == "gather"
    assert choose("auto", many, 33) == "gather"
    assert choose("auto", ternary, 2**15) == "gather"
    for exchange in ("sum", "scatter"):
        assert choose(exchange, many, 32) == exchange
        message = rf"^exchange='{exchange}': the words of 33 workers of 1000 levels do not add; take 'gather'$"
        with pytest.raises(ValueError, match=message):
            choose(exchange, many, 33)


def test_all_workers_share_the_largest_of_their_scales(updates_over: Callable):
    gradients = _normal(9, 4, 200) * np.array([1, 30, 0.01, 2], np.float32)[:, None]
    mean, _ = updates_over(functools.partial(plain_mean, clip_sigmas=1.5), "vmap:4")(gradients)
    scale = 1.5 * gradients[1].std(dtype=np.float64)
    whole = np.unique((mean * 4 / scale).round(2))
    assert {-1, 0, 1} <= set(whole) <= {-4, -3, -2, -1, 0, 1, 2, 3, 4}


@pytest.mark.few("mesh:4-float16", "mesh:2 unrolled:2-float16")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["mesh:2", "mesh:4", "mesh:8", "mesh:2 mesh:2", "mesh:2 unrolled:2"])
def test_float_means_in_many_runs_are_those_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, workers: Callable, layout: str, dtype: str
):
    """Rounded, added one worker after the other, and of more than two rounded again."""
    for name, value in (("_RUN", 60), ("_PIECE", 90), ("_PAIRED_BYTES", 0), ("_APART_BYTES", 0)):
        monkeypatch.setattr(float_runs, name, value)
    placed = workers(layout)
    unrolled = {} if placed.virtual_workers is None else {"virtual_workers": placed.virtual_workers}
    gradients = {name: _normal(size, placed.size, size) for name, size in {"a": 70, "b": 1, "c": 59, "d": 200}.items()}
    transformation = compressed_mean(placed.names, float_mean(dtype), **unrolled)
    update = placed.replicated(transformation.update)
    first = {name: leaf[0] for name, leaf in gradients.items()}
    found, _ = update(gradients, transformation.init(first))
    for name, leaf in gradients.items():
        rounded = np.asarray(jnp.asarray(leaf).astype(dtype).astype(jnp.float32))
        expected = functools.reduce(np.add, rounded) / np.float32(placed.size)
        if placed.size > 2:
            expected = np.asarray(jnp.asarray(expected).astype(dtype).astype(jnp.float32))
        np.testing.assert_array_equal(found[name], expected)
