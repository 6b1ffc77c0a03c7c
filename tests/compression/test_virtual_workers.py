"""virtual = real: the same local gradients give the same bits however N workers lie on devices."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec
from jaxtern.compression.cost import EXACT, EXCHANGES

from jaxtern import Network, Ternary, compressed_mean, ternary_mean
from jaxtern.compression import exchange as exchange_lib

LAYOUTS = [
    ("mesh:8", "sum"),
    ("mesh:8", "gather"),
    ("mesh:4 vmap:2", "sum"),
    ("mesh:2 vmap:4", "gather"),
    ("mesh:1 vmap:8", "sum"),
    ("mesh:4 unrolled:2", "gather"),
    ("mesh:1 unrolled:8", "sum"),
    ("vmap:4 unrolled:2", "sum"),
    ("mesh:4 mesh:2", "gather"),
    ("vmap:4 vmap:2", "gather"),
    ("mesh:2 mesh:2 vmap:2", "sum"),
    ("mesh:8", "scatter"),
    ("mesh:2 unrolled:4", "scatter"),
    ("mesh:4 mesh:2", "scatter"),
    ("mesh:2 vmap:4", "scatter"),
    ("vmap:8", "scatter"),
    ("pmap:8", "scatter"),
    ("pmap:8", "gather"),
    ("pmap:4 vmap:2", "sum"),
    ("pmap:4 unrolled:2", "sum"),
]
SIZES = {"large": 2503, "small": 100, "float": 9}


def _gradients(num_workers: int, sizes: dict[str, int]) -> dict[str, Any]:
    random = np.random.default_rng(0)
    gradients = {key: random.standard_normal((num_workers, size), np.float32) for key, size in sizes.items()}
    return {**gradients, "half": jnp.asarray(gradients["small"], jnp.bfloat16), "absent": None}


def _assert_same(found: Any, reference: Any) -> None:
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(reference), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module")
def reference(updates_over: Callable) -> Any:
    """The mean over a vmapped axis, by `gather`, in plain jnp; `sum` must give the same, and so must C."""
    make = functools.partial(compressed_mean, exchange="gather", min_size=10, codec=Ternary(implementation="reference"))
    return updates_over(make, "vmap:8")(_gradients(8, SIZES), 3)[0]


@pytest.mark.parametrize(("layout", "exchange"), LAYOUTS)
def test_means_are_the_same_bits_on_every_layout(updates_over: Callable, reference: Any, layout: str, exchange: str):
    make = functools.partial(compressed_mean, exchange=exchange, min_size=10)
    _assert_same(updates_over(make, layout)(_gradients(8, SIZES), 3)[0], reference)


@pytest.mark.parametrize(("layout", "exchange"), [("mesh:8", "gather"), ("mesh:4 unrolled:2", "scatter")])
def test_means_of_tensors_of_many_tiles_and_chunks_are_the_same_bits(
    updates_over: Callable, layout: str, exchange: str
):
    gradients = _gradients(8, {"large": 2**18 + 7, "small": 5})
    expected, _ = updates_over(functools.partial(compressed_mean, exchange="sum"), "mesh:1 vmap:8")(gradients)
    _assert_same(updates_over(functools.partial(compressed_mean, exchange=exchange), layout)(gradients)[0], expected)


@pytest.mark.parametrize("layout", ["mesh:8 vmap:2", "mesh:8 unrolled:2", "pmap:4 vmap:4"])
def test_more_than_8_workers_gather_to_the_same_bits(updates_over: Callable, layout: str):
    make = functools.partial(compressed_mean, exchange="gather", codec=Ternary(block_size=100, levels=3))
    gradients = _gradients(16, {"small": 1001, "one": 1})
    _assert_same(updates_over(make, layout)(gradients)[0], updates_over(make, "vmap:16")(gradients)[0])


@pytest.mark.parametrize("layout", ["mesh:4", "mesh:4 unrolled:2", "mesh:2 mesh:2"])
@pytest.mark.parametrize("exchange", ["gather", "sum", "scatter", "two_way"])
def test_shard_map_with_check_vma_knows_that_the_mean_is_replicated(
    workers: Callable, updates_over: Callable, layout: str, exchange: str
):
    placed = workers(layout)
    virtual = {} if placed.virtual_workers is None else {"virtual_workers": placed.virtual_workers}
    options = {"exchange": exchange, "statistics": True, "min_size": 10}
    transformation = compressed_mean(placed.names, **options, **virtual)
    gradients = _gradients(placed.size, {"small": 333, "float": 3})
    compiled = placed.replicated(transformation.update, check_vma=True)
    mean, state = jax.device_get(compiled(gradients, transformation.init(None)))
    expected = updates_over(functools.partial(compressed_mean, **options), f"vmap:{placed.size}")(gradients)
    _assert_same(mean, jax.tree.map(lambda x: x[0], expected[0]))
    for found, wanted in zip(jax.tree.leaves(state), jax.tree.leaves(expected[1]), strict=True):
        np.testing.assert_allclose(found, wanted[0], rtol=1e-5)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_more_workers_than_devices_here_trace_with_check_vma(exchange: str):
    mesh = AbstractMesh((128,), ("data",), axis_types=(AxisType.Auto,))
    transformation = ternary_mean("data", exchange=exchange, min_size=2)

    def step(gradient: jax.Array) -> Any:
        return transformation.update({"a": gradient, "b": gradient[:1]}, transformation.init(None))

    mapped = jax.shard_map(step, mesh=mesh, in_specs=PartitionSpec("data"), out_specs=PartitionSpec())
    mean, state = jax.eval_shape(mapped, jax.ShapeDtypeStruct((1280,), jnp.float32))
    assert (mean["a"].shape, mean["b"].shape, state.count.shape) == ((10,), (1,), ())


@pytest.mark.parametrize("check_vma", [True, False])
def test_a_mean_over_one_of_two_axes_leaves_the_other_alone(workers: Callable, updates_over: Callable, check_vma: bool):
    gradients = np.random.default_rng(1).standard_normal((8, 200)).astype(np.float32)
    placed = workers("mesh:4 mesh:2")
    transformation = ternary_mean(placed.names[0])
    mean, _ = placed.over(transformation.update, check_vma=check_vma)(gradients, transformation.init(None))
    for column in (0, 1):
        alone, _ = updates_over(ternary_mean, "vmap:4")(gradients[column::2])
        np.testing.assert_array_equal(mean[column::2], alone)


@pytest.mark.parametrize("num_workers", range(2, 9))
def test_exact_exchanges_of_odd_sizes_are_the_same_bits_for_any_number_of_devices(
    updates_over: Callable, num_workers: int
):
    gradients = _gradients(num_workers, {"large": 2**15 + 77, "small": 129, "one": 1, "float": 3})
    make = functools.partial(ternary_mean, exclude=lambda path: path == "float", block_size=1000)
    expected, _ = updates_over(functools.partial(make, exchange="gather"), f"vmap:{num_workers}")(gradients, 2)
    for exchange in EXACT:
        found, _ = updates_over(functools.partial(make, exchange=exchange), f"mesh:{num_workers}")(gradients, 2)
        _assert_same(found, expected)


def test_two_way_is_the_same_bits_on_every_layout(updates_over: Callable):
    make = functools.partial(compressed_mean, exchange="two_way", min_size=10)
    gradients = _gradients(8, {"large": 2**15 + 77, **SIZES})
    expected = updates_over(make, "mesh:1 unrolled:8")(gradients, 3)[0]
    for layout in ("mesh:8", "mesh:4 unrolled:2", "mesh:2 vmap:4", "vmap:8", "mesh:4 mesh:2", "pmap:8"):
        _assert_same(updates_over(make, layout)(gradients, 3)[0], expected)


@pytest.mark.parametrize("exchange", [*EXACT, "two_way"])
@pytest.mark.parametrize(("layout", "fast"), [("mesh:2 mesh:4", 1), ("mesh:4 mesh:2", 0), ("mesh:3 mesh:2", 1)])
def test_hierarchical_is_the_flat_exchange_of_the_workers_own_means(
    workers: Callable, updates_over: Callable, exchange: str, layout: str, fast: int
):
    """Gradients of small whole numbers, whose float means over the devices of a worker are exact in any order."""
    placed = workers(layout)
    shape = [int(part.split(":")[1]) for part in layout.split()]
    random = np.random.default_rng(3)
    sizes = {"large": 2**14 + 1, "one": 1, "float": 9}
    gradients = {k: 12.0 * random.integers(-9, 9, (*shape, n)).astype(np.float32) for k, n in sizes.items()}
    options = {"exchange": exchange, "exclude": lambda path: path == "float"}
    make = functools.partial(compressed_mean, placed.names[1 - fast], fast_axis_name=placed.names[fast], **options)
    flat = {k: x.reshape(placed.size, -1) for k, x in gradients.items()}
    means = {k: x.mean(axis=fast) for k, x in gradients.items()}
    expected, _ = updates_over(functools.partial(compressed_mean, **options), f"vmap:{shape[1 - fast]}")(means)
    for check_vma in (True, False):
        found = placed.replicated(make().update, check_vma=check_vma)(flat, make().init(None))[0]
        _assert_same(jax.device_get(found), jax.tree.map(lambda x: x[0], expected))


@pytest.mark.parametrize("bucket_size", [1, 100, 2000])
def test_buckets_are_the_same_bits_on_every_layout(updates_over: Callable, bucket_size: int):
    gradients = _gradients(4, SIZES)

    def update(exchange: str, layout: str) -> Any:
        make = functools.partial(compressed_mean, exchange=exchange, min_size=10, bucket_size=bucket_size)
        return updates_over(make, layout)(gradients, 3)[0]

    expected = update("gather", "mesh:4")
    for exchange in EXACT:
        _assert_same(update(exchange, "mesh:1 unrolled:4"), expected)
        _assert_same(update(exchange, "mesh:2 unrolled:2"), expected)
    _assert_same(update("two_way", "mesh:2 unrolled:2"), update("two_way", "mesh:1 unrolled:4"))


@pytest.mark.parametrize(
    ("exchange", "options"),
    [
        ("gather", {"implementation": "reference"}),
        ("gather", {"block_size": 100}),
        ("sum", {"levels": 3}),
        ("scatter", {}),
        ("two_way", {}),
    ],
)
def test_pieces_are_the_same_bits_as_the_whole(updates_over: Callable, exchange: str, options: dict[str, Any]):
    """Virtual workers do not cut what they send; the others do, also within tensors and where two of them meet."""
    sizes = {"large": 2**17 + 999, "small": 50, "float": 3, "odd": 2**15 + 1, "also": 2**16 - 1}
    gradients = _gradients(4, sizes)
    make = functools.partial(
        compressed_mean, codec=Ternary(**options), exchange=exchange, min_size=10, bucket_size=2**16
    )
    _assert_same(
        updates_over(make, "mesh:4")(gradients, 3)[0], updates_over(make, "mesh:2 unrolled:2")(gradients, 3)[0]
    )


@pytest.mark.parametrize("exchange", ["scatter", "two_way"])
@pytest.mark.parametrize("num_workers", [2, 4, 6])  # an odd number has no pairs
def test_rounds_of_pairs_are_the_same_bits_as_an_all_to_all(updates_over: Callable, exchange: str, num_workers: int):
    gradients = _gradients(num_workers, SIZES)
    make = functools.partial(compressed_mean, exchange=exchange, min_size=10)
    in_pairs = functools.partial(make, network=Network(latency=1e-6, bandwidth=1e3))
    _assert_same(
        updates_over(in_pairs, f"mesh:{num_workers}")(gradients, 3)[0],
        updates_over(make, f"vmap:{num_workers}")(gradients, 3)[0],
    )


@pytest.mark.parametrize("options", [{"statistics": True}, {"delayed": True}])
def test_two_workers_of_a_large_tree_need_no_chain(workers: Callable, options: dict[str, Any]):
    """What is sent in one update and received in another, or measured between, goes bucket by bucket."""
    gradients = _gradients(2, {"large": 2**17 + 5, "small": 50})
    placed = workers("mesh:2")
    transformation = compressed_mean(placed.names[0], exchange="gather", **options)

    def twice(local: Any, _: Any) -> Any:
        first, state = transformation.update(local, transformation.init(local))
        return transformation.update(local, state)[0] if options.get("delayed") else first

    found = placed.replicated(twice, check_vma=False)(gradients, None)
    plain = compressed_mean(placed.names[0], exchange="gather")
    expected = placed.replicated(plain.update, check_vma=False)(gradients, plain.init(None))[0]
    _assert_same(found, expected)


@pytest.mark.parametrize("devices", [2, 4, 6, 10])
def test_in_rounds_of_pairs_every_two_meet_once(devices: int):
    rounds = exchange_lib.tournament(devices)
    assert all(sorted(device for pair in pairs for device in pair) == list(range(devices)) for pairs in rounds)
    met = [tuple(sorted(pair)) for pairs in rounds for pair in pairs]
    assert len(set(met)) == len(met) == devices * (devices - 1) // 2
