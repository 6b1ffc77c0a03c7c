"""Batch norm over workers: whose moments normalise, and which ones all go on with."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxtern.data.dataset import Split
from jaxtern.models import create_model
from jaxtern.training.run.evaluation import evaluate
from jaxtern.training.step.mesh import create_mesh
from jaxtern.training.step.state import configure_modules, variables_of

PLAIN = {"model": "tiny_norm", "method": "float", "optimizer": "sgd", "learning_rate": 1.0, "batch_size": 16}
LAYOUTS = {
    "devices": {"num_workers": 4, "num_devices": 4},
    "vmapped": {"num_workers": 4, "num_devices": 1, "virtual_workers": "vmapped"},
    "both": {"num_workers": 4, "num_devices": 2, "virtual_workers": "vmapped"},
    "of a worker": {"num_workers": 2, "num_devices": 4, "devices_per_worker": 2},
    "all": {"num_workers": 4, "num_devices": 4, "devices_per_worker": 2, "virtual_workers": "vmapped"},
}
UNROLLED = {"unrolled": {"num_workers": 4, "num_devices": 1}, "unrolled on two": {"num_workers": 4, "num_devices": 2}}


def by_moments(*layouts: str) -> list:
    """Every layout with the one or the other, in turn; with both where there is time."""
    return [
        pytest.param(
            layout, kind, marks=[pytest.mark.slow] * ([*LAYOUTS, *UNROLLED].index(layout) % 2 != (kind == "first"))
        )
        for layout in layouts
        for kind in ("local", "first")
    ]


def assert_close(tree: Any, other: Any, tolerance: float = 1e-5) -> None:
    """Relative to the largest number of each tensor."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(b).max()), tree, other)


def moments_of(run: Any, step: int, images: np.ndarray) -> Any:
    """Moving moments after a worker alone has seen these images."""
    model = nnx.merge(run.program.graph, jax.tree.map(jnp.asarray, variables_of(run.states[step])))
    model.norm.axis_name = None
    model(jnp.asarray(images, jnp.float32) / 127.5 - 1, jax.random.key(0))
    return nnx.to_pure_dict(nnx.state(model, nnx.BatchStat))


@pytest.mark.few("all")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_sync_is_one_device_with_the_whole_batch(take_steps: Callable, layout: str):
    """Gradients (the rate is 1), loss, and moving moments."""
    many = take_steps(3, batch_norm="sync", **PLAIN | LAYOUTS[layout])
    one = take_steps(3, **PLAIN)
    for i in (1, 3):
        assert_close(many.states[i].params, one.states[i].params)
        assert_close(many.states[i].moments, one.states[i].moments)
        np.testing.assert_allclose(many.metrics[i - 1]["loss"], one.metrics[i - 1]["loss"], rtol=1e-5)
    first, last = (many.states[i].moments["norm"]["mean"] for i in (0, 3))
    assert np.abs(last - first).max() > 0.1


def test_local_is_not_one_device_with_the_whole_batch(take_steps: Callable):
    """So the test above can fail."""
    many, one = take_steps(1, **PLAIN | LAYOUTS["devices"]), take_steps(3, **PLAIN)
    assert np.abs(many.states[1].params["fc1"]["kernel"] - one.states[1].params["fc1"]["kernel"]).max() > 1e-3


@pytest.mark.few("devices-local", "unrolled-first")
@pytest.mark.parametrize(("layout", "batch_norm"), by_moments(*LAYOUTS, *UNROLLED))
def test_moving_moments_are_the_mean_of_the_workers_or_those_of_the_first(
    take_steps: Callable, digits: Split, layout: str, batch_norm: str
):
    """Of what each worker would have alone, of its whole batch even where that lies on two devices."""
    fields = (LAYOUTS | UNROLLED)[layout]
    run = take_steps(2, batch_norm=batch_norm, **PLAIN | fields)
    for i in range(2):
        parts = np.split(digits.images[run.batches[i]], fields["num_workers"])
        alone = [moments_of(run, i, part) for part in parts]
        mean = jax.tree.map(lambda *leaves: np.mean(leaves, axis=0), *alone)
        expected, other = (mean, alone[0]) if batch_norm == "local" else (alone[0], mean)
        assert_close(run.states[i + 1].moments, expected)
        assert np.abs(run.states[i + 1].moments["norm"]["mean"] - other["norm"]["mean"]).max() > 1e-3


@pytest.mark.few("vmapped-first")
@pytest.mark.parametrize(("layout", "batch_norm"), by_moments("vmapped", "both", *UNROLLED))
def test_virtual_workers_are_as_real_ones(take_steps: Callable, layout: str, batch_norm: str):
    virtual, real = (
        take_steps(2, batch_norm=batch_norm, **PLAIN | fields)
        for fields in ((LAYOUTS | UNROLLED)[layout], LAYOUTS["devices"])
    )
    assert_close(virtual.states[2].params, real.states[2].params)
    assert_close(virtual.states[2].moments, real.states[2].moments)


def test_sync_of_unrolled_workers_of_one_device_is_refused(recipe_of: Callable):
    rule = r"batch_norm='sync': with several workers on a device, run.virtual_workers='unrolled' must be 'vmapped'"
    for fields in ({"num_devices": 1}, {"num_devices": 2}, {"num_devices": 4, "devices_per_worker": 2}):
        with pytest.raises(ValueError, match=rule):
            create_mesh(recipe_of(batch_norm="sync", **fields))
    create_mesh(recipe_of(batch_norm="sync", num_devices=4))


def test_evaluation_takes_the_moving_moments(take_steps: Callable, digits: Split):
    run = take_steps(3, batch_norm="sync", **PLAIN | LAYOUTS["all"])
    state, split = run.states[3], Split(digits.images[:9], digits.labels[:9])
    logits: list[np.ndarray] = []
    evaluate(run.program.graph, variables_of(state), split, run.task, collect=logits.append)
    params, moments = state.params, state.moments["norm"]
    x = (split.images.reshape(9, -1).astype(np.float32) / 127.5 - 1) @ params["fc1"]["kernel"]
    x = (x - moments["mean"]) / np.sqrt(moments["var"] + 1e-5) * params["norm"]["scale"] + params["norm"]["bias"]
    expected = np.maximum(x, 0) @ params["fc2"]["kernel"] + params["fc2"]["bias"]
    np.testing.assert_allclose(np.concatenate(logits), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("fields", "axes"),
    [
        ({"batch_norm": "local"}, None),
        ({"batch_norm": "first", "devices_per_worker": 2}, ("fast",)),
        ({"batch_norm": "sync"}, ("data", "fast")),
        ({"batch_norm": "sync", "virtual_workers": "vmapped"}, ("virtual", "data", "fast")),
    ],
)
def test_every_batch_norm_is_told_the_axes_of_its_moments(
    recipe_of: Callable, fields: dict[str, Any], axes: tuple[str, ...] | None
):
    model = nnx.eval_shape(lambda: create_model("resnet_20", (8, 8, 1), 10, 0))
    configure_modules(model, recipe_of(**fields))
    norms = [module for _, module in nnx.iter_modules(model) if isinstance(module, nnx.BatchNorm)]
    assert len(norms) == 19
    assert {norm.axis_name for norm in norms} == {axes}


@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_a_network_is_evaluated_after_one_step_as_its_batch_was_normalised(
    take_steps: Callable, digits: Split, decay: float
):
    """Of batch norm that forgets 1 part in 4: one step of nnx.BatchNorm leaves 3/4 of mean 0 and variance 1."""
    run = take_steps(1, average_decay=decay, **PLAIN)
    images = digits.images[run.batches[0]].reshape(16, -1).astype(np.float32) / 127.5 - 1
    hidden = images @ run.states[0].params["fc1"]["kernel"]
    moments = (run.states[1].averages if decay else run.states[1]).moments["norm"]
    np.testing.assert_allclose(moments["mean"], hidden.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(moments["var"], hidden.var(0), rtol=1e-4, atol=1e-5)
