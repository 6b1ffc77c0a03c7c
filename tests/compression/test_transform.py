"""What the transformation does around a reducer: which tensors go to it, arguments, and how it chains with optax."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec as P

import jaxtern
from jaxtern import compressed_mean, ternary, ternary_mean
from jaxtern.compression.transform import layout_of

NUM_WORKERS = 4


def _gradients(seed: int = 0) -> dict[str, Any]:
    """Local gradients of NUM_WORKERS workers; leaves [N, ...]."""
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(random.standard_normal((NUM_WORKERS, *shape)), jnp.float32)

    return {
        "conv": {"kernel": normal(3, 3, 2, 5), "bias": normal(5)},
        "absent": None,
        "half": [normal(130).astype(jnp.bfloat16), normal(3, 4).astype(jnp.float16)],
        "scalar": normal(),
        "empty": normal(0, 4),
    }


def _assert_same(a: Any, b: Any) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.few("options0*")
@pytest.mark.parametrize(
    ("options", "is_float"),
    [
        ({"min_size": 12}, lambda path, size: size < 12),  # noqa: ARG005
        ({"exclude": lambda path: path.startswith("half/")}, lambda path, size: path.startswith("half/")),  # noqa: ARG005
        ({"min_size": 10**6}, lambda path, size: True),  # noqa: ARG005
        ({}, lambda path, size: False),  # noqa: ARG005
    ],
)
def test_small_and_excluded_tensors_are_the_float_mean_and_no_others(
    updates_over: Callable, options: dict, is_float: Callable
):
    gradients = _gradients()
    mean, _ = updates_over(functools.partial(ternary_mean, **options), "vmap:4")(gradients)
    leaves, _ = jax.tree_util.tree_flatten_with_path(gradients)
    for (path, leaf), found in zip(leaves, jax.tree.leaves(mean), strict=True):
        assert (found.shape, found.dtype) == (leaf.shape, leaf.dtype)
        rows = np.asarray(leaf, np.float32)
        expected = np.asarray((((rows[0] + rows[1]) + rows[2]) + rows[3]) / 4).astype(leaf.dtype)
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        assert np.array_equal(found[0], expected) == (is_float(name, leaf[0].size) or not leaf.size)


def test_exclude_sees_paths(updates_over: Callable):
    seen = []
    gradients = _gradients()
    make = functools.partial(ternary_mean, exclude=lambda path: seen.append(path) or path == "scalar")
    updates_over(make, "vmap:4")(gradients)
    assert set(seen) == {"conv/bias", "conv/kernel", "empty", "half/0", "half/1", "scalar"}


@pytest.mark.parametrize(
    "reducer",
    [
        jaxtern.dgc(0.5, momentum=0.5),
        jaxtern.momentum_correction(jaxtern.top_k(0.5, feedback=False), 0.5),
        jaxtern.partition([], jaxtern.dgc(0.5, momentum=0.5)),
    ],
    ids=["dgc", "momentum_correction", "partition"],
)
def test_tensors_that_stay_float_go_a_reducers_own_way(reducer: jaxtern.Reducer):
    """They take momentum, too."""

    def twice(local: Any) -> Any:
        transformation = compressed_mean("data", reducer, min_size=10**6)
        first, state = transformation.update(local, transformation.init(local))
        return first, transformation.update(local, state)[0]

    first, second = jax.vmap(twice, axis_name="data")(_gradients()["conv"])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b, 1.5 * a, atol=1e-6), first, second)


@pytest.mark.parametrize("fast", [jaxtern.float_mean(), jaxtern.partition([], jaxtern.float_mean())])
def test_hierarchical_averages_what_stays_float_over_all_devices(fast: jaxtern.Reducer):
    reducer = jaxtern.hierarchical(fast, ternary(), "fast")
    transformation = compressed_mean("data", reducer, min_size=1000)

    def on_device(own: Any) -> Any:
        return transformation.update(own, transformation.init(own))[0]

    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "fast"), axis_types=(AxisType.Auto,) * 2)
    own = P(("data", "fast"))
    run = jax.jit(jax.shard_map(on_device, mesh=mesh, in_specs=own, out_specs=own, check_vma=False))
    small = np.arange(4 * 9, dtype=np.float32).reshape(4, 9)
    found = run({"small": small, "large": np.ones((4, 2000), np.float32)})
    np.testing.assert_array_equal(found["small"], np.broadcast_to(small.mean(axis=0), (4, 9)))
    np.testing.assert_array_equal(*np.broadcast_arrays(found["large"], found["large"][:1]))


def test_hierarchical_of_ternary_devices_draws_noise_of_its_own():
    """The mean of 100 steps is as far off as independent errors are; were noise shared, it would be 20 times as far."""
    gradients = np.random.default_rng(0).standard_normal((2, 2, 4096)).astype(np.float32) / 2
    gradients += (mean := gradients.mean((0, 1)))
    transformation = compressed_mean("data", jaxtern.hierarchical(ternary(), ternary(), "fast"))

    def on_device(own: jax.Array) -> Any:
        def step(state: Any, _: None) -> Any:
            found, state = transformation.update(own[0, 0], state)
            return state, found

        return jax.lax.scan(step, transformation.init(own[0, 0]), length=100)[1]

    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "fast"), axis_types=(AxisType.Auto,) * 2)
    specs = {"in_specs": P("data", "fast"), "out_specs": P()}
    errors = jax.jit(jax.shard_map(on_device, mesh=mesh, check_vma=False, **specs))(gradients) - 2 * mean[None]
    assert np.mean(np.mean(errors, axis=0) ** 2) < 1.5 * np.mean(errors**2) / 100


@pytest.mark.parametrize("reducer", [ternary(exchange="two_way"), ternary(implementation="reference")])
def test_the_mean_has_the_same_bits_where_jax_takes_64_bits_by_default(updates_over: Callable, reducer: Any):
    gradients = np.random.default_rng(0).standard_normal((NUM_WORKERS, 90_300)).astype(np.float32)
    transformation = functools.partial(compressed_mean, reducer=reducer)
    expected, _ = updates_over(transformation, "vmap:4")(gradients)
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        found, _ = updates_over(transformation, "vmap:4")(gradients)
    np.testing.assert_array_equal(found, expected)


def test_a_vmapped_axis_may_have_the_name_of_an_axis_of_the_mesh():
    gradients = jax.tree.map(lambda x: x[:2], _gradients()["conv"])  # of two workers, which would swap words as a pair
    transformation = compressed_mean("data", ternary(exchange="scatter"))

    def mean(own: Any) -> Any:
        return transformation.update(own, transformation.init(own))[0]

    expected = jax.vmap(mean, axis_name="data")(gradients)
    with jax.set_mesh(Mesh(np.array(jax.devices()[:2]), ("data",), axis_types=(AxisType.Auto,))):
        found = jax.jit(jax.vmap(mean, axis_name="data", spmd_axis_name="data"))(gradients)
    _assert_same(found, expected)


def test_a_key_among_the_weights_is_named_when_it_has_a_gradient():
    tree = {"rng": jax.random.key(0), "w": jnp.ones(3)}
    transformation = ternary_mean("data")
    state = transformation.init(tree)  # as that of a whole `nnx.state`
    with pytest.raises(ValueError, match=r"gradient 'rng' is key<fry>: only floating-point gradients can be averaged"):
        jax.vmap(lambda _: transformation.update(tree, state), axis_name="data")(jnp.zeros(2))


def test_the_state_of_dgc_varies_alike_before_and_after_an_update_of_an_empty_tensor():
    transformation = compressed_mean("data", jaxtern.dgc(0.5))
    weights = {"empty": jnp.ones((0, 4)), "kernel": jnp.ones((4, 4))}

    def steps(tree: Any) -> Any:
        tree = jax.lax.pcast(tree, "data", to="varying")

        def one(state: Any, _: None) -> tuple[Any, Any]:
            mean, state = transformation.update(tree, state)
            return state, mean

        return jax.lax.scan(one, transformation.init(tree), length=2)[1]

    run = jax.shard_map(steps, mesh=Mesh(jax.devices()[:2], "data"), in_specs=P(), out_specs=P())
    assert jax.jit(run)(weights)["empty"].shape == (2, 0, 4)


@pytest.mark.parametrize("name", ["top_k", "dgc", "low_rank"])
def test_jax_scalars_are_numbers_and_traced_ones_are_refused(name: str):
    argument = "min_ratio" if name == "low_rank" else "density"
    make = functools.partial(getattr(jaxtern, name), **({"rank": 1} if name == "low_rank" else {}))

    def mean(number: Any) -> Any:
        transformation = compressed_mean("data", make(**{argument: number}))
        own = {"a": _gradients()["conv"]["kernel"].reshape(NUM_WORKERS, 9, 10)}
        return jax.vmap(lambda tree: transformation.update(tree, transformation.init(tree))[0], axis_name="data")(own)

    _assert_same(mean(jnp.float32(0.5)), mean(0.5))
    with pytest.raises(ValueError, match=f"{argument} is traced: must be known when a program is compiled"):
        jax.jit(lambda number: make(**{argument: number}))(0.5)


def test_numpy_and_python_numbers_are_tensors_too():
    layout = layout_of({"a": np.float32(1.5), "b": 2.5, "c": np.array([3.5], np.float32), "d": None})
    assert layout.paths == ("a", "b", "c")
    assert layout.shapes == ((), (), (1,))
    assert set(layout.dtypes) == {jnp.dtype("float32")}


def test_another_seed_gives_other_noise():
    """Of one program, as a seed may be traced; the largest one too."""

    def mean(own: jax.Array, seed: jax.Array) -> Any:
        transformation = ternary_mean("data", seed=seed)
        return transformation.update(own, transformation.init(own))[0]

    compiled = jax.jit(jax.vmap(mean, in_axes=(0, None), axis_name="data"))
    gradients = _gradients()["conv"]["kernel"]
    found = [np.asarray(compiled(gradients, np.uint32(seed)))[0] for seed in (0, 1, 5, 2**32 - 1)]
    assert len({each.tobytes() for each in found}) == 4
    plain = ternary_mean("data", seed=2**32 - 1)
    fixed = jax.jit(jax.vmap(lambda x: plain.update(x, plain.init(x))[0], axis_name="data"))(gradients)
    np.testing.assert_array_equal(fixed[0], found[-1])


@pytest.mark.few("options0")
@pytest.mark.parametrize("options", [{}, {"clip_sigmas": 1.0, "block_size": 5, "levels": 3, "rotation": False}])
def test_ternary_mean_is_compressed_mean_with_quantized(updates_over: Callable, options: dict):
    mean, _ = updates_over(functools.partial(ternary_mean, **options), "vmap:4")(_gradients())
    reducer = jaxtern.quantized(**({"levels": 1} | options)) if options else "ternary"
    general, _ = updates_over(functools.partial(compressed_mean, reducer=reducer), "vmap:4")(_gradients())
    _assert_same(mean, general)


def test_numpy_and_jax_scalars_are_numbers(updates_over: Callable):
    gradients = _gradients()["conv"]
    plain = {"clip_sigmas": 1.5, "seed": 3, "levels": 2, "block_size": 7, "min_size": 6}
    expected, _ = updates_over(functools.partial(ternary_mean, **plain), "vmap:4")(gradients)
    kinds = {
        "clip_sigmas": np.float32,
        "seed": np.int32,
        "levels": np.int64,
        "block_size": np.uint8,
        "min_size": np.int16,
    }
    for kind in (kinds, dict.fromkeys(kinds, jnp.int32) | {"clip_sigmas": jnp.float32, "seed": jnp.uint32}):
        options = {name: kind[name](value) for name, value in plain.items()}
        found, _ = updates_over(functools.partial(ternary_mean, **options), "vmap:4")(gradients)
        _assert_same(found, expected)


def test_inject_hyperparams_schedules_clip_sigmas(updates_over: Callable):
    gradients = {"kernel": _gradients()["conv"]["kernel"]}
    injected = optax.inject_hyperparams(
        ternary_mean,
        static_args=(
            "axis_name",
            "min_size",
            "exclude",
            "block_size",
            "levels",
            "rotation",
            "rounding",
            "exchange",
            "fast_axis_name",
            "network",
        ),
    )("data", clip_sigmas=optax.piecewise_constant_schedule(1.0, {1: 3.0}), rotation=False, seed=7)

    def twice(local: Any) -> Any:
        state = injected.init(local)
        first, state = injected.update(local, state)
        return first, injected.update(local, state)[0]

    with jax.numpy_dtype_promotion("standard"):  # which optax' schedules need
        found = jax.jit(jax.vmap(twice, axis_name="data"))(gradients)
    for step, (mean, clip_sigmas) in enumerate(zip(found, (1.0, 3.0), strict=True)):
        make = functools.partial(ternary_mean, clip_sigmas=clip_sigmas, rotation=False, seed=7)
        _assert_same(jax.device_get(mean), updates_over(make, "vmap:4")(gradients, step)[0])


def test_a_static_argument_that_is_injected_is_refused_by_name():
    injected = optax.inject_hyperparams(ternary_mean, static_args=("axis_name", "exchange"))("data", levels=3)
    gradients = jnp.ones((2, 3))
    with pytest.raises(
        ValueError, match=r"^levels is traced: must be known when a program is compiled; name it in the"
    ):
        jax.jit(jax.vmap(lambda x: injected.update(x, injected.init(x))[0], axis_name="data"))(gradients)


def test_a_chain_with_an_optimiser_moves_all_replicas_alike(workers: Callable):
    placed = workers("mesh:4")
    optimizer = optax.chain(ternary_mean(placed.names[0]), optax.sgd(0.1, momentum=0.9))
    params = {"w": jnp.zeros((7, 3))}

    def step(gradients: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        params, state = carry
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    gradients = {"w": jnp.asarray(np.random.default_rng(0).standard_normal((4, 7, 3)), jnp.float32)}
    carry, compiled = (params, optimizer.init(params)), placed.replicated(step)
    for count in (1, 2):
        carry = compiled(gradients, carry)
        assert carry[1][0].count == count
    assert carry[0]["w"].sharding.is_fully_replicated
    correlation = np.sum(np.asarray(carry[0]["w"]) * np.asarray(gradients["w"]).mean(axis=0))
    assert correlation < 0
