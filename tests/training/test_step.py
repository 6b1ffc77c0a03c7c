"""One step: the same bits on any devices, and what goes into the gradient before it is compressed."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxtern.data.dataset import Split
from jaxtern.training.checkpoints import digest
from jaxtern.training.recipe import Recipe
from jaxtern.training.step import create_mesh

LAYOUTS = [
    {"optimizer": "adam", "learning_rate": 1e-3, "exchange": "gather", "float_last_layer": True, "scale": "pow2"},
    {"optimizer": "momentum", "exchange": "sum", "weight_decay": 5e-4, "clip_sigmas": 0.0, "log_compression": True},
]


def worker_loss(graph: Any, params: Any, images: np.ndarray, labels: np.ndarray) -> jax.Array:
    """Mean cross-entropy of one worker, written a second time."""
    logits = nnx.merge(graph, params)(jnp.asarray(images, jnp.float32) / 127.5 - 1)
    return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(len(labels)), labels])


@pytest.mark.parametrize("fields", LAYOUTS, ids=lambda fields: f"{fields['optimizer']}-{fields['exchange']}")
def test_step_of_virtual_workers_gives_the_bits_of_real_ones(take_steps: Callable, fields: dict[str, Any]):
    """virtual = real: four workers on one device, two on each of two, one on each of four."""
    runs = [take_steps(6, num_workers=4, num_devices=m, **fields) for m in (1, 2, 4)]
    for run in runs:
        assert int(run.states[-1].step) == int(run.states[-1].compressor.count) == 6
        assert digest(run.states[0]) != digest(run.states[-1])
        for step in range(7):
            assert digest(run.states[step]._replace(compressor=None)) == digest(
                runs[0].states[step]._replace(compressor=None)
            ), f"other weights after step {step}"


def test_step_repeats_itself_bit_for_bit_and_another_seed_does_not(take_steps: Callable):
    first, same, other = (digest(take_steps(2, seed=seed).states[-1].params) for seed in (5, 5, 6))
    assert first == same
    assert first != other


def test_step_of_vmapped_workers_is_close_to_that_of_unrolled_ones(take_steps: Callable):
    ways = [take_steps(2, codec="float", virtual_workers=way).states[-1].params for way in ("unrolled", "vmapped")]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), *ways)


def test_step_of_float_workers_is_that_of_one_with_the_whole_batch(take_steps: Callable):
    fields = {"codec": "float", "optimizer": "sgd", "learning_rate": 0.1, "weight_decay": 0.01, "batch_size": 16}
    many, one = (take_steps(3, num_workers=n, **fields) for n in (4, 1))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), many.states[-1].params, one.states[-1].params
    )
    assert np.abs(many.states[-1].params["fc2"]["kernel"] - many.states[0].params["fc2"]["kernel"]).max() > 1e-3


def test_step_of_ternary_workers_is_not_that_of_float_ones(take_steps: Callable):
    ternary, plain = (take_steps(1, codec=codec, optimizer="sgd").states[-1].params for codec in ("ternary", "float"))
    assert np.mean(ternary["fc1"]["kernel"] == plain["fc1"]["kernel"]) < 0.9


@pytest.mark.parametrize("num_devices", [1, 2])
def test_step_loss_and_accuracy_are_means_over_the_workers(take_steps: Callable, digits: Split, num_devices: int):
    run = take_steps(2, num_workers=4, num_devices=num_devices, batch_size=16)
    for state, batch, metrics in zip(run.states, run.batches, run.metrics, strict=False):
        graph, images, labels = run.program.graph, digits.images[batch], digits.labels[batch]
        losses = [worker_loss(graph, state.params, images[w::4][:0], labels[:0]) for w in ()] or [
            worker_loss(graph, state.params, *part)
            for part in zip(np.split(images, 4), np.split(labels, 4), strict=True)
        ]
        assert max(losses) - min(losses) > 0.01  # one worker's loss would not do
        np.testing.assert_allclose(metrics["loss"], np.mean(losses), rtol=1e-5)
        logits = nnx.merge(graph, state.params)(jnp.asarray(images, jnp.float32) / 127.5 - 1)
        np.testing.assert_allclose(metrics["accuracy"], np.mean(np.argmax(logits, -1) == labels), rtol=1e-6)


def test_step_weight_decay_in_the_loss_adds_that_of_the_kernels(take_steps: Callable):
    fields = {"codec": "float", "optimizer": "sgd", "learning_rate": 1.0}
    plain, decayed = (take_steps(1, weight_decay=decay, **fields) for decay in (0.0, 0.25))
    params = plain.states[0].params
    squares = sum(float(np.sum(np.square(layer["kernel"], dtype=np.float64))) for layer in params.values())
    np.testing.assert_allclose(decayed.metrics[0]["loss"] - plain.metrics[0]["loss"], 0.25 * squares / 2, rtol=1e-4)
    for name, layer in params.items():
        for leaf, weight in layer.items():
            difference = plain.states[1].params[name][leaf] - decayed.states[1].params[name][leaf]
            expected = 0.25 * weight if leaf == "kernel" else np.zeros_like(weight)
            np.testing.assert_allclose(difference, expected, atol=2e-6)


@pytest.mark.parametrize("mode", ["loss", "decoupled"])
def test_step_weight_decay_in_the_loss_is_compressed_with_it(take_steps: Callable, digits: Split, mode: str):
    """In the loss, all of a tensor's update is a whole number of s / N; decoupled decay comes on top."""
    run = take_steps(
        1, optimizer="sgd", learning_rate=1.0, weight_decay=0.5, weight_decay_mode=mode, clip_sigmas=0.0, num_workers=2
    )
    images, labels = digits.images[run.batches[0]], digits.labels[run.batches[0]]
    parts = zip(np.split(images, 2), np.split(labels, 2), strict=True)
    before, after = run.states[0].params, run.states[1].params
    gradients = [jax.grad(worker_loss, argnums=1)(run.program.graph, before, *part)["fc1"]["kernel"] for part in parts]
    weight = before["fc1"]["kernel"]
    if mode == "loss":
        gradients = [gradient + 0.5 * weight for gradient in gradients]
    unit = max(float(jnp.max(jnp.abs(gradient))) for gradient in gradients) / 2
    trits = (weight - after["fc1"]["kernel"]) / unit
    whole = np.abs(trits - np.round(trits)) < 1e-3
    assert set(np.round(trits[whole])) <= {-2, -1, 0, 1, 2}
    assert np.mean(whole) == 1 if mode == "loss" else np.mean(whole) < 0.5


def test_step_keeps_the_last_layer_and_the_excluded_float(take_steps: Callable):
    """What stays float changes in (almost) every element in one step; ternary tensors only where a trit is not zero."""
    fields = {"optimizer": "sgd", "learning_rate": 0.1, "clip_sigmas": 0.0}
    run = take_steps(1, float_last_layer=True, exclude=("conv1/.*",), **fields)
    before, after = run.states[0].params, run.states[1].params
    changed = {name: np.mean(before[name]["kernel"] != after[name]["kernel"]) for name in before}
    assert changed["fc2"] > 0.9
    assert changed["conv1"] > 0.9
    assert changed["fc1"] < 0.5
    assert changed["conv2"] < 0.5


def test_step_counts_steps_for_the_noise(take_steps: Callable):
    """With the same batch and weights, another step draws other trits."""
    run = take_steps(3, learning_rate=0.0, batch_size=1437 * 2 // 2, num_workers=1, optimizer="momentum")
    first, second, third = (state.optimizer for state in run.states[1:])
    traces = [jax.tree.leaves(state)[-1] for state in (first, second, third)]
    steps = [traces[0], traces[1] - 0.9 * traces[0], traces[2] - 0.9 * traces[1]]
    assert not np.allclose(steps[0], steps[1], atol=1e-7)
    assert not np.allclose(steps[1], steps[2], atol=1e-7)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_workers": 4, "num_devices": 3}, "num_workers=4: must divide among num_devices=3"),
        ({"num_workers": 16, "num_devices": 16}, "num_devices=16: there are 8"),
    ],
)
def test_mesh_that_cannot_be_made_is_named(fields: dict[str, int], words: str):
    with pytest.raises(ValueError, match=words):
        create_mesh(Recipe(batch_size=48, **fields))


@pytest.mark.parametrize(("num_workers", "size"), [(1, 1), (4, 4), (6, 6), (7, 7), (9, 3), (12, 6), (16, 8), (11, 1)])
def test_mesh_has_as_many_devices_as_divide_the_workers(num_workers: int, size: int):
    assert create_mesh(Recipe(num_workers=num_workers, batch_size=num_workers)).size == size
