"""Means one step late: exchanged beside the computation, each worker's tensors in the state.

That they are those of the step before, to the bit: test_reducers.py.
"""

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
from jaxtern import compressed_mean, state_specs
from jaxtern.compression.methods import as_reducer

pytestmark = pytest.mark.optimized


def test_delayed_keeps_what_another_reducer_averaged_in_the_dtypes_of_the_gradients(workers: Callable):
    fast, slow = jaxtern.float_mean(in_order=True), jaxtern.delayed(jaxtern.float_mean())
    transformation = compressed_mean("axis0", jaxtern.hierarchical(fast, slow, "axis1"))
    gradients = jnp.arange(12.0, dtype=jnp.bfloat16).reshape(4, 3)

    def step(own: jax.Array, _: Any) -> Any:
        state = transformation.update(own, transformation.init(own))[1]
        return transformation.update(jnp.zeros_like(own), state)[0]

    means = workers("mesh:2 mesh:2").over(step)(gradients, ())
    np.testing.assert_array_equal(means, np.broadcast_to(np.float32([4.5, 5.5, 6.5]), (4, 3)))


@pytest.mark.few("ternary", "float")
@pytest.mark.parametrize("reducer", ["ternary", "float", "dgc", jaxtern.ternary(exchange="two_way")])
def test_delayed_wraps_the_reducer_and_what_stays_float(reducer: Any):
    """Over vmapped workers: zero, then the means of the steps before, of large tensors and small ones."""
    gradients = {
        name: np.random.default_rng(0).standard_normal((3, 4, n), np.float32) for name, n in [("a", 50), ("b", 3)]
    }

    def run(reducer: Any, **options: Any) -> Any:
        transformation = compressed_mean("data", reducer, min_size=5, seed=1, **options)

        def steps(own: Any) -> Any:
            def step(state: Any, tree: Any) -> Any:
                mean, state = transformation.update(tree, state)
                return state, mean

            return jax.lax.scan(step, transformation.init(jax.tree.map(lambda x: x[0], own)), own)[1]

        means = jax.jit(jax.vmap(steps, in_axes=1, out_axes=1, axis_name="data"))(gradients)
        return [jax.tree.map(lambda x, s=step: x[s], means) for step in range(3)]

    plain = run(reducer)
    for late in (run(reducer, delayed=True), run(jaxtern.delayed(as_reducer(reducer)))):
        jax.tree.map(lambda x: np.testing.assert_array_equal(x, 0), late[0])
        jax.tree.map(np.testing.assert_array_equal, late[1:], plain[:-1])


def test_the_exchange_does_not_wait_for_the_gradients(workers: Callable):
    """In the compiled step no collective of words comes after the gradients' computation in the flow of data."""
    placed = workers("mesh:4")
    transformation = compressed_mean(placed.names, jaxtern.ternary(exchange="gather"), delayed=True)
    specs, own = state_specs(placed.names), PartitionSpec(placed.names)

    def update(x: jax.Array, state: Any) -> Any:
        return transformation.update(jnp.sin(x[0]), state)

    over = functools.partial(jax.shard_map, mesh=placed.mesh(), check_vma=False)
    start = over(transformation.init, in_specs=PartitionSpec(), out_specs=specs)
    state = jax.jit(start)(jnp.zeros(500))
    step = jax.make_jaxpr(over(update, in_specs=(own, specs), out_specs=(PartitionSpec(), specs)))
    (mapped,) = step(jnp.zeros((4, 500)), state).jaxpr.eqns
    depends: set[Any] = set()
    gathers = 0
    for equation in mapped.params["jaxpr"].eqns:
        is_gather = "all_gather" in equation.primitive.name
        if equation.primitive.name == "sin" or depends & {v for v in equation.invars if hasattr(v, "count")}:
            assert not is_gather
            depends |= set(equation.outvars)
        gathers += is_gather
    assert depends
    assert gathers


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
    optimizer = optax.chain(compressed_mean(placed.names[0], jaxtern.low_rank(4)), optax.sgd(1e-3))
    example = [line for line in str(state_specs.__doc__).splitlines() if line.startswith("        ")]
    names = {"optimizer": optimizer, "mesh": placed.mesh(), "params": {"w": jnp.zeros((50, 60))}}
    names |= {"jax": jax, "jaxtern": jaxtern, "P": PartitionSpec}
    exec(textwrap.dedent("\n".join(example[:2])).replace('"data"', repr(placed.names[0])), names)
    state: Any = names["state"]
    (error,) = state[0].local[0]
    (factor,) = state[0].shared
    assert error.shape == (2, 50, 60)  # each worker's own error
    assert not error.sharding.is_fully_replicated
    assert factor.sharding.is_fully_replicated
