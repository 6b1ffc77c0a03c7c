"""One step: the same bits on any devices, and what goes into the gradient before it is compressed."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxtern.compression.radix import reducer
from jaxtern.data.dataset import Split
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.recipe.run import RunSection
from jaxtern.training.recipe.selection import mask
from jaxtern.training.saved.trees import digest
from jaxtern.training.step.gradients import example_keys
from jaxtern.training.step.mesh import create_mesh

pytestmark = pytest.mark.optimized

KERNELS = (r"(.*/)?kernel",)
GATHERED = {"optimizer": "adam", "learning_rate": 1e-3, "exchange": "gather", "float_last_layer": True}
ADDED = {"optimizer": "momentum", "exchange": "sum", "weight_decay": 5e-4, "statistics": True, "method": "terngrad"}
ADDED |= {"clip_sigmas": 0.0}
AUGMENTED = GATHERED | {"preprocessing": "cifar10", "image_size": 6}
PLAIN = {"optimizer": "sgd", "learning_rate": 1.0, "method": "float", "batch_size": 16}


def worker_loss(params: Any, graph: Any, images: np.ndarray, labels: np.ndarray) -> jax.Array:
    """Mean cross-entropy of one worker, written a second time."""
    logits = nnx.merge(graph, params)(jnp.asarray(images, jnp.float32) / 127.5 - 1)
    return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(len(labels)), labels])


def assert_close(tree: Any, other: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6), tree, other)


@pytest.mark.parametrize(
    ("fields", "in_place"),
    [
        pytest.param(GATHERED, True, id="adam-gather-in-place"),
        pytest.param(ADDED, False, id="momentum-sum", marks=pytest.mark.slow),  # never in place, as it is measured
        pytest.param(AUGMENTED, False, id="augmented", marks=pytest.mark.slow),
        pytest.param(GATHERED, False, id="adam-gather", marks=pytest.mark.slow),
    ],
)
def test_step_of_virtual_workers_gives_the_bits_of_real_ones(
    take_steps: Any, fields: dict[str, Any], in_place: bool, monkeypatch: pytest.MonkeyPatch
):
    """virtual = real: four workers on one device, two on each of two, one on each of four; trees small and large."""
    if in_place:
        monkeypatch.setattr(reducer, "_IN_PLACE_SIZE", 1)
        take_steps = take_steps.__wrapped__  # whose cache holds what was compiled without it
    runs = [take_steps(6, num_workers=4, num_devices=m, batch_size=16, **fields) for m in (1, 2, 4)]
    for run in runs:
        assert int(run.states[-1].step) == int(run.states[-1].compressor.count) == 6
        digests, expected = ([digest(state._replace(compressor=())) for state in r.states] for r in (run, runs[0]))
        assert digests == expected
        assert len(set(digests)) == 7


def test_step_augments_an_example_anew_every_epoch_and_each_in_its_own_way():
    """Keys are of epoch and place alone: the same in any batch, no two alike."""
    places = np.arange(40, dtype=np.int32)
    keys = [np.asarray(jax.random.key_data(example_keys(3, np.full(40, epoch), places))) for epoch in (0, 1)]
    assert len({tuple(key) for key in np.concatenate(keys)}) == 80
    part = example_keys(3, np.full(5, 1), places[10:15])
    np.testing.assert_array_equal(jax.random.key_data(part), keys[1][10:15])
    assert not np.array_equal(jax.random.key_data(example_keys(4, np.full(40, 0), places)), keys[0])


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", [1, 2])
def test_step_loss_and_accuracy_are_means_over_the_workers(take_steps: Callable, digits: Split, num_devices: int):
    run = take_steps(6, num_workers=4, num_devices=num_devices, batch_size=16, **GATHERED)
    for state, batch, metrics in zip(run.states, run.batches, run.metrics, strict=False):
        graph, images, labels = run.program.graph, digits.images[batch], digits.labels[batch]
        parts = zip(np.split(images, 4), np.split(labels, 4), strict=True)
        losses = [worker_loss(state.params, graph, *part) for part in parts]
        assert max(losses) - min(losses) > 0.01  # one worker's loss would not do
        np.testing.assert_allclose(metrics["loss"], np.mean(losses), rtol=1e-5)
        logits = nnx.merge(graph, state.params)(jnp.asarray(images, jnp.float32) / 127.5 - 1)
        np.testing.assert_allclose(metrics["accuracy"], np.mean(np.argmax(logits, -1) == labels), rtol=1e-6)


def test_step_measures_the_compression_where_asked(take_steps: Callable):
    for metrics in take_steps(6, num_workers=4, num_devices=1, batch_size=16, **ADDED).metrics:
        assert 0.5 < metrics["compression/zero_fraction"] < 1
        assert 0 < metrics["compression/cosine"] < 1
        assert metrics["compression/error"] > 0.5


@pytest.mark.few("vmapped")
@pytest.mark.parametrize("way", ["unrolled", "vmapped"])
def test_step_of_float_workers_is_that_of_one_with_the_whole_batch(take_steps: Callable, way: str):
    many, one = (
        take_steps(3, num_workers=n, virtual_workers=w, weight_decay=0.25, **PLAIN)
        for n, w in ((4, way), (1, "unrolled"))
    )
    assert_close(many.states[-1].params, one.states[-1].params)
    assert digest(one.states[-1].params) != digest(one.states[0].params)


def test_step_weight_decay_in_the_loss_adds_that_of_the_kernels(take_steps: Callable):
    decayed, plain = (take_steps(n, num_workers=1, weight_decay=decay, **PLAIN) for n, decay in ((3, 0.25), (1, 0.0)))
    params = plain.states[0].params
    squares = sum(float(np.sum(np.square(layer["kernel"], dtype=np.float64))) for layer in params.values())
    np.testing.assert_allclose(decayed.metrics[0]["loss"] - plain.metrics[0]["loss"], 0.25 * squares / 2, rtol=1e-4)
    difference = jax.tree.map(np.subtract, plain.states[1].params, decayed.states[1].params)
    assert_close(difference, jax.tree.map(lambda w, kernel: 0.25 * w * kernel, params, mask(KERNELS, params)))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["loss", "decoupled"])
def test_step_compresses_weight_decay_in_the_loss_and_no_tensor_that_stays_float(
    take_steps: Callable, digits: Split, mode: str
):
    """One worker's update is -s, 0 or s in all of a ternary tensor; decoupled decay comes on top of it."""
    fields = {"optimizer": "sgd", "learning_rate": 1.0, "method": "terngrad", "clip_sigmas": 0.0, "num_workers": 1}
    fields |= {"float_last_layer": True, "exclude": ("conv1/.*",), "weight_decay": 0.5, "weight_decay_mode": mode}
    run = take_steps(1, model="lenet", **fields)
    params, batch = run.states[0].params, run.batches[0]
    gradients = jax.grad(worker_loss)(params, run.program.graph, digits.images[batch], digits.labels[batch])
    if mode == "loss":
        gradients = jax.tree.map(lambda g, w, kernel: g + 0.5 * w * kernel, gradients, params, mask(KERNELS, params))
    for name, layer in params.items():
        quotient = (layer["kernel"] - run.states[1].params[name]["kernel"]) / np.abs(gradients[name]["kernel"]).max()
        whole = np.mean((np.abs(quotient - np.round(quotient)) < 1e-3) & (np.abs(quotient) < 1.5))
        compressed = mode == "loss" and name in ("conv2", "fc1")
        assert whole == 1 if compressed else whole < 0.5


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_workers": 4, "num_devices": 3}, "num_workers=4: must be a multiple of run.num_devices=3"),
        ({"num_workers": 16, "num_devices": 16}, "num_devices=16: there are 8"),
    ],
)
def test_mesh_that_cannot_be_made_is_named(fields: dict[str, int], words: str):
    with pytest.raises(ValueError, match=words):
        create_mesh(Recipe(run=RunSection(batch_size=48, **fields)))


@pytest.mark.parametrize(("num_workers", "size"), [(1, 1), (4, 4), (6, 6), (7, 7), (9, 3), (12, 6), (16, 8), (11, 1)])
def test_mesh_has_as_many_devices_as_divide_the_workers(num_workers: int, size: int):
    assert create_mesh(Recipe(run=RunSection(num_workers=num_workers, batch_size=num_workers))).size == size
