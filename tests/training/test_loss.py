"""Losses against their formulas in float64: of classes, of the next character, smoothed, and with auxiliary logits."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxtern.training.step.loss import cross_entropy, measure

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
    loss, accuracy = measure(logits, targets, label_smoothing=0.1)
    np.testing.assert_allclose(loss, expect(logits, targets, 0.1).mean(), rtol=1e-6)
    assert 0 < accuracy < 1
    np.testing.assert_allclose(accuracy, np.mean(logits.argmax(axis=-1) == targets), rtol=1e-6)


def test_loss_adds_that_of_auxiliary_logits_by_its_weight():
    (logits, targets), (auxiliary, _) = draw((6,)), draw((6,), seed=1)
    loss, accuracy = measure((logits, auxiliary), targets, 0.1, auxiliary_weight=0.4)
    expected = expect(logits, targets, 0.1).mean() + 0.4 * expect(auxiliary, targets, 0.1).mean()
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    assert accuracy == measure(logits, targets).accuracy
