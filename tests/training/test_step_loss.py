"""The loss of a step: with smoothed labels, and with that of auxiliary logits."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxtern.data.dataset import Split
from jaxtern.training.run.evaluation import evaluate
from jaxtern.training.step.state import variables_of

SMOOTHING = 0.3
FIELDS = {"model": "tiny_pair", "method": "float", "optimizer": "sgd", "learning_rate": 1.0, "batch_size": 16}
LAYOUTS = [{}, {"num_workers": 4, "num_devices": 2}, {"num_workers": 2, "num_devices": 4, "devices_per_worker": 2}]


def written_again(params: Any, images: np.ndarray, labels: np.ndarray, smoothing: float) -> jax.Array:
    x = jnp.asarray(images.reshape(len(images), -1), jnp.float32) / 127.5 - 1
    hidden = nnx.relu(x @ params["fc1"]["kernel"] + params["fc1"]["bias"][None])
    targets = jnp.eye(10)[labels] * (1 - smoothing) + smoothing / 10
    loss = 0.0
    for weight, layer, given in ((1.0, "fc2", hidden), (0.25, "side", x)):
        logits = given @ params[layer]["kernel"] + params[layer]["bias"][None]
        loss -= weight * jnp.mean(jnp.sum(targets * jax.nn.log_softmax(logits), axis=1))
    return jnp.asarray(loss)


@pytest.mark.few("0.3-layout2")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("smoothing", [0.0, SMOOTHING])
def test_step_follows_the_loss_of_smoothed_labels_and_auxiliary_logits(
    take_steps: Callable, digits: Split, smoothing: float, layout: dict[str, int]
):
    run = take_steps(1, label_smoothing=smoothing, **FIELDS | layout)
    params, batch = run.states[0].params, run.batches[0]
    arguments = digits.images[batch], digits.labels[batch], smoothing
    loss, gradients = jax.value_and_grad(written_again)(jax.tree.map(jnp.asarray, params), *arguments)
    np.testing.assert_allclose(run.metrics[0]["loss"], loss, rtol=1e-5)
    moved = jax.tree.map(np.subtract, params, run.states[1].params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), moved, gradients)
    assert np.abs(moved["side"]["kernel"]).max() > 1e-3


def test_evaluation_has_neither(take_steps: Callable, digits: Split):
    """It is of the main logits and the labels as they are."""
    run = take_steps(1, label_smoothing=SMOOTHING, **FIELDS)
    logits: list[np.ndarray] = []
    split = Split(digits.images[:20], digits.labels[:20])
    result = evaluate(run.program.graph, variables_of(run.states[1]), split, run.task, collect=logits.append)
    log = jax.nn.log_softmax(np.concatenate(logits))
    assert result.loss == pytest.approx(-float(np.mean(log[np.arange(20), split.labels])), rel=1e-5)
