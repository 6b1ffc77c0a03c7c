"""Three updates of every optimiser against its formula in NumPy."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxtern.training.optimizers import create_optimizer, is_kernel
from jaxtern.training.recipe import Recipe
from jaxtern.training.rules import OPTIMIZERS

RATE, STEPS = 0.1, 3
Tree = dict[str, dict[str, np.ndarray]]


def draw(seed: int) -> Tree:
    generator = np.random.default_rng(seed)
    shapes = {"kernel": (3, 2), "bias": (2,)}
    return {"fc": {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}}


def sgd(gradients: Iterable[np.ndarray]) -> Iterable[np.ndarray]:
    yield from gradients


def momentum(gradients: Iterable[np.ndarray]) -> Iterable[np.ndarray]:
    velocity = 0.0
    for g in gradients:
        velocity = 0.8 * velocity + g
        yield velocity


def adam(gradients: Iterable[np.ndarray]) -> Iterable[np.ndarray]:
    first = second = 0.0
    for t, g in enumerate(gradients, start=1):
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g * g
        yield first / (1 - 0.9**t) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)


def rmsprop(gradients: Iterable[np.ndarray]) -> Iterable[np.ndarray]:
    """TensorFlow's with TernGrad's decay .9 and epsilon 1: the mean square starts at 1, epsilon is under the root."""
    square = 1.0
    for g in gradients:
        square = 0.9 * square + 0.1 * g * g
        yield g / np.sqrt(square + 1.0)


FORMULAS: dict[str, Callable] = {"sgd": sgd, "momentum": momentum, "adam": adam, "rmsprop": rmsprop}


def run(recipe: Recipe, schedule: Any, params: Tree) -> list[Tree]:
    optimizer = create_optimizer(recipe, schedule)
    params = jax.tree.map(jnp.asarray, params)
    state, history = optimizer.init(params), []
    for step in range(STEPS):
        updates, state = optimizer.update(jax.tree.map(jnp.asarray, draw(step)), state, params)
        params = optax.apply_updates(params, updates)
        history.append(jax.tree.map(np.asarray, params))
    return history


@pytest.mark.parametrize("decay", [0.0, 0.03])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_follows_its_formula(name: str, decay: float):
    recipe = Recipe(optimizer=name, momentum=0.8, weight_decay=decay, weight_decay_mode="decoupled")
    history = run(recipe, optax.constant_schedule(RATE), draw(10))
    for leaf in ("kernel", "bias"):
        weight = draw(10)["fc"][leaf].astype(np.float64)
        gradients = [draw(step)["fc"][leaf].astype(np.float64) for step in range(STEPS)]
        for update, params in zip(FORMULAS[name](gradients), history, strict=True):
            weight = weight - RATE * (update + (decay * weight if leaf == "kernel" else 0))
            np.testing.assert_allclose(params["fc"][leaf], weight, rtol=2e-5, atol=1e-6)


def test_optimizer_leaves_weight_decay_in_the_loss_to_the_loss():
    plain, in_loss = (Recipe(optimizer="sgd", weight_decay=decay, weight_decay_mode="loss") for decay in (0.0, 0.5))
    histories = [run(recipe, optax.constant_schedule(RATE), draw(10)) for recipe in (plain, in_loss)]
    for leaf in ("kernel", "bias"):
        np.testing.assert_array_equal(histories[0][-1]["fc"][leaf], histories[1][-1]["fc"][leaf])


def test_optimizer_takes_the_rate_of_every_step_from_the_schedule():
    history = run(Recipe(optimizer="sgd"), lambda step: jnp.where(step == 1, 1.0, 0.0), draw(10))
    expected = [draw(10)["fc"]["kernel"], *[draw(10)["fc"]["kernel"] - draw(1)["fc"]["kernel"]] * 2]
    for params, weight in zip(history, expected, strict=True):
        np.testing.assert_allclose(params["fc"]["kernel"], weight, rtol=1e-6)


def test_kernels_are_what_is_called_so_at_any_depth():
    tree = {"a": {"kernel": 1, "bias": 2}, "b": {"c": {"kernel": 3, "scale": 4}}}
    expected = {"a": {"kernel": True, "bias": False}, "b": {"c": {"kernel": True, "scale": False}}}
    assert is_kernel(tree) == expected
