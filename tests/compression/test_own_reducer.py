"""The reducer of docs/examples/random_k.py, outside of the package, works like those inside."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import jaxtern

pytestmark = pytest.mark.optimized

SHAPES = {"kernel": (30, 20), "bias": (7,), "scalar": (), "empty": (0, 3)}
NUM_STEPS, DENSITY = 6, 0.1


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The names of its file."""
    return runpy.run_path(str(Path(__file__).parents[2] / "docs/examples/random_k.py"))


def _gradients(num_workers: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {name: random.standard_normal((num_workers, *shape), np.float32) for name, shape in SHAPES.items()}


def _run(workers: Callable, layout: str, reducer: jaxtern.Reducer, **options: Any) -> Any:
    """Means of all steps, and the last local state, of every worker."""
    placed = workers(layout)
    transformation = jaxtern.compressed_mean(placed.names, reducer, virtual_workers=placed.virtual_workers, **options)

    def steps(local: Any, _: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            mean, state = transformation.update(local, state)
            return state._replace(statistics=None), (mean, state.statistics)

        first = transformation.init(local if placed.virtual_workers is None else local[0])
        state, (means, statistics) = jax.lax.scan(step, first._replace(statistics=None), length=NUM_STEPS)
        return means, jax.tree.map(lambda x: x.mean(axis=0), state.local), statistics

    means, *others = placed.over(steps)(_gradients(placed.size), None)
    return [jax.tree.map(lambda x, s=step: x[:, s], means) for step in range(NUM_STEPS)], *others


def test_random_k_sends_random_elements_and_feedback_loses_none(workers: Callable, page: dict[str, Any]):
    means, (errors, _), statistics = _run(workers, "mesh:4", page["REDUCER"], statistics=True)
    np.testing.assert_allclose(statistics.zero_fraction, 1 - (60 + 1 + 1) / 608, rtol=1e-3)
    chosen = [set(np.flatnonzero(mean["kernel"][0])) for mean in means]
    assert [len(places) for places in chosen] == [60] * NUM_STEPS
    assert len(set.union(*chosen)) > 200  # others in every step
    assert means[0]["empty"].shape == (4, 0, 3)
    for (name, gradients), error in zip(sorted(_gradients(4).items()), errors, strict=True):
        total = sum(mean[name][0].astype(np.float64) for mean in means) + error.mean(axis=0)
        np.testing.assert_allclose(total, NUM_STEPS * gradients.mean(axis=0), rtol=1e-4, atol=1e-5)


def test_random_k_is_the_same_bits_on_every_layout(workers: Callable, page: dict[str, Any]):
    expected, *_ = _run(workers, "mesh:4", page["REDUCER"])
    for layout in ("mesh:2 unrolled:2", "vmap:4"):
        jax.tree.map(np.testing.assert_array_equal, _run(workers, layout, page["REDUCER"])[0], expected)


def test_random_k_is_wrapped_and_split_as_others_are(workers: Callable, page: dict[str, Any]):
    parts = jaxtern.partition(
        [(lambda path, _: path == "bias", jaxtern.sign(feedback=False))], page["random_k"](DENSITY)
    )
    wrapped = jaxtern.momentum_correction(parts, 0.5)
    means, *_ = _run(workers, "vmap:4", wrapped, min_size=2, delayed=True)
    assert not means[0]["kernel"].any()
    assert np.count_nonzero(means[1]["kernel"][0]) == 60
    assert np.all(means[1]["bias"])
    np.testing.assert_allclose(means[1]["scalar"][0], _gradients(4)["scalar"].mean(), rtol=1e-6)


@pytest.mark.parametrize("num_workers", [2, 4])
def test_random_ks_traffic_is_read_off_its_program(
    workers: Callable, wire: Callable, page: dict[str, Any], num_workers: int
):
    placed, random_k = workers(f"mesh:{num_workers}"), page["random_k"](DENSITY)
    transformation = jaxtern.compressed_mean(placed.names, random_k)
    step = placed.replicated(lambda x, _: transformation.update(x, transformation.init(x))[0], check_vma=False)
    found = wire(step, _gradients(num_workers), None)
    sent = sum(4 * each.size * (num_workers - 1) / num_workers * (1 + ("reduce" in each.name)) for each in found)
    tree = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in SHAPES.items()}
    assert jaxtern.wire_report(tree, random_k, num_workers).bytes == pytest.approx(sent)


def test_state_specs_are_those_of_its_state(workers: Callable, page: dict[str, Any]):
    placed, tree = workers("mesh:4"), {"w": np.zeros((5, 3), np.float32)}
    transformation, specs = jaxtern.compressed_mean("axis0", page["REDUCER"]), jaxtern.state_specs("axis0")
    start = jax.shard_map(transformation.init, mesh=placed.mesh(), in_specs=PartitionSpec(), out_specs=specs)
    assert jax.jit(start)(tree).local[0][0].shape == (4, 5, 3)
