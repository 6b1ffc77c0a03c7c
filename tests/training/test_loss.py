"""Losses against their formulas in float64: of classes, of the next character, smoothed, and with auxiliary logits."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxtern.training import LOSSES
from jaxtern.training.recipe.model import ModelSection
from jaxtern.training.step.loss import compute_losses, cross_entropy, describe_loss, measure

CLASSES = 7
SHAPES = pytest.mark.parametrize("shape", [(6,), (4, 5)], ids=["classes", "characters"])


def draw(shape: tuple[int, ...], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(*shape, CLASSES)).astype(np.float32) * 3
    return logits, generator.integers(0, CLASSES, shape, np.int32)


def expect(logits: np.ndarray, targets: np.ndarray, smoothing: float) -> np.ndarray:
    exponents = np.exp(logits.astype(np.float64))
    logs = np.log(exponents / exponents.sum(axis=-1, keepdims=True))
    wanted = (1 - smoothing) * np.eye(CLASSES)[targets] + smoothing / CLASSES
    return -np.sum(wanted * logs, axis=-1)


@SHAPES
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_cross_entropy_is_that_of_smoothed_targets(shape: tuple[int, ...], smoothing: float):
    logits, targets = draw(shape)
    result = cross_entropy(logits, targets, smoothing)
    assert result.shape == shape
    np.testing.assert_allclose(result, expect(logits, targets, smoothing), rtol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_of_half_precision_is_added_in_float32(smoothing: float):
    """As if the rounded logits had been float32: bfloat16 would keep three digits of a sum over the classes."""
    logits, targets = draw((300,))
    rounded = jnp.asarray(logits, jnp.bfloat16)
    result = cross_entropy(rounded, targets, smoothing)
    assert result.dtype == jnp.float32
    expected = expect(np.asarray(rounded.astype(jnp.float32)), targets, smoothing)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@SHAPES
def test_loss_and_accuracy_are_means_over_all_targets(shape: tuple[int, ...]):
    logits, targets = draw(shape, seed=2)
    targets.flat[0] = logits.argmax(axis=-1).flat[0]
    measured = measure(ModelSection(label_smoothing=0.1), logits, targets)
    assert set(measured) == {"loss", "loss/smoothed_cross_entropy", "accuracy"}
    assert measured["loss"] == measured["loss/smoothed_cross_entropy"]
    np.testing.assert_allclose(measured["loss"], expect(logits, targets, 0.1).mean(), rtol=1e-6)
    assert 0 < measured["accuracy"] < 1
    np.testing.assert_allclose(measured["accuracy"], np.mean(logits.argmax(axis=-1) == targets), rtol=1e-6)


@pytest.mark.parametrize("heads", [1, 2])
def test_loss_adds_that_of_auxiliary_logits_by_its_weight(heads: int):
    logits, targets = draw((6,))
    others = [draw((6,), seed=1 + head)[0] for head in range(heads)]
    model = ModelSection(label_smoothing=0.1)
    measured = measure(model, (logits, *others), targets, auxiliary_weight=0.4)
    main, side = (sum(expect(each, targets, 0.1).mean() for each in group) for group in ([logits], others))
    np.testing.assert_allclose(measured["loss"], main + 0.4 * side, rtol=1e-6)
    np.testing.assert_allclose(measured["loss/smoothed_cross_entropy"], main, rtol=1e-6)
    np.testing.assert_allclose(measured["loss/auxiliary"], 0.4 * side, rtol=1e-6)
    assert measured["accuracy"] == measure(ModelSection(), logits, targets)["accuracy"]


def test_loss_says_what_it_is_made_of():
    parts = {"cross_entropy": 0.3012, "weight_decay": 0.13}
    assert describe_loss(0.4312, parts) == "0.4312 (cross entropy 0.3012, weight decay 0.1300)"
    assert describe_loss(0.3012, {"cross_entropy": 0.3012}) == "0.3012 (cross entropy)"


def test_loss_of_ones_own_is_lessened_and_its_metrics_are_told(monkeypatch: pytest.MonkeyPatch):
    def squares(logits: jnp.ndarray, targets: jnp.ndarray) -> dict[str, jnp.ndarray]:
        assert logits.dtype == jnp.float32
        return {"loss": jnp.sum(logits**2, axis=-1), "far": targets > 2}

    monkeypatch.setitem(LOSSES, "squares", squares)
    logits, targets = draw((4, 5))
    measured = measure(ModelSection(loss="squares"), (logits, 2 * logits), targets, auxiliary_weight=0.5)
    own = np.mean(np.sum(logits**2, axis=-1))
    np.testing.assert_allclose(measured["loss/squares"], own, rtol=1e-6)
    np.testing.assert_allclose(measured["loss"], own + 0.5 * 4 * own, rtol=1e-6)
    np.testing.assert_allclose(measured["metrics/far"], np.mean(targets > 2), rtol=1e-6)
    with pytest.raises(ValueError, match=r"^model.label_smoothing=0.1: must be 0 of 'squares'$"):
        ModelSection(loss="squares", label_smoothing=0.1)
    with pytest.raises(ValueError, match=r"^model.loss='cubes': must be one of cross_entropy, squares$"):
        ModelSection(loss="cubes")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (jnp.zeros(6), r"not \w+$"),
        ({"far": jnp.zeros(6)}, r"not {'far': \(6,\)}$"),
        ({"loss": jnp.zeros(())}, r"not {'loss': \(\)}$"),
        ({"loss": jnp.zeros(6), "far": jnp.zeros(5)}, r".*'far': \(5,\)}$"),
    ],
)
def test_loss_of_ones_own_that_gives_something_else_is_named(
    monkeypatch: pytest.MonkeyPatch, given: object, words: str
):
    monkeypatch.setitem(LOSSES, "mine", lambda *_: given)
    logits, targets = draw((6,))
    need = r"^model.loss='mine': must give a dict with 'loss', all of the targets' shape \(6,\), "
    with pytest.raises(ValueError, match=need + words):
        compute_losses("mine", jnp.asarray(logits), jnp.asarray(targets))
