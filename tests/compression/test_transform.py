"""What holds for every codec, exchange and option: one table of transformations, one list of claims."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtern
from jaxtern import CompressedMeanState, Ternary, compressed_mean, ternary_mean

NUM_WORKERS = 4
TRANSFORMATIONS = {
    "ternary_mean": ternary_mean,
    "gather": functools.partial(compressed_mean, exchange="gather"),
    "sum": functools.partial(compressed_mean, exchange="sum"),
    "pow2": functools.partial(ternary_mean, scale="pow2"),
    "pow2 sum": functools.partial(ternary_mean, scale="pow2", exchange="sum"),
    "blocks": functools.partial(ternary_mean, block_size=16),
    "blocks sum": functools.partial(ternary_mean, block_size=7, exchange="sum"),
    "2 levels": functools.partial(ternary_mean, levels=2),
    "127 levels sum": functools.partial(ternary_mean, levels=127, exchange="sum"),
    "no clipping": functools.partial(ternary_mean, clip_sigmas=0),
    "min_size": functools.partial(ternary_mean, min_size=50),
    "min_size sum": functools.partial(ternary_mean, min_size=50, exchange="sum"),
    "excluded": functools.partial(ternary_mean, exclude=lambda path: "kernel" in path),
    "all excluded": functools.partial(ternary_mean, exclude=lambda path: True),  # noqa: ARG005
    "statistics": functools.partial(compressed_mean, statistics=True),
    "statistics sum": functools.partial(compressed_mean, statistics=True, exchange="sum"),
    "float exchange": functools.partial(ternary_mean, exchange="float"),
    "float codec": functools.partial(compressed_mean, codec="float"),
}
DETERMINISTIC = {"all excluded", "float exchange", "float codec"}


def _gradients(seed: int) -> dict[str, Any]:
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


class Run(NamedTuple):
    name: str
    gradients: Any
    update: Callable[..., tuple[Any, CompressedMeanState]]
    mean: Any
    state: CompressedMeanState


@pytest.fixture(scope="module", params=TRANSFORMATIONS)
def run(request: pytest.FixtureRequest, updates_over: Callable) -> Run:
    update, gradients = updates_over(TRANSFORMATIONS[request.param], f"vmap:{NUM_WORKERS}"), _gradients(0)
    return Run(request.param, gradients, update, *update(gradients, 3))


def _same(a: Any, b: Any) -> bool:
    return all(
        np.array_equal(x, y, equal_nan=True) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def test_updates_keep_structure_shapes_and_dtypes(run: Run):
    assert jax.tree.structure(run.mean) == jax.tree.structure(run.gradients)
    described = [jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (run.mean, run.gradients)]
    assert described[0] == described[1]


def test_every_worker_holds_the_same_bits(run: Run):
    for leaf in jax.tree.leaves((run.mean, run.state)):
        for worker in range(1, NUM_WORKERS):
            np.testing.assert_array_equal(leaf[worker], leaf[0])


def test_the_same_step_gives_the_same_bits_and_another_step_others(run: Run):
    assert _same(run.update(run.gradients, 3)[0], run.mean)
    assert _same(run.update(run.gradients, 4)[0], run.mean) == (run.name in DETERMINISTIC)


def test_state_counts_the_steps_and_keeps_its_structure(run: Run):
    start = TRANSFORMATIONS[run.name]("data").init({"ignored": jnp.zeros(3)})
    assert isinstance(start, CompressedMeanState)
    assert start.count == 0
    assert jax.tree.structure(start) == jax.tree.structure(run.state)
    for before, after in zip(jax.tree.leaves(start), jax.tree.leaves(run.state), strict=True):
        assert after.dtype == before.dtype
        assert after.shape == (NUM_WORKERS, *before.shape)
    np.testing.assert_array_equal(run.state.count, 4)


def test_zero_gradients_give_zero(run: Run):
    mean, _ = run.update(jax.tree.map(jnp.zeros_like, run.gradients))
    for leaf in jax.tree.leaves(mean):
        np.testing.assert_array_equal(leaf.astype(np.float32), 0)


def test_the_mean_lies_within_the_largest_gradient_or_its_power_of_two(run: Run):
    for found, leaf in zip(jax.tree.leaves(run.mean), jax.tree.leaves(run.gradients), strict=True):
        if leaf.size:
            largest = np.abs(np.asarray(leaf, np.float32)).max()
            assert np.abs(found.astype(np.float32)).max() <= largest * (2.0 if "pow2" in run.name else 1.01)


def test_what_stays_float_is_the_float_mean_and_nothing_else_is(run: Run):
    stays_float = {
        "min_size": lambda path, size: size < 50,  # noqa: ARG005
        "min_size sum": lambda path, size: size < 50,  # noqa: ARG005
        "excluded": lambda path, size: "kernel" in path,  # noqa: ARG005
    }.get(run.name, lambda path, size: run.name in DETERMINISTIC)  # noqa: ARG005
    leaves, _ = jax.tree_util.tree_flatten_with_path(run.gradients)
    for (path, leaf), found in zip(leaves, jax.tree.leaves(run.mean), strict=True):
        size = leaf.size // NUM_WORKERS
        mean = np.asarray(leaf, np.float32).mean(axis=0)
        eps = float(jnp.finfo(leaf.dtype).eps)
        near = np.allclose(found[0].astype(np.float32), mean, rtol=eps, atol=4 * eps)
        assert near == bool(stays_float(jax.tree_util.keystr(path), size) or not size)


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_another_seed_gives_other_noise(updates_over: Callable, seed: int):
    reference, _ = updates_over(functools.partial(ternary_mean, seed=5), "vmap:4")(_gradients(0))
    mean, _ = updates_over(functools.partial(ternary_mean, seed=seed), "vmap:4")(_gradients(0))
    assert not _same(mean, reference)


@pytest.mark.parametrize(
    ("options", "codec"),
    [
        ({}, Ternary()),
        ({"clip_sigmas": 1.0, "scale": "pow2", "block_size": 5, "levels": 3}, Ternary(1.0, "pow2", 5, 3)),
    ],
)
def test_ternary_mean_is_compressed_mean_with_the_ternary_codec(updates_over: Callable, options: dict, codec: Ternary):
    mean, _ = updates_over(functools.partial(ternary_mean, **options), "vmap:4")(_gradients(0))
    general, _ = updates_over(functools.partial(compressed_mean, codec=codec), "vmap:4")(_gradients(0))
    assert _same(mean, general)


def test_a_chain_with_an_optimiser_moves_all_replicas_alike(workers: Callable):
    placed = workers("mesh:4")
    optimizer = optax.chain(jaxtern.ternary_mean(placed.names[0]), optax.sgd(0.1, momentum=0.9))
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
