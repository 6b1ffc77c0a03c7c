"""Counts and losses over a whole split against plain NumPy: each example once, also in a last batch that is short."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxtern.data.dataset import Split
from jaxtern.data.rendering import Share
from jaxtern.data.tasks import create_task
from jaxtern.models import create_model
from jaxtern.training import LOSSES
from jaxtern.training.run import evaluation
from jaxtern.training.run.evaluation import Evaluation, evaluate

MNIST = create_task("mnist")


class Planted(nnx.Module):
    """Logits are a table's rows, found by an image's first two pixels: any answer can be planted."""

    def __init__(self, table: np.ndarray):
        self.table = nnx.Param(jnp.asarray(table))

    def __call__(self, images: jnp.ndarray) -> jnp.ndarray:
        pixels = jnp.round((images.reshape(images.shape[0], -1) + 1) * 127.5).astype(jnp.int32)
        return self.table[...][pixels[:, 0] * 256 + pixels[:, 1]]


def plant(logits: np.ndarray, labels: np.ndarray, **arguments: Any) -> Evaluation:
    """Evaluates these logits of the examples, in their order."""
    numbers = np.arange(len(labels))
    images = np.stack([numbers // 256, numbers % 256], -1).astype(np.uint8).reshape(-1, 1, 2, 1)
    graph, params = nnx.split(Planted(logits.astype(np.float32)), nnx.Param)
    return evaluate(graph, params, Split(images, labels.astype(np.int32)), MNIST, **arguments)


def expect(logits: np.ndarray, labels: np.ndarray) -> Evaluation:
    logits = logits.astype(np.float32).astype(np.float64)
    right = logits[np.arange(len(labels)), labels]
    better = np.sum(logits > right[:, None], axis=1)
    highest = logits.max(axis=1)
    losses = highest + np.log(np.sum(np.exp(logits - highest[:, None]), axis=1)) - right
    return Evaluation(float(np.mean(losses)), np.mean(better == 0), np.mean(better < 5), len(labels))


@pytest.mark.parametrize("size", [1, 3, 499, 500, 501, 1000, 1203])
def test_evaluation_counts_every_example_once(size: int):
    generator = np.random.default_rng(size)
    logits, labels = generator.normal(size=(size, 10)) * 3, generator.integers(0, 10, size)
    result, expected = plant(logits, labels), expect(logits, labels)
    assert result[1:] == expected[1:]
    np.testing.assert_allclose(result.loss, expected.loss, rtol=1e-6)


@pytest.mark.parametrize("place", [0, 499, 500, 702])
def test_evaluation_sees_each_single_example(place: int):
    """One right answer among 703 wrong ones is found wherever it is."""
    logits, labels = np.zeros((703, 10)), np.zeros(703, int)
    logits += -np.arange(10)[::-1]  # class 9 the best, class 0 the worst
    labels[place] = 9
    result = plant(logits, labels)
    assert result.precision_at_1 == result.recall_at_5 == 1 / 703
    labels[place] = 5
    result = plant(logits, labels)
    assert (result.precision_at_1, result.recall_at_5) == (0, 1 / 703)


def test_evaluation_of_fewer_than_five_classes_recalls_all():
    logits, labels = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 3
    assert plant(logits, labels).recall_at_5 == 1


def test_evaluation_of_a_network_is_that_of_its_logits(digits: Split):
    model = create_model("tiny", (8, 8, 1), 10, seed=3)
    graph, params = nnx.split(model, nnx.Param)
    logits = np.asarray(model(jnp.asarray(digits.images, jnp.float32) / 127.5 - 1))
    result, expected = evaluate(graph, nnx.to_pure_dict(params), digits, MNIST), expect(logits, digits.labels)
    assert digits.size % 500
    np.testing.assert_allclose(result[:4], expected[:4], rtol=1e-5)


def test_evaluation_of_the_best_class_is_not_above_that_of_five(take_steps: Callable, digits: Split):
    run = take_steps(6, num_workers=4, num_devices=1, batch_size=16)
    first, last = (evaluate(run.program.graph, run.states[n].params, digits, MNIST) for n in (0, -1))
    assert last.loss < first.loss
    assert last.precision_at_1 <= last.recall_at_5


def test_evaluation_by_a_loss_of_ones_own_counts_every_example_once(monkeypatch: pytest.MonkeyPatch):
    """Its batches are of 500, and the last one is padded: means of means would be others."""
    monkeypatch.setitem(
        LOSSES, "mine", lambda logits, targets: {"loss": logits[:, 0], "accuracy": 1.0 + (targets == 3)}
    )
    generator = np.random.default_rng(0)
    logits, labels = generator.normal(size=(703, 10)), np.arange(703) % 7
    result, plain = plant(logits, labels, loss="mine"), plant(logits, labels)
    np.testing.assert_allclose(result.loss, np.mean(logits[:, 0].astype(np.float32)), rtol=1e-5)
    assert result.own == {"metrics/accuracy": 1 + np.mean(labels == 3)}
    assert result[1:4] == plain[1:4]
    assert plain.own == {}
    assert result.scalars() == {
        "loss": result.loss, "precision_at_1": result.precision_at_1, "recall_at_5": result.recall_at_5,
        "num_examples": 703, "metrics/accuracy": 1 + np.mean(labels == 3),
    }  # fmt: skip
    assert result.describe("test", "mine").startswith(f"test loss {result.loss:.4f} (mine), precision@1 ")
    assert result.describe("test", "mine").endswith(", accuracy 1.1422")


def test_evaluation_of_fewer_examples_than_processes_counts_each_once(monkeypatch: pytest.MonkeyPatch):
    """A process without an example has no sums of its own."""
    logits, labels = np.random.default_rng(0).normal(size=(2, 10)), np.array([3, 4])
    parts: list[dict[str, float]] = []

    def keep(own: dict[str, float]) -> list[dict[str, float]]:
        parts.append(dict(own))
        raise InterruptedError

    monkeypatch.setattr(evaluation, "gather_json", keep)
    for process in range(5):
        with pytest.raises(InterruptedError):
            plant(logits, labels, share=Share(process, 5))
    assert [bool(part) for part in parts].count(True) == 2
    monkeypatch.setattr(evaluation, "gather_json", lambda _: parts)
    for process in range(5):
        found = plant(logits, labels, share=Share(process, 5))
        np.testing.assert_allclose(found[:4], expect(logits, labels)[:4], rtol=1e-6)
