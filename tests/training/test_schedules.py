"""Learning rates at every kind of step against the formulas in plain Python."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from jaxtern.training.recipe import Recipe
from jaxtern.training.rules import SCHEDULES
from jaxtern.training.schedules import create_schedule

RATE, STEPS, EXAMPLES = 0.04, 1000, 640  # ten steps an epoch


def staircase(step: int) -> float:
    return RATE * 0.1 ** (step // 200)  # decay_epochs of ten steps


FORMULAS: dict[str, Callable[[int], float]] = {
    "fixed": lambda _: RATE,
    "exponential": staircase,
    "polynomial": lambda step: RATE * (1 - step / STEPS) ** 0.5,
    "cosine": lambda step: RATE * (1 + math.cos(math.pi * step / STEPS)) / 2,
}


def test_schedule_names_are_those_of_the_formulas():
    assert set(SCHEDULES) == set(FORMULAS)


@pytest.mark.parametrize("step", [0, 1, 199, 200, 201, 400, 500, 999, 1000])
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_follows_its_formula(name: str, step: int):
    recipe = Recipe(schedule=name, learning_rate=RATE, num_steps=STEPS, batch_size=64, num_workers=4)
    rate = create_schedule(recipe, EXAMPLES)(step)
    np.testing.assert_allclose(rate, FORMULAS[name](step), rtol=2e-5, atol=1e-9)


@pytest.mark.parametrize(("power", "expected"), [(1.0, 0.75), (2.0, 0.5625)])
def test_schedule_polynomial_takes_its_power(power: float, expected: float):
    recipe = Recipe(schedule="polynomial", learning_rate=1.0, num_steps=100, power=power)
    np.testing.assert_allclose(create_schedule(recipe, EXAMPLES)(25), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("epochs", "factor", "step", "expected"),
    [(1.0, 0.5, 9, 1.0), (1.0, 0.5, 10, 0.5), (2.5, 0.5, 24, 1.0), (2.5, 0.5, 50, 0.25), (1e-9, 0.5, 3, 0.125)],
)
def test_schedule_staircase_counts_epochs(epochs: float, factor: float, step: int, expected: float):
    recipe = Recipe(schedule="exponential", learning_rate=1.0, decay_epochs=epochs, decay_factor=factor, batch_size=64)
    np.testing.assert_allclose(create_schedule(recipe, EXAMPLES)(step), expected, rtol=1e-6)
