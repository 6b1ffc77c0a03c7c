"""What goes over the wire: one maximum of all scales, one exchange of words of the expected number, nothing else."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxtern import Network, Reducer, compressed_mean, float_mean, quantized, sign, ternary, top_k, wire_report
from jaxtern.kernels import num_words

EXCHANGES = ("gather", "sum", "scatter", "two_way")
SHAPES = {"a": (100, 21), "b": (333,), "c": (5,)}


def _program(
    workers: Callable, layout: str, reducer: Reducer, check_vma: bool = True, shapes: dict = SHAPES, **options: Any
) -> tuple[Any, ...]:
    """A jitted update and its arguments, to be compiled."""
    placed = workers(layout)
    if placed.virtual_workers is not None:
        options["virtual_workers"] = placed.virtual_workers
    transformation = compressed_mean(placed.names, reducer, **options)
    gradients = {key: jax.ShapeDtypeStruct((placed.size, *shape), jnp.float32) for key, shape in shapes.items()}
    return placed.replicated(transformation.update, check_vma=check_vma), gradients, transformation.init(None)


def _sizes(names: str) -> tuple[int, ...]:
    return tuple(functools.reduce(int.__mul__, SHAPES[name]) for name in names)


def _words(names: str, radix: int) -> int:
    return num_words(sum(_sizes(names)), radix)


def _maximum(num_workers: int, size: int, check_vma: bool) -> tuple[str, str, int]:
    """Of two devices by an all-gather, which JAX cannot know to be the same on both."""
    of_two = ("all-gather", "f32", 2 * size)
    return of_two if num_workers == 2 and not check_vma else ("all-reduce maximum", "f32", size)


def _read(wire: Callable, *program: Any) -> list[tuple[str, str, int]]:
    return [(collective.name, collective.dtype, collective.size) for collective in wire(*program)]


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("num_workers", [2, 8])
def test_gather_is_one_maximum_and_one_all_gather_of_packed_words(
    workers: Callable, wire: Callable, num_workers: int, check_vma: bool
):
    """Of two that are near, an all-reduce, which sends as much: the other's words are the sum less one's own."""
    slow, far = Network(latency=1e-6, bandwidth=1e3), Network(latency=0.02, bandwidth=1e8)
    found = [
        _read(wire, *_program(workers, f"mesh:{num_workers}", ternary(exchange="gather", network=network), check_vma))
        for network in (slow, far)
    ]
    maximum = _maximum(num_workers, 3, check_vma)
    gathered = ("all-gather", "u32", num_workers * _words("abc", 3))
    of_two = ("all-reduce add", "u32", _words("abc", 3))
    assert found == [[maximum, of_two if num_workers == 2 and not check_vma else gathered], [maximum, gathered]]


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("num_workers", [2, 8])
def test_sum_is_one_maximum_and_one_integer_all_reduce_of_packed_words(
    workers: Callable, wire: Callable, num_workers: int, check_vma: bool
):
    found = _read(wire, *_program(workers, f"mesh:{num_workers}", ternary(exchange="sum"), check_vma))
    assert found == [
        _maximum(num_workers, 3, check_vma),
        ("all-reduce add", "u32", _words("abc", 2 * num_workers + 1)),
    ]


@pytest.mark.parametrize("check_vma", [True, False])
def test_between_processes_small_floats_are_one_message_and_a_large_tensor_is_its_own(
    workers: Callable, wire: Callable, check_vma: bool, monkeypatch: pytest.MonkeyPatch
):
    """XLA joins all-reduces into one operation, but gloo sends each of its arrays by itself."""
    update, *arguments = _program(workers, "mesh:2", float_mean(), check_vma, SHAPES | {"large": (2**21,)})
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert update.lower(*arguments).as_text().count("all_reduce") == 2
    assert [each.size for each in wire(update, *arguments)] == [2**21 + sum(_sizes("abc"))]


@pytest.mark.few("2-13-*")
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("exchange", ["scatter", "two_way"])
@pytest.mark.parametrize(("num_workers", "runs_of_sums"), [(2, 13), (8, 7)])
def test_scatter_and_two_way_are_an_all_to_all_and_an_all_gather_of_packed_words(
    workers: Callable, wire: Callable, exchange: str, num_workers: int, runs_of_sums: int, check_vma: bool
):
    found = _read(wire, *_program(workers, f"mesh:{num_workers}", ternary(exchange=exchange), check_vma))
    runs = math.lcm(20, runs_of_sums, 4) if exchange == "scatter" else 20  # of a shard: more than these tensors have
    back = 128 * runs // runs_of_sums if exchange == "scatter" else 128 + 1  # and the scale of a tile
    gathered = ("all-gather", "u32", num_workers * back)
    there = ("all-to-all", "u32", num_workers * 128 * runs // 20)
    if num_workers == 2 and not check_vma:  # one for the other's shard, one for both results
        there, gathered = ("all-reduce add", "u32", 128 * runs // 20), ("all-reduce add", "u32", back)
    assert found == [_maximum(num_workers, 3, check_vma), there, gathered]


@pytest.mark.few("two_way")
@pytest.mark.parametrize("exchange", ["scatter", "two_way"])
def test_over_slow_links_the_all_to_all_is_rounds_of_pairs(workers: Callable, wire: Callable, exchange: str):
    slow, fast = (Network(latency=1e-6, bandwidth=rate) for rate in (1e3, 1e12))
    rounds, direct = (
        _read(wire, *_program(workers, "mesh:4", ternary(exchange=exchange, network=network), False))[1:-1]
        for network in (slow, fast)
    )
    ((kind, dtype, words),) = direct
    assert (kind, dtype) == ("all-to-all", "u32")
    assert rounds == [("all-reduce add", "u32", words // 4)] * 3


@pytest.mark.parametrize(("network", "kind"), [(Network(latency=1.0), "all-gather"), (None, "all-to-all")])
def test_auto_goes_by_the_links_that_it_is_given(workers: Callable, wire: Callable, network: Network | None, kind: str):
    program = _program(workers, "mesh:8", ternary(network=network), False, shapes={"a": (1_000_000,)})
    assert _read(wire, *program)[1][0] == kind


@pytest.mark.parametrize("check_vma", [True, False])
def test_each_device_of_a_worker_exchanges_its_part_of_the_words(workers: Callable, wire: Callable, check_vma: bool):
    placed = workers("mesh:2 mesh:4")
    slow, fast = placed.names
    transformation = compressed_mean(slow, ternary(exchange="gather"), fast_axis_name=fast)
    gradients = {"a": jax.ShapeDtypeStruct((8, 20_000), jnp.float32)}
    program = placed.replicated(transformation.update, check_vma=check_vma), gradients, transformation.init(None)
    words = num_words(20_000, 3)
    assert _read(wire, *program) == [
        ("all-reduce add", "f32", 20_000),
        _maximum(2, 5, check_vma),  # blocks of 4096
        ("all-gather", "u32", 2 * words // 4),
        ("all-gather", "u32", 2 * words),
    ]


def test_every_bucket_has_a_maximum_and_an_exchange(workers: Callable, wire: Callable):
    found = _read(
        wire, *_program(workers, "mesh:4", ternary(exchange="gather", bucket_size=300), exclude=lambda p: p == "c")
    )
    gathered = sorted(size for name, _, size in found if name == "all-gather")
    assert gathered == [4 * 2, 4 * _words("b", 3), 4 * _words("a", 3)]  # the five floats by themselves, in shards of 2
    assert sum(size for name, _, size in found if name == "all-reduce maximum") == 2  # XLA may make one of both
    assert len(found) <= 6


def test_auto_takes_few_messages_for_small_tensors_and_few_bits_for_large_ones(workers: Callable, wire: Callable):
    def exchanged(num_workers: int, size: int) -> str:
        return _read(wire, *_program(workers, f"mesh:{num_workers}", ternary(), shapes={"a": (size,)}))[1][0]

    assert exchanged(2, 10) == exchanged(8, 10) == exchanged(2, 2**20) == "all-gather"
    assert exchanged(4, 2**20) == exchanged(8, 2**20) == "all-to-all"


def test_tensors_that_stay_float_are_averaged_in_shards(workers: Callable, wire: Callable):
    program = _program(workers, "mesh:4", ternary(exchange="sum"), exclude={"b", "c"}.__contains__)
    assert sorted(_read(wire, *program)) == [
        ("all-gather", "u32", 340),
        ("all-reduce add", "u32", _words("a", 9)),
        ("all-reduce maximum", "f32", 1),
        ("all-to-all", "u32", 340),  # of 338 floats, filled up
    ]


def test_all_excluded_is_one_mean_of_floats(workers: Callable, wire: Callable):
    found = _read(wire, *_program(workers, "mesh:4", ternary(), min_size=10**6))
    assert found == [(name, "u32", 4 * -(-sum(_sizes("abc")) // 4)) for name in ("all-to-all", "all-gather")]


def test_several_mesh_axes_add_in_one_collective_and_gather_axis_by_axis(workers: Callable, wire: Callable):
    added = _read(wire, *_program(workers, "mesh:4 mesh:2", ternary(exchange="sum")))
    gathered = _read(wire, *_program(workers, "mesh:4 mesh:2", ternary(exchange="gather")))
    assert added == [("all-reduce maximum", "f32", 3), ("all-reduce add", "u32", _words("abc", 17))]
    assert gathered == [
        ("all-reduce maximum", "f32", 3),
        ("all-gather", "u32", 2 * _words("abc", 3)),
        ("all-gather", "u32", 8 * _words("abc", 3)),
    ]


def test_virtual_workers_add_their_words_on_the_device_and_gather_them_all(workers: Callable, wire: Callable):
    added = _read(wire, *_program(workers, "mesh:4 unrolled:2", ternary(exchange="sum")))
    gathered = _read(wire, *_program(workers, "mesh:4 unrolled:2", ternary(exchange="gather")))
    assert added == [("all-reduce maximum", "f32", 3), ("all-reduce add", "u32", _words("abc", 17))]
    assert gathered == [("all-reduce maximum", "f32", 3), ("all-gather", "u32", 8 * _words("abc", 3))]


def test_float_is_an_all_reduce_of_the_gradients_alone(workers: Callable, wire: Callable):
    found = wire(*_program(workers, "mesh:4", float_mean()))
    assert {(collective.name, collective.dtype) for collective in found} == {("all-reduce add", "f32")}
    assert sum(collective.size for collective in found) == sum(_sizes("abc"))


@pytest.mark.parametrize(
    ("layout", "exchange"),
    [("mesh:1", "gather"), ("mesh:1", "two_way"), ("mesh:1 unrolled:3", "sum"), ("mesh:1 unrolled:3", "scatter")],
)
def test_one_device_exchanges_nothing(workers: Callable, wire: Callable, layout: str, exchange: str):
    # With check_vma=True the collectives must stay: only from them does JAX learn that the results are replicated.
    assert wire(*_program(workers, layout, ternary(exchange=exchange), check_vma=False, min_size=10)) == []


@pytest.mark.parametrize("shapes", [{}, {"a": (0, 3)}])
def test_nothing_to_average_exchanges_nothing(workers: Callable, wire: Callable, shapes: dict):
    reducers = [float_mean(), sign(feedback=False), top_k(0.1, feedback=False)]
    for reducer in (*(ternary(exchange=each) for each in EXCHANGES), *reducers):
        assert wire(*_program(workers, "mesh:4", reducer, shapes=shapes)) == []


def test_statistics_cost_one_float_all_reduce_more(workers: Callable, wire: Callable):
    plain = wire(*_program(workers, "mesh:4", ternary(exchange="sum")))
    measured = wire(*_program(workers, "mesh:4", ternary(exchange="sum"), statistics=True))
    more = [collective for collective in measured if collective not in plain]
    assert len(measured) - len(more) == len(plain)
    assert {(collective.name, collective.dtype) for collective in more} == {("all-reduce add", "f32")}
    assert sum(collective.size for collective in more) == sum(_sizes("abc")) + 2


@pytest.mark.few("options1*")
@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("options", [{"levels": 1, "block_size": 64}, {"levels": 7}])
def test_traffic_of_formats_is_the_sizes_read_off_the_program(
    workers: Callable, wire: Callable, options: dict, exchange: str
):
    """Of an odd number of workers; of every reducer and even ones: test_reducers.py."""
    reducer, tree = quantized(**options, exchange=exchange), {key: jnp.zeros(shape) for key, shape in SHAPES.items()}
    promised = wire_report(tree, reducer, 5, min_size=10).bytes
    sent = 0.0
    for collective in wire(*_program(workers, "mesh:5", reducer, min_size=10)):
        share = 4 * collective.size * 4 / 5
        sent += 2 * share if collective.name.startswith("all-reduce") else share
    assert sent == pytest.approx(promised)
