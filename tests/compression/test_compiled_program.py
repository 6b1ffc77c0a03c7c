"""What goes over the wire: one maximum of all scales, one exchange of words of the expected number, nothing else."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxtern import Codec, Network, Ternary, compressed_mean, ternary_mean
from jaxtern.compression import cost
from jaxtern.kernels import num_words

SHAPES = {"a": (100, 21), "b": (333,), "c": (5,)}
CODECS = {
    "ternary": Ternary(),
    "pow2": Ternary(scale="pow2", clip_sigmas=0.0),
    "blocks": Ternary(block_size=64),
    "7 levels": Ternary(levels=7),
}


def _program(
    workers: Callable, layout: str, check_vma: bool = True, shapes: dict = SHAPES, **options: Any
) -> tuple[Any, ...]:
    """A jitted update and its arguments, to be compiled."""
    placed = workers(layout)
    if placed.virtual_workers is not None:
        options["virtual_workers"] = placed.virtual_workers
    transformation = compressed_mean(placed.names, **options)
    gradients = {key: jax.ShapeDtypeStruct((placed.size, *shape), jnp.float32) for key, shape in shapes.items()}
    return placed.replicated(transformation.update, check_vma=check_vma), gradients, transformation.init(None)


def _sizes(names: str) -> tuple[int, ...]:
    return tuple(functools.reduce(int.__mul__, SHAPES[name]) for name in names)


def _words(names: str, radix: int) -> int:
    return num_words(sum(_sizes(names)), radix)


def _read(wire: Callable, *program: Any) -> list[tuple[str, str, int]]:
    return [(collective.name, collective.dtype, collective.size) for collective in wire(*program)]


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("num_workers", [2, 8])
def test_gather_is_one_maximum_and_one_all_gather_of_packed_words(
    workers: Callable, wire: Callable, num_workers: int, check_vma: bool
):
    """Of two workers an all-reduce, which sends as much: the other's words are the sum less one's own."""
    found = _read(wire, *_program(workers, f"mesh:{num_workers}", check_vma, exchange="gather"))
    gathered = ("all-gather", "u32", num_workers * _words("abc", 3))
    of_two = ("all-reduce add", "u32", _words("abc", 3))
    assert found == [("all-reduce maximum", "f32", 3), of_two if num_workers == 2 and not check_vma else gathered]


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("num_workers", [2, 8])
def test_sum_is_one_maximum_and_one_integer_all_reduce_of_packed_words(
    workers: Callable, wire: Callable, num_workers: int, check_vma: bool
):
    found = _read(wire, *_program(workers, f"mesh:{num_workers}", check_vma, exchange="sum"))
    assert found == [
        ("all-reduce maximum", "f32", 3),
        ("all-reduce add", "u32", _words("abc", 2 * num_workers + 1)),
    ]


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("exchange", ["scatter", "two_way"])
@pytest.mark.parametrize(("num_workers", "runs_of_sums"), [(2, 13), (8, 7)])
def test_scatter_and_two_way_are_an_all_to_all_and_an_all_gather_of_packed_words(
    workers: Callable, wire: Callable, exchange: str, num_workers: int, runs_of_sums: int, check_vma: bool
):
    found = _read(wire, *_program(workers, f"mesh:{num_workers}", check_vma, exchange=exchange))
    runs = math.lcm(20, runs_of_sums, 4) if exchange == "scatter" else 20  # of a shard: more than these tensors have
    back = 128 * runs // (runs_of_sums if exchange == "scatter" else 20)
    gathered = ("all-gather", "u32", num_workers * back)
    there = ("all-to-all", "u32", num_workers * 128 * runs // 20)
    if num_workers == 2 and not check_vma:  # one for the other's shard, one for both results
        there, gathered = ("all-reduce add", "u32", 128 * runs // 20), ("all-reduce add", "u32", back)
    assert found == [("all-reduce maximum", "f32", 3), there, gathered]


@pytest.mark.parametrize("exchange", ["scatter", "two_way"])
def test_over_slow_links_the_all_to_all_is_rounds_of_pairs(workers: Callable, wire: Callable, exchange: str):
    slow, fast = (Network(latency=1e-6, bandwidth=rate) for rate in (1e3, 1e12))
    rounds, direct = (
        _read(wire, *_program(workers, "mesh:4", False, exchange=exchange, network=network))[1:-1]
        for network in (slow, fast)
    )
    ((kind, dtype, words),) = direct
    assert (kind, dtype) == ("all-to-all", "u32")
    assert rounds == [("all-reduce add", "u32", words // 4)] * 3


@pytest.mark.parametrize(("network", "kind"), [(Network(latency=1.0), "all-gather"), (None, "all-to-all")])
def test_auto_goes_by_the_links_that_it_is_given(workers: Callable, wire: Callable, network: Network | None, kind: str):
    placed = workers("mesh:8")
    transformation = ternary_mean(placed.names, network=network)
    gradients = {"a": jax.ShapeDtypeStruct((8, 1_000_000), jnp.float32)}
    update = placed.replicated(transformation.update, check_vma=False)
    assert _read(wire, update, gradients, transformation.init(None))[1][0] == kind


@pytest.mark.parametrize("check_vma", [True, False])
def test_each_device_of_a_worker_exchanges_its_part_of_the_words(workers: Callable, wire: Callable, check_vma: bool):
    placed = workers("mesh:2 mesh:4")
    slow, fast = placed.names
    transformation = compressed_mean(slow, fast_axis_name=fast, exchange="gather")
    gradients = {"a": jax.ShapeDtypeStruct((8, 20_000), jnp.float32)}
    program = placed.replicated(transformation.update, check_vma=check_vma), gradients, transformation.init(None)
    words = num_words(20_000, 3)
    assert _read(wire, *program) == [
        ("all-reduce add", "f32", 20_000),
        ("all-reduce maximum", "f32", 1),
        ("all-gather", "u32", 2 * words // 4) if check_vma else ("all-reduce add", "u32", words // 4),
        ("all-gather", "u32", 2 * words),
    ]


def test_every_bucket_has_a_maximum_and_an_exchange(workers: Callable, wire: Callable):
    found = _read(wire, *_program(workers, "mesh:4", exchange="gather", bucket_size=300, exclude=lambda p: p == "c"))
    gathered = sorted(size for name, _, size in found if name == "all-gather")
    assert gathered == [4 * _words("b", 3), 4 * (_words("a", 3) + 5)]
    assert sum(size for name, _, size in found if name == "all-reduce maximum") == 2  # XLA may make one of both
    assert len(found) <= 4


def test_auto_takes_few_messages_for_small_tensors_and_few_bits_for_large_ones(workers: Callable, wire: Callable):
    def exchanged(num_workers: int, size: int) -> str:
        return _read(wire, *_program(workers, f"mesh:{num_workers}", shapes={"a": (size,)}))[1][0]

    assert exchanged(2, 10) == exchanged(8, 10) == exchanged(2, 2**20) == "all-gather"
    assert exchanged(4, 2**20) == exchanged(8, 2**20) == "all-to-all"


def test_tensors_that_stay_float_ride_in_the_gather_and_follow_the_sum_in_one_more(workers: Callable, wire: Callable):
    exclude = {"b", "c"}.__contains__
    gathered = _read(wire, *_program(workers, "mesh:4", exchange="gather", exclude=exclude))
    added = _read(wire, *_program(workers, "mesh:4", exchange="sum", exclude=exclude))
    assert gathered == [("all-reduce maximum", "f32", 1), ("all-gather", "u32", 4 * (_words("a", 3) + 338))]
    assert sorted(added) == [
        ("all-gather", "u32", 4 * 338),
        ("all-reduce add", "u32", _words("a", 9)),
        ("all-reduce maximum", "f32", 1),
    ]


def test_all_excluded_is_one_gather_of_floats(workers: Callable, wire: Callable):
    for exchange in ("auto", "gather", "sum"):
        found = _read(wire, *_program(workers, "mesh:4", exchange=exchange, min_size=10**6))
        assert found == [("all-gather", "u32", 4 * sum(_sizes("abc")))]


def test_several_mesh_axes_add_in_one_collective_and_gather_axis_by_axis(workers: Callable, wire: Callable):
    added = _read(wire, *_program(workers, "mesh:4 mesh:2", exchange="sum"))
    gathered = _read(wire, *_program(workers, "mesh:4 mesh:2", exchange="gather"))
    assert added == [("all-reduce maximum", "f32", 3), ("all-reduce add", "u32", _words("abc", 17))]
    assert gathered == [
        ("all-reduce maximum", "f32", 3),
        ("all-gather", "u32", 2 * _words("abc", 3)),
        ("all-gather", "u32", 8 * _words("abc", 3)),
    ]


def test_virtual_workers_add_their_words_on_the_device_and_gather_them_all(workers: Callable, wire: Callable):
    added = _read(wire, *_program(workers, "mesh:4 unrolled:2", exchange="sum"))
    gathered = _read(wire, *_program(workers, "mesh:4 unrolled:2", exchange="gather"))
    assert added == [("all-reduce maximum", "f32", 3), ("all-reduce add", "u32", _words("abc", 17))]
    assert gathered == [("all-reduce maximum", "f32", 3), ("all-gather", "u32", 8 * _words("abc", 3))]


def test_float_is_an_all_reduce_of_the_gradients_alone(workers: Callable, wire: Callable):
    for options in ({"exchange": "float"}, {"codec": "float"}):
        found = wire(*_program(workers, "mesh:4", **options))
        assert {(collective.name, collective.dtype) for collective in found} == {("all-reduce add", "f32")}
        assert sum(collective.size for collective in found) == sum(_sizes("abc"))


@pytest.mark.parametrize("exchange", cost.EXCHANGES)
@pytest.mark.parametrize("layout", ["mesh:1", "mesh:1 unrolled:3"])
def test_one_device_exchanges_nothing(workers: Callable, wire: Callable, layout: str, exchange: str):
    # With check_vma=True the collectives must stay: only from them does JAX learn that the results are replicated.
    assert wire(*_program(workers, layout, check_vma=False, exchange=exchange, min_size=10)) == []


def test_nothing_to_average_exchanges_nothing(workers: Callable, wire: Callable):
    for shapes in ({}, {"a": (0, 3)}):
        for exchange in cost.EXCHANGES:
            assert wire(*_program(workers, "mesh:4", shapes=shapes, exchange=exchange)) == []


def test_statistics_cost_one_float_all_reduce_more(workers: Callable, wire: Callable):
    plain = wire(*_program(workers, "mesh:4", exchange="sum"))
    measured = wire(*_program(workers, "mesh:4", exchange="sum", statistics=True))
    more = [collective for collective in measured if collective not in plain]
    assert len(measured) - len(more) == len(plain)
    assert {(collective.name, collective.dtype) for collective in more} == {("all-reduce add", "f32")}
    assert sum(collective.size for collective in more) == sum(_sizes("abc")) + 1


@pytest.mark.parametrize(
    ("codec", "exchange", "num_workers"),
    [
        *((codec, exchange, 5) for codec in CODECS for exchange in cost.EXCHANGES[:4]),
        *(("ternary", exchange, num_workers) for exchange in cost.EXCHANGES[:4] for num_workers in (2, 8)),
        ("ternary", "float", 8),
    ],
)
def test_step_bits_are_the_sizes_read_off_the_program(
    workers: Callable, wire: Callable, codec: str, exchange: str, num_workers: int
):
    chosen: Codec = CODECS[codec]
    program = _program(
        workers, f"mesh:{num_workers}", codec=chosen, exchange=exchange, exclude=lambda path: path == "c"
    )
    promised = cost.step_bits(chosen, exchange, _sizes("ab"), _sizes("c"), num_workers)
    assert sum(_bits(collective, num_workers) for collective in wire(*program)) == pytest.approx(promised)


def _bits(collective: Any, num_workers: int) -> float:
    """What one of N devices in a ring sends."""
    share = 32 * collective.size * (num_workers - 1) / num_workers
    return 2 * share if collective.name.startswith("all-reduce") else share


@pytest.mark.parametrize("num_workers", [1, 2, 3, 4, 8, 42, 127])
def test_large_tensors_cost_the_bits_an_element_that_the_formats_promise(num_workers: int):
    large, digits = 2**24, {1: 20, 2: 13, 3: 11, 4: 10, 8: 7, 42: 4, 127: 4}[num_workers]
    per_element = {
        exchange: cost.step_bits(Ternary(), exchange, (large,), (), num_workers) / large for exchange in cost.EXCHANGES
    }
    share = (num_workers - 1) / num_workers
    assert per_element["gather"] == pytest.approx(1.6 * (num_workers - 1), rel=2e-4)
    assert per_element["sum"] == pytest.approx(2 * share * 32 / digits, rel=2e-4)
    assert per_element["scatter"] == pytest.approx(share * (1.6 + 32 / digits), rel=2e-2)  # shards are filled up
    assert per_element["two_way"] == pytest.approx(share * 3.2, rel=2e-2)
    assert per_element["float"] == pytest.approx(2 * share * 32)
