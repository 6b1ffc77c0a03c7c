"""Means one step late: the same as without delay, a step later; each worker's words in the state."""

import functools
import textwrap
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

import jaxtern
from jaxtern import compressed_mean, state_specs, ternary_mean

SHAPES = {"kernel": (40, 7), "bias": (3,), "head": (9,)}
OPTIONS = [
    {"exchange": "gather"},
    {"exchange": "sum", "min_size": 5},
    {"exchange": "scatter", "bucket_size": 50, "min_size": 5},
    {"exchange": "gather", "min_size": 10**6},
    {"codec": "float"},
]


def _gradients(step: int, num_workers: int = 4) -> dict[str, np.ndarray]:
    random = np.random.default_rng(step)
    return {name: random.standard_normal((num_workers, *shape)).astype(np.float32) for name, shape in SHAPES.items()}


def _run(workers: Callable, layout: str, options: dict[str, Any], num_steps: int) -> list[Any]:
    """The means of steps, with the state carried between compiled calls as training does it."""
    placed = workers(layout)
    unrolled = {} if placed.virtual_workers is None else {"virtual_workers": placed.virtual_workers}
    transformation = compressed_mean(placed.names[0], **options, **unrolled)
    specs = state_specs(placed.names[0]) if options.get("delayed") else PartitionSpec()
    own, everywhere = PartitionSpec(placed.names[0]), PartitionSpec()

    def update(gradients: Any, state: Any) -> Any:
        leaves, treedef = jax.tree.flatten(gradients)
        trees = [treedef.unflatten([leaf[i] for leaf in leaves]) for i in range(leaves[0].shape[0])]
        return transformation.update(trees if unrolled else trees[0], state)

    over = functools.partial(jax.shard_map, mesh=placed.mesh(), check_vma=False)
    params = {name: jnp.zeros(shape) for name, shape in SHAPES.items()}
    state = jax.jit(over(transformation.init, in_specs=everywhere, out_specs=specs))(params)
    step = jax.jit(over(update, in_specs=(own, specs), out_specs=(everywhere, specs)))
    means = []
    for count in range(num_steps):
        mean, state = step(_gradients(count), state)
        means.append(jax.device_get(mean))
    return means


@pytest.mark.parametrize("layout", ["mesh:4", "mesh:2 unrolled:2"])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_delayed_mean_is_that_of_the_step_before(workers: Callable, layout: str, options: dict[str, Any]):
    means = _run(workers, layout, options, 3)
    delayed = _run(workers, layout, {**options, "delayed": True}, 4)
    for leaf in jax.tree.leaves(delayed[0]):
        np.testing.assert_array_equal(leaf, 0)
    for mean, late in zip(means, delayed[1:], strict=True):
        jax.tree.map(np.testing.assert_array_equal, mean, late)


def test_a_delayed_two_way_mean_is_one_of_the_step_before(workers: Callable):
    delayed = _run(workers, "mesh:4", {"exchange": "two_way", "delayed": True}, 3)
    np.testing.assert_array_equal(delayed[0]["kernel"], 0)
    for step, late in enumerate(delayed[1:]):
        mean, gradients = late["kernel"].reshape(-1), _gradients(step)["kernel"].mean(axis=0).reshape(-1)
        assert len(np.unique(np.abs(mean))) <= 2  # trits
        assert np.corrcoef(mean, gradients)[0, 1] > 0.2


def test_the_exchange_does_not_wait_for_the_gradients(workers: Callable):
    """In the compiled step no collective of words comes after the gradients' computation in the flow of data."""
    placed = workers("mesh:4")
    transformation = compressed_mean(placed.names, exchange="gather", delayed=True)
    specs, own = state_specs(placed.names), PartitionSpec(placed.names)

    def update(x: jax.Array, state: Any) -> Any:
        return transformation.update(jnp.sin(x[0]), state)

    over = functools.partial(jax.shard_map, mesh=placed.mesh(), check_vma=False)
    start = over(transformation.init, in_specs=PartitionSpec(), out_specs=specs)
    state = jax.jit(start)(jnp.zeros(500))
    step = jax.make_jaxpr(over(update, in_specs=(own, specs), out_specs=(PartitionSpec(), specs)))
    (mapped,) = step(jnp.zeros((4, 500)), state).jaxpr.eqns
    depends: set[Any] = set()
    for equation in mapped.params["jaxpr"].eqns:
        if equation.primitive.name == "sin" or depends & {v for v in equation.invars if hasattr(v, "count")}:
            assert "all_gather" not in equation.primitive.name
            depends |= set(equation.outvars)
    assert depends


def test_a_chain_with_delayed_means_keeps_its_state_across_calls(workers: Callable):
    placed = workers("mesh:4")
    optimizer = optax.chain(compressed_mean(placed.names, delayed=True), optax.sgd(1.0))
    specs, own = (state_specs(placed.names), PartitionSpec()), PartitionSpec(placed.names)
    over = functools.partial(jax.shard_map, mesh=placed.mesh(), check_vma=True)
    params = {"w": jnp.zeros(50)}
    state = jax.jit(over(optimizer.init, in_specs=PartitionSpec(), out_specs=specs))(params)

    def step(gradients: Any, state: Any) -> Any:
        return optimizer.update({"w": gradients[0]}, state)

    compiled = jax.jit(over(step, in_specs=(own, specs), out_specs=(PartitionSpec(), specs)))
    gradients = np.random.default_rng(0).standard_normal((4, 50)).astype(np.float32)
    first, state = compiled(gradients, state)
    second, _ = compiled(gradients, state)
    np.testing.assert_array_equal(first["w"], 0)
    assert np.corrcoef(-second["w"], gradients.mean(axis=0))[0, 1] > 0.3


def test_the_example_of_state_specs_makes_a_state(workers: Callable):
    placed = workers("mesh:2")
    optimizer = optax.chain(compressed_mean(placed.names[0], delayed=True), optax.adam(1e-3))
    example = [line for line in str(state_specs.__doc__).splitlines() if line.startswith("        ")]
    names = {"optimizer": optimizer, "mesh": placed.mesh(), "params": {"w": jnp.zeros(50)}}
    names |= {"jax": jax, "jaxtern": jaxtern, "P": PartitionSpec}
    exec(textwrap.dedent("\n".join(example)).replace('"data"', repr(placed.names[0])), names)
    state: Any = names["state"]
    pending = state[0].pending
    assert not pending.local[0][0].sharding.is_fully_replicated  # each worker's own words
    assert all(scales.sharding.is_fully_replicated for scales in pending.shared)


def test_init_of_a_delayed_mean_outside_of_the_workers_is_refused():
    message = r"axis_name='data': no such axis here; .*; with delayed=True, `init` must run inside shard_map, too"
    with pytest.raises(ValueError, match=message):
        compressed_mean("data", delayed=True).init(jnp.zeros(7))


def test_a_state_of_other_gradients_is_refused():
    transformation = compressed_mean("data", delayed=True, exchange="gather")

    def step(gradients: jax.Array) -> Any:
        return transformation.update(gradients, transformation.init(jnp.zeros(7)))[0]

    with pytest.raises(ValueError, match=r"^state\.pending: not what these gradients send"):
        jax.vmap(step, axis_name="data")(jnp.ones((2, 3, 1000)))
    with pytest.raises(ValueError, match=r"^state\.pending: not what these gradients send"):
        jax.vmap(lambda g: transformation.update(g, ternary_mean("data").init(None))[0], axis_name="data")(
            jnp.ones((2, 3))
        )
