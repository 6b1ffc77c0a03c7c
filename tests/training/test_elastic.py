"""A run that goes on with other workers: no example twice, no gradient lost, the bits of a run of those workers."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from jaxtern.compression.cost import Network

from jaxtern.compression.transform import CompressedMeanState
from jaxtern.training.run import loop
from jaxtern.training.run.calls import plan_calls
from jaxtern.training.run.run import Run
from jaxtern.training.saved.arrange import MisfitError
from jaxtern.training.saved.digests import digest
from jaxtern.training.saved.elastic import pending_mean
from jaxtern.training.step.mean import create_mean
from jaxtern.training.step.mesh import create_mesh
from jaxtern.training.step.state import specs_of_state

pytestmark = pytest.mark.usefixtures("tiny_models")

FIELDS = {
    "model": "tiny", "num_workers": 4, "num_devices": None, "batch_size": 16, "num_steps": 100,
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
        examples.append(np.asarray(batch.images))
        run.state, metrics = run.train_step(run.state, run.feed.images, batch, call)
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


def test_run_of_another_batch_size_goes_on_at_the_next_example(go_on: Callable, tmp_path: Path):
    straight = np.concatenate(take(go_on(tmp_path / "straight", batch_size=4), 24)[0])
    parts = []
    for batch_size, num_steps in ((16, 2), (4, 6), (20, 2)):
        parts.extend(take(go_on(batch_size=batch_size), num_steps)[0])
    np.testing.assert_array_equal(np.concatenate(parts), straight)


def test_float_run_of_other_workers_goes_on_as_one_that_was_never_changed(go_on: Callable, tmp_path: Path):
    straight = go_on(tmp_path / "straight", method="float")
    _, expected = take(straight, 6)
    losses = []
    for num_workers in (4, 2, 8):
        run = go_on(method="float", num_workers=num_workers)
        losses += take(run, 2)[1]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert_close(run.state.params, straight.state.params)


@pytest.mark.parametrize("delayed", [False, True])
def test_run_of_other_workers_is_one_that_began_with_them_in_that_state(go_on: Callable, tmp_path: Path, delayed: bool):
    """Steps, noise and weights, from the same weights, moments and counts on."""
    first = go_on(delayed=delayed)
    take(first, 3)
    run, fresh = go_on(delayed=delayed, num_workers=2), go_on(tmp_path / "fresh", delayed=delayed, num_workers=2)
    start, own = to_host(run.state), to_host(fresh.state)
    assert digest(start.params) == digest(to_host(first.state.params))
    assert int(start.compressor.count) == 3
    compressor = own.compressor._replace(count=start.compressor.count, carried=start.compressor.carried)
    assert (compressor.carried is not None) == delayed
    fresh.state = start._replace(compressor=compressor)
    fresh.examples_seen = run.examples_seen
    assert take(run, 3)[1] == take(fresh, 3)[1]
    assert_same(run.state, fresh.state)


@pytest.mark.parametrize(
    "fields",
    [{}, {"delayed": True, "exchange": "two_way"}],
    ids=str,
)
def test_run_on_other_devices_is_bit_for_bit_one_that_was_never_moved(
    go_on: Callable, tmp_path: Path, fields: dict[str, Any]
):
    straight = go_on(tmp_path / "straight", num_devices=1, **fields)
    _, expected = take(straight, 6)
    losses = []
    for num_devices in (1, 2, 4):
        run = go_on(num_devices=num_devices, **fields)
        losses += take(run, 2)[1]
    assert losses == expected
    assert_same(run.state, straight.state)


SHAPES = {"fc1": {"kernel": (40, 7), "bias": (7,)}, "fc2": {"kernel": (7, 10)}}
WAYS = [
    {"exchange": "gather"},
    {"exchange": "sum", "min_size": 50},
    {"exchange": "scatter", "bucket_size": 50, "float_last_layer": True},
    {"exchange": "two_way"},
    {"exchange": "gather", "levels": 3, "block_size": 64},
    {"exchange": "auto"},
    {"exchange": "sum", "num_devices": 8, "devices_per_worker": 2},
    {"method": "float"},
    {"method": "float", "num_devices": 8, "devices_per_worker": 2},
]


@pytest.mark.parametrize("fields", WAYS, ids=str)
def test_mean_of_what_was_sent_is_that_of_the_workers_who_sent_it(small_recipe: Callable, fields: dict[str, Any]):
    recipe = small_recipe(**{"model": "tiny", "num_workers": 4, "num_devices": 4, "delayed": True} | fields)
    mesh, specs, everywhere = create_mesh(recipe), specs_of_state(recipe.mean).compressor, PartitionSpec()
    local_workers, network = recipe.run.num_workers // mesh.shape["data"], Network(latency=1e-3)
    mean = create_mean(recipe.mean, "fc2", local_workers, recipe.run.seed, network)
    params = jax.tree.map(lambda shape: np.zeros(shape, np.float32), SHAPES, is_leaf=lambda x: isinstance(x, tuple))

    def update(state: CompressedMeanState, seed: int) -> Any:
        device = jax.lax.axis_index(("data", "fast"))
        keys = [jax.random.key(1000 * seed + worker) for worker in range(local_workers)]
        return mean.update([draw(jax.random.fold_in(key, device), params) for key in keys], state)

    over = functools.partial(jax.shard_map, mesh=mesh, check_vma=False)
    state = jax.jit(over(mean.init, in_specs=everywhere, out_specs=specs))(params)
    step = jax.jit(over(update, in_specs=(specs, everywhere), out_specs=(everywhere, specs)))
    _, state = step(state, 1)
    pending = to_host({"local": state.pending.local, "shared": state.pending.shared})  # all that a checkpoint holds
    expected, _ = step(state, 2)
    assert all(np.any(leaf) for leaf in jax.tree.leaves(to_host(expected)))
    found = pending_mean(pending, np.int32(1), recipe, params, network)
    assert_close(found, expected) if recipe.mean.method == "float" else assert_same(found, expected)


def draw(key: jax.Array, like: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.random.normal(key, leaf.shape), like)


def test_words_of_another_recipe_are_refused(small_recipe: Callable):
    recipe = small_recipe(model="tiny", num_workers=4, delayed=True)
    pending = {"local": [[np.zeros((4, 3), np.uint32)]], "shared": [np.zeros(2, np.float32)]}
    with pytest.raises(MisfitError, match="words that its own recipe does not send: holds 'local/0/0' as"):
        pending_mean(pending, np.int32(1), recipe, {"fc1": {"kernel": np.zeros((40, 7), np.float32)}}, None)


def test_delayed_run_that_is_delayed_no_more_moves_by_both_means(go_on: Callable, tmp_path: Path):
    """With SGD, whose steps add up: as far as one step by what was sent and one by the step's own."""
    fields = {"optimizer": "sgd", "method": "float"}
    first = go_on(delayed=True, **fields)
    take(first, 2)
    run = go_on(delayed=False, **fields)
    sent, start = to_host(run.state.compressor.carried), to_host(run.state.params)
    plain = go_on(tmp_path / "plain", delayed=False, **fields)
    plain.state = to_host(run.state)._replace(compressor=to_host(plain.state.compressor))
    plain.examples_seen = run.examples_seen
    take(run, 1)
    take(plain, 1)
    moved = jax.tree.map(lambda a, b: a - b, to_host(run.state.params), start)
    own = jax.tree.map(lambda a, b: a - b, to_host(plain.state.params), start)
    late = jax.tree.map(lambda mean: -0.01 * mean, sent)
    for whole, one, other in zip(*map(jax.tree.leaves, (moved, own, late)), strict=True):
        np.testing.assert_allclose(whole, one + other, atol=1e-7)


def test_several_steps_of_a_call_begin_with_what_was_carried(go_on: Callable, tmp_path: Path):
    states = []
    for steps_per_call in (1, 3):
        workdir, calls = tmp_path / str(steps_per_call), {"log_every": 3, "checkpoint_every": 3, "num_steps": 6}
        fields = {"method": "float", "delayed": True, "steps_per_call": steps_per_call, "evaluate_every": 0, **calls}
        first = go_on(workdir, **fields | {"num_steps": 3})
        loop.train(first)
        first.close()
        run = go_on(workdir, num_workers=2, **fields)
        assert run.state.compressor.carried is not None
        loop.train(run)
        run.close()
        states.append(to_host(run.state))
    assert_close(*(state.params for state in states))
    assert int(states[0].step) == int(states[1].step) == 6


@pytest.mark.parametrize(
    "changed",
    [{"num_workers": 2}, {"method": "float"}, {"exchange": "sum"}, {"delayed": False}, {"num_devices": 2}],
    ids=str,
)
def test_mean_is_carried_into_one_step_where_words_cannot_be_read(go_on: Callable, changed: dict[str, Any]):
    fields = {"delayed": True, "exchange": "two_way"}
    take(go_on(**fields), 2)
    run = go_on(**fields | changed)
    assert (run.state.compressor.carried is None) == ("num_devices" in changed)
    take(run, 1)
    assert run.state.compressor.carried is None
    again = go_on(**fields | changed)
    again.close()
    assert_same(again.state, run.state)


def test_delayed_run_that_was_not_starts_with_nothing_sent(go_on: Callable):
    take(go_on(optimizer="sgd"), 2)
    run = go_on(optimizer="sgd", delayed=True)
    start = to_host(run.state.params)
    take(run, 1)
    assert_same(run.state.params, start)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"optimizer": "sgd"}, "holds 'optimizer/"), ({"precision": "float16"}, "lacks 'loss_scale/factor'")],
    ids=str,
)
def test_state_that_is_another_is_refused_in_a_line(go_on: Callable, fields: dict[str, Any], reason: str):
    take(go_on(), 1)
    with pytest.raises(MisfitError, match=rf"^checkpoint [^\n]*checkpoints/1 {reason}[^\n]*$"):
        go_on(**fields)
