"""A run that goes on with other workers: no example twice, no gradient lost, the bits of a run of those workers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxtern.training.run.calls import plan_calls
from jaxtern.training.run.run import Run
from jaxtern.training.saved.trees import MisfitError, digest
from jaxtern.training.step.state import place_state

pytestmark = pytest.mark.optimized

FIELDS = {
    "num_workers": 4, "num_devices": None, "batch_size": 16, "num_steps": 100,
    "checkpoint_every": 1, "log_every": 1, "exchange": "gather", "optimizer": "adam", "learning_rate": 0.01,
}  # fmt: skip


def to_host(tree: Any) -> Any:
    return jax.tree.map(np.array, jax.device_get(tree))


def take(run: Run, num_steps: int) -> tuple[list[np.ndarray], list[float]]:
    """The examples and the losses of so many steps; the run then stands there, saved."""
    examples, losses = [], []
    batches = run.feed.batches(run.examples_seen)
    for call in plan_calls(
        run.recipe.run, run.recipe.mean, run.inputs.dataset.train.size, int(run.state.step), run.examples_seen
    ):
        if len(examples) >= num_steps:
            break
        batch = next(batches)
        examples.append(np.asarray(batch.examples))
        run.state, metrics = run.train_step(run.state, run.feed.examples, batch, call)
        losses.append(float(metrics["loss"]))
        run.examples_seen += run.recipe.run.batch_size
    batches.close()
    run.save(int(run.state.step))
    run.close()
    return examples, losses


@pytest.fixture
def go_on(prepare: Callable, tmp_path: Path) -> Callable[..., Run]:
    """The run in `<tmp_path>/run`, with these fields now."""

    def go_on(workdir: Path = tmp_path / "run", **fields: Any) -> Run:
        return prepare(workdir, allow_config_change=True, **FIELDS | fields)

    return go_on


def assert_same(tree: Any, other: Any) -> None:
    assert digest(to_host(tree)) == digest(to_host(other))


def assert_close(tree: Any, other: Any) -> None:
    for leaf, same in zip(jax.tree.leaves(to_host(tree)), jax.tree.leaves(to_host(other)), strict=True):
        np.testing.assert_allclose(leaf, same, rtol=2e-4, atol=2e-6)


def test_run_of_4_then_2_then_8_workers_sees_each_example_of_an_epoch_once(go_on: Callable):
    size, order = 1437, []
    for num_workers, batch_size, num_steps in ((4, 16, 20), (2, 24, 10), (8, 16, 20)):
        run = go_on(num_workers=num_workers, batch_size=batch_size)
        assert run.examples_seen == len(order)
        order.extend(np.concatenate(take(run, num_steps)[0]))
        assert run.examples_seen == len(order)
    assert int(run.state.step) == 50
    assert len(order) < size
    assert len(set(order)) == len(order)
    left = size - len(order)
    order.extend(np.concatenate(take(go_on(num_workers=4), -(-left // 16))[0])[:left])
    assert sorted(order) == list(range(size))


@pytest.mark.slow
def test_run_of_another_batch_size_goes_on_at_the_next_example(go_on: Callable, tmp_path: Path):
    straight = np.concatenate(take(go_on(tmp_path / "straight", batch_size=4), 24)[0])
    parts = []
    for batch_size, num_steps in ((16, 2), (4, 6), (20, 2)):
        parts.extend(take(go_on(batch_size=batch_size), num_steps)[0])
    np.testing.assert_array_equal(np.concatenate(parts), straight)


@pytest.mark.slow
@pytest.mark.parametrize("delayed", [False, True])
def test_float_run_of_other_workers_goes_on_as_one_that_was_never_changed(
    go_on: Callable, tmp_path: Path, delayed: bool
):
    """Also where the workers keep gradients for the next step: their mean is none the less that of all of them."""
    straight = go_on(tmp_path / "straight", method="float", delayed=delayed)
    _, expected = take(straight, 6)
    losses = []
    for num_workers in (4, 2, 8):
        run = go_on(method="float", delayed=delayed, num_workers=num_workers)
        losses += take(run, 2)[1]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert_close(run.state.params, straight.state.params)


@pytest.mark.few("False")
@pytest.mark.parametrize("delayed", [False, True])
def test_run_of_other_workers_is_one_that_began_with_them_in_that_state(go_on: Callable, tmp_path: Path, delayed: bool):
    """Steps, noise and weights, from the same weights, moments and counts on; of each two workers one is left."""
    first = go_on(delayed=delayed)
    take(first, 3)
    run, fresh = go_on(delayed=delayed, num_workers=2), go_on(tmp_path / "fresh", delayed=delayed, num_workers=2)
    before, start = to_host(first.state), to_host(run.state)
    assert int(start.compressor.count) == 3
    assert bool(jax.tree.leaves(start.compressor.local)) == delayed
    pairs = jax.tree.map(lambda leaf: leaf.reshape(2, 2, *leaf.shape[1:]).mean(axis=1), before.compressor.local)
    assert_close(start.compressor.local, pairs)
    compressor = before.compressor._replace(local=start.compressor.local)
    fresh.state = place_state(before._replace(compressor=compressor), fresh.mesh)
    fresh.examples_seen = run.examples_seen
    assert take(run, 3)[1] == take(fresh, 3)[1]
    assert_same(run.state, fresh.state)


MOVED = {
    "ternary": {},
    "delayed": {"delayed": True, "exchange": "two_way"},
    "low_rank": {"method": "low_rank", "rank": 2},
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "ternary")) for name in MOVED])
def test_run_on_other_devices_is_bit_for_bit_one_that_was_never_moved(go_on: Callable, tmp_path: Path, name: str):
    """Workers that share a device are those that have one each; their losses are added in another order."""
    straight = go_on(tmp_path / "straight", num_devices=1, **MOVED[name])
    _, expected = take(straight, 6)
    losses = []
    for num_devices in (1, 2, 4):
        run = go_on(num_devices=num_devices, **MOVED[name])
        losses += take(run, 2)[1]
    assert losses == pytest.approx(expected, rel=1e-6)
    assert_same(run.state, straight.state)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"optimizer": "sgd"}, "holds 'optimizer/"), ({"precision": "float16"}, "lacks 'loss_scale/factor'")],
    ids=str,
)
def test_state_that_is_another_is_refused_in_a_line(go_on: Callable, fields: dict[str, Any], reason: str):
    take(go_on(), 1)
    with pytest.raises(MisfitError, match=rf"^checkpoint [^\n]*checkpoints/1 {reason}[^\n]*$"):
        go_on(**fields)
