"""virtual = real: the same local gradients give the same bits however N workers lie on devices.

Every reducer on the plain layouts: test_reducers.py; exchanges, buckets and pieces by digests: test_same_bits.py.
"""

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

import jaxtern
from jaxtern import Network, compressed_mean, ternary_mean
from jaxtern.compression import collectives
from jaxtern.compression.radix import reducer as radix_reducer
from jaxtern.kernels import dispatch

pytestmark = pytest.mark.optimized

LAYOUTS = [
    ("mesh:8", "scatter"),
    ("mesh:4 vmap:2", "sum"),
    ("mesh:2 vmap:4", "scatter"),
    ("vmap:4 unrolled:2", "sum"),
    ("mesh:4 mesh:2", "gather"),
    ("vmap:4 vmap:2", "gather"),
    ("mesh:2 mesh:2 vmap:2", "sum"),
    ("pmap:8", "gather"),
    ("pmap:4 vmap:2", "sum"),
    ("pmap:4 unrolled:2", "scatter"),
]
STATELESS = {
    "float": jaxtern.float_mean(in_order=True),
    "top_k": jaxtern.top_k(0.1, feedback=False),
    "sign": jaxtern.sign(feedback=False),
}
SIZES = {"large": 2503, "small": 100, "float": 9}


def _gradients(num_workers: int, sizes: dict[str, int]) -> dict[str, Any]:
    random = np.random.default_rng(0)
    gradients = {key: random.standard_normal((num_workers, size), np.float32) for key, size in sizes.items()}
    return {**gradients, "half": jnp.asarray(gradients[min(gradients)], jnp.bfloat16), "absent": None}


def _assert_same(found: Any, reference: Any) -> None:
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(reference), strict=True):
        np.testing.assert_array_equal(a, b)


def _ternary_by(exchange: str, axis_name: Any, virtual_workers: int | None = None, **options: Any) -> Any:
    reducer = jaxtern.ternary(exchange=exchange, **options)
    return compressed_mean(axis_name, reducer, min_size=10, virtual_workers=virtual_workers)


@pytest.fixture(scope="module")
def reference(updates_over: Callable) -> Any:
    """The mean over a vmapped axis, by `gather`, in plain jnp; `sum` must give the same, and so must C."""
    make = functools.partial(_ternary_by, "gather", implementation="reference")
    return updates_over(make, "vmap:8")(_gradients(8, SIZES), 3)[0]


@pytest.mark.few("mesh:8-scatter", "mesh:4 *")
@pytest.mark.parametrize(("layout", "exchange"), LAYOUTS)
def test_means_are_the_same_bits_on_every_layout(updates_over: Callable, reference: Any, layout: str, exchange: str):
    _assert_same(updates_over(functools.partial(_ternary_by, exchange), layout)(_gradients(8, SIZES), 3)[0], reference)


@pytest.mark.few("float")
@pytest.mark.parametrize("name", STATELESS)
def test_reducers_without_state_are_the_same_bits_over_several_axes(updates_over: Callable, name: str):
    make = functools.partial(compressed_mean, reducer=STATELESS[name])
    gradients = _gradients(8, SIZES)
    expected, _ = updates_over(make, "mesh:8")(gradients)
    for layout in ("mesh:4 mesh:2", "mesh:2 vmap:2 unrolled:2"):
        _assert_same(updates_over(make, layout)(gradients)[0], expected)


@pytest.mark.parametrize("layout", ["mesh:8 unrolled:2", pytest.param("pmap:4 vmap:4", marks=pytest.mark.slow)])
def test_more_than_8_workers_gather_to_the_same_bits(updates_over: Callable, layout: str):
    make = functools.partial(compressed_mean, reducer=jaxtern.quantized(3, block_size=100, exchange="gather"))
    gradients = _gradients(16, {"small": 1001, "one": 1})
    _assert_same(updates_over(make, layout)(gradients)[0], updates_over(make, "vmap:16")(gradients)[0])


@pytest.mark.few("gather-mesh:4*")
@pytest.mark.parametrize("layout", ["mesh:4 unrolled:2", "mesh:2 mesh:2"])
@pytest.mark.parametrize("exchange", ["gather", "sum", "scatter", "two_way"])
def test_shard_map_with_check_vma_knows_that_the_mean_is_replicated(
    workers: Callable, updates_over: Callable, layout: str, exchange: str
):
    placed = workers(layout)
    make = functools.partial(compressed_mean, reducer=jaxtern.ternary(exchange=exchange), min_size=10, statistics=True)
    transformation = make(placed.names, virtual_workers=placed.virtual_workers)
    gradients = _gradients(placed.size, {"small": 333, "float": 3})
    compiled = placed.replicated(transformation.update, check_vma=True)
    mean, state = jax.device_get(compiled(gradients, transformation.init(None)))
    expected = updates_over(make, f"vmap:{placed.size}")(gradients)
    _assert_same(mean, jax.tree.map(lambda x: x[0], expected[0]))
    for found, wanted in zip(jax.tree.leaves(state), jax.tree.leaves(expected[1]), strict=True):
        np.testing.assert_allclose(found, wanted[0], rtol=1e-5)


@pytest.mark.few("top_k", "fast float")
@pytest.mark.parametrize(
    ("reducer", "options"),
    [
        pytest.param(jaxtern.top_k(0.3), {}, id="top_k"),
        pytest.param(jaxtern.low_rank(1), {}, id="low_rank"),
        pytest.param(jaxtern.sign(two_way=True), {}, id="sign"),
        pytest.param(jaxtern.ternary(exchange="two_way", error_feedback=True), {}, id="two_way"),
        pytest.param(jaxtern.ternary(), {"delayed": True}, id="delayed"),
        pytest.param("float", {"fast_axis_name": "axis1"}, id="fast float"),
    ],
)
def test_a_state_is_made_and_carried_in_one_program_that_shard_map_checks(
    workers: Callable, reducer: Any, options: dict[str, Any]
):
    transformation = compressed_mean("axis0", reducer, **options)

    def step(gradient: jax.Array, _: Any) -> Any:
        tree = {"w": gradient}
        return jax.lax.scan(
            lambda state, _: transformation.update(tree, state)[::-1], transformation.init(tree), length=3
        )

    gradients = np.random.default_rng(3).standard_normal((4, 8, 8)).astype(np.float32)
    placed = workers("mesh:2 mesh:2" if options.get("fast_axis_name") else "mesh:4")
    _assert_same(*(placed.over(step, check_vma=check)(gradients, None)[1] for check in (True, False)))


@pytest.mark.parametrize(
    "reducer", [*(jaxtern.ternary(exchange=e) for e in ("gather", "sum", "scatter", "two_way")), "sign"]
)
def test_more_workers_than_devices_here_trace_with_check_vma(reducer: Any):
    mesh = AbstractMesh((128,), ("data",), axis_types=(AxisType.Auto,))
    transformation = compressed_mean("data", reducer, min_size=2)

    def step(gradient: jax.Array) -> Any:
        tree = {"a": gradient, "b": gradient[:1]}
        mean, state = transformation.update(tree, transformation.init(tree))
        return mean, state.count

    mapped = jax.shard_map(step, mesh=mesh, in_specs=PartitionSpec("data"), out_specs=PartitionSpec())
    mean, count = jax.eval_shape(mapped, jax.ShapeDtypeStruct((1280,), jnp.float32))
    assert (mean["a"].shape, mean["b"].shape, count.shape) == ((10,), (1,), ())


@pytest.mark.few("False")
@pytest.mark.parametrize("check_vma", [True, False])
def test_a_mean_over_one_of_two_axes_leaves_the_other_alone(workers: Callable, updates_over: Callable, check_vma: bool):
    gradients = np.random.default_rng(1).standard_normal((8, 200)).astype(np.float32)
    placed = workers("mesh:4 mesh:2")
    transformation = ternary_mean(placed.names[0])
    mean, _ = placed.over(transformation.update, check_vma=check_vma)(gradients, transformation.init(None))
    alone = updates_over(ternary_mean, "vmap:4")
    for column in (0, 1):
        np.testing.assert_array_equal(mean[column::2], alone(gradients[column::2])[0])


@pytest.mark.few("gather*")
@pytest.mark.parametrize(
    ("exchange", "layout", "fast"),
    [
        ("gather", "mesh:2 mesh:4", 1),
        ("sum", "mesh:4 mesh:2", 0),
        ("scatter", "mesh:3 mesh:2", 1),
        ("two_way", "mesh:2 mesh:4", 1),
        ("two_way", "mesh:4 mesh:2", 0),
    ],
)
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
    make = functools.partial(ternary_mean, placed.names[1 - fast], fast_axis_name=placed.names[fast], **options)
    flat = {k: x.reshape(placed.size, -1) for k, x in gradients.items()}
    means = {k: x.mean(axis=fast) for k, x in gradients.items()}
    expected, _ = updates_over(functools.partial(ternary_mean, **options), f"vmap:{shape[1 - fast]}")(means)
    for check_vma in (True, False):
        found = placed.replicated(make().update, check_vma=check_vma)(flat, make().init(None))[0]
        _assert_same(jax.device_get(found), jax.tree.map(lambda x: x[0], expected))


@pytest.mark.slow
def test_pieces_in_plain_jnp_are_the_same_bits_as_the_whole(updates_over: Callable):
    """Virtual workers do not cut what they send; the others do, also within tensors and where two of them meet."""
    sizes = {"large": 2**17 + 999, "small": 50, "float": 3, "odd": 2**15 + 1, "also": 2**16 - 1}
    make = functools.partial(_ternary_by, "gather", bucket_size=2**16)
    pieces = updates_over(functools.partial(make, implementation="reference"), "mesh:4")
    gradients = _gradients(4, sizes)
    _assert_same(pieces(gradients, 3)[0], updates_over(make, "mesh:2 unrolled:2")(gradients, 3)[0])


@pytest.mark.slow
@pytest.mark.parametrize(("exchange", "joins"), [("sum", True), ("two_way", False)])
def test_a_lone_gpu_joins_all_buckets_and_changes_no_bit(
    updates_over: Callable, monkeypatch: pytest.MonkeyPatch, exchange: str, joins: bool
):
    """With statistics, for which own tensors are decoded, too. Tiles of "two_way" have scales, so they stay apart."""
    reducer = functools.partial(jaxtern.ternary, exchange=exchange, bucket_size=40)
    make = functools.partial(compressed_mean, min_size=10, statistics=True)
    gradients = _gradients(2, {"large": 1025, "small": 40, "empty": 0, "float": 9})
    apart = updates_over(functools.partial(make, reducer=reducer()), "mesh:2")(gradients, 3)[0]
    lone = updates_over(functools.partial(make, reducer=reducer(implementation="reference")), "mesh:1 unrolled:2")
    monkeypatch.setattr(dispatch, "device", lambda: SimpleNamespace(platform="gpu", device_kind="no NVIDIA"))
    joined = mock.Mock(wraps=radix_reducer.join_buckets)
    monkeypatch.setattr(radix_reducer, "join_buckets", joined)
    _assert_same(lone(gradients, 3)[0], apart)
    assert joined.called == joins
    assert not joins or len(joined.call_args.args[0]) == 2  # buckets


@pytest.mark.few("two_way-4")
@pytest.mark.parametrize(("exchange", "num_workers"), [("scatter", 2), ("two_way", 4), ("scatter", 6)])
def test_rounds_of_pairs_are_the_same_bits_as_an_all_to_all(updates_over: Callable, exchange: str, num_workers: int):
    gradients = _gradients(num_workers, SIZES)
    in_pairs = functools.partial(_ternary_by, exchange, network=Network(latency=1e-6, bandwidth=1e3))
    _assert_same(
        updates_over(in_pairs, f"mesh:{num_workers}")(gradients, 3)[0],
        updates_over(functools.partial(_ternary_by, exchange), f"vmap:{num_workers}")(gradients, 3)[0],
    )


def test_statistics_of_a_large_tree_need_no_chain_and_change_no_bit(workers: Callable):
    """What is measured between goes bucket by bucket; else two workers' words are encoded and decoded in place."""
    gradients = _gradients(2, {"large": 2**17 + 5, "small": 50})
    placed = workers("mesh:2")
    make = functools.partial(compressed_mean, placed.names[0], jaxtern.ternary(exchange="gather"))
    measured, plain = make(statistics=True), make()
    found, expected = (
        placed.replicated(each.update, check_vma=False)(gradients, each.init(None))[0] for each in (measured, plain)
    )
    _assert_same(found, expected)


@pytest.mark.parametrize("devices", [2, 4, 6, 10])
def test_in_rounds_of_pairs_every_two_meet_once(devices: int):
    rounds = collectives.tournament(devices)
    assert all(sorted(device for pair in pairs for device in pair) == list(range(devices)) for pairs in rounds)
    met = [tuple(sorted(pair)) for pairs in rounds for pair in pairs]
    assert len(set(met)) == len(met) == devices * (devices - 1) // 2


def test_updates_are_counted_on_from_0_after_2_to_the_31(workers: Callable):
    transformation = compressed_mean("axis0", jaxtern.dgc(0.5))

    def step(gradient: jax.Array, _: Any) -> Any:
        state = transformation.init(gradient)
        _, state = transformation.update(gradient, state._replace(count=state.count + (2**31 - 1)))
        return transformation.update(gradient, state)

    gradients = np.random.default_rng(3).standard_normal((2, 64)).astype(np.float32)
    mean, state = workers("mesh:2").over(step)(gradients, None)
    assert np.isfinite(mean).all()
    np.testing.assert_array_equal(state.count, 1)
