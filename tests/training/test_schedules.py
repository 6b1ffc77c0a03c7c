"""Learning rates at every kind of step against the formulas in plain Python."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtern.training.recipe.optimizer import SCHEDULES, OptimizerSection
from jaxtern.training.recipe.run import RunSection
from jaxtern.training.step.schedules import create_schedule

RATE, END, STEPS, EXAMPLES = 0.04, 0.001, 1000, 640  # ten steps an epoch
LARS_32K = {
    "name": "lars", "learning_rate": 29.0, "schedule": "polynomial", "power": 2.0, "end_rate": 1e-4,
    "warmup_steps": 200, "warmup_rate": 2.0,
}  # fmt: skip
LARS_STEPS = 3600
MOXING = "5:0.001->0.4,30:0.4,60:0.04,80:0.004,90:0.0004"


def rates(optimizer: OptimizerSection, steps: list[int], num_examples: int = EXAMPLES, **run: int) -> np.ndarray:
    """At these steps, compiled; what is not compiled must be the same but for rounding."""
    schedule = create_schedule(optimizer, RunSection(**run), num_examples)
    compiled = jax.jit(jax.vmap(schedule))(jnp.array(steps, jnp.int32))
    for step, rate in list(zip(steps, compiled, strict=True))[:3]:
        plain = schedule(step)
        assert plain.dtype == compiled.dtype == jnp.float32
        assert plain.shape == ()
        np.testing.assert_allclose(plain, rate, rtol=2e-6, atol=1e-12)
    return np.asarray(compiled, np.float64)


def cosine(step: int) -> float:
    return END + (RATE - END) * (1 + math.cos(math.pi * step / STEPS)) / 2


FORMULAS: dict[str, Callable[[int], float]] = {
    "fixed": lambda _: RATE,
    "exponential": lambda step: RATE * 0.1 ** (step // 200),  # decay_epochs of ten steps
    "piecewise": lambda step: RATE * 0.1 ** ((step >= 25) + (step >= 400)),
    "polynomial": lambda step: END + (RATE - END) * (1 - step / STEPS) ** 0.5,
    "cosine": cosine,
}


def test_schedule_names_are_those_of_the_formulas():
    assert set(SCHEDULES) == set(FORMULAS)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_follows_its_formula(name: str):
    optimizer = OptimizerSection(schedule=name, learning_rate=RATE, end_rate=END, boundaries=(2.5, 40.0))
    steps = [0, 1, 24, 25, 26, 199, 200, 201, 399, 400, 500, 998, 999, 1000]
    np.testing.assert_allclose(
        rates(optimizer, steps, num_steps=STEPS), [FORMULAS[name](step) for step in steps], rtol=2e-5, atol=1e-9
    )


@pytest.mark.parametrize("name", ["polynomial", "cosine"])
@pytest.mark.parametrize("num_steps", [3, 41, 999, 1001, 3600])
def test_schedule_keeps_its_end_rate_from_the_last_step(name: str, num_steps: int):
    """A compiled quotient may be above 1, whose root is NaN."""
    optimizer = OptimizerSection(schedule=name, learning_rate=RATE, end_rate=END)
    measured = rates(optimizer, [num_steps, num_steps + 1, 10 * num_steps], num_steps=num_steps)
    np.testing.assert_allclose(measured, END, rtol=1e-5)


@pytest.mark.parametrize(("power", "expected"), [(0.0, 1.0), (1.0, 0.75), (2.0, 0.5625)])
def test_schedule_polynomial_takes_its_power(power: float, expected: float):
    optimizer = OptimizerSection(schedule="polynomial", learning_rate=1.0, power=power)
    np.testing.assert_allclose(rates(optimizer, [25], num_steps=100), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("epochs", "factor", "step", "expected"),
    [
        (1.0, 0.5, 9, 1.0), (1.0, 0.5, 10, 0.5), (2.5, 0.5, 24, 1.0), (2.5, 0.5, 50, 0.25), (1e-9, 0.5, 3, 0.125),
        (0.3, 0.5, 2, 1.0), (0.3, 0.5, 3, 0.5), (0.35, 0.5, 3, 0.5), (1.0, 0.0, 9, 1.0), (1.0, 0.0, 10, 0.0),
        (3e38, 0.5, 10**9, 1.0),
    ],
)  # fmt: skip
def test_schedule_staircase_counts_epochs(epochs: float, factor: float, step: int, expected: float):
    optimizer = OptimizerSection(schedule="exponential", learning_rate=1.0, decay_epochs=epochs, decay_factor=factor)
    np.testing.assert_allclose(rates(optimizer, [step]), expected, rtol=1e-6)


@pytest.mark.parametrize("steps", [41, 47, 49, 293])
def test_schedule_staircase_has_its_stairs_at_their_very_step_when_compiled(steps: int):
    optimizer = OptimizerSection(schedule="exponential", learning_rate=1.0, decay_epochs=1.0, decay_factor=0.5)
    measured = rates(optimizer, [steps - 1, steps, 2 * steps - 1, 2 * steps, 3 * steps], num_examples=64 * steps)
    np.testing.assert_allclose(measured, [1.0, 0.5, 0.5, 0.25, 0.125], rtol=1e-6)


@pytest.mark.parametrize(
    ("boundaries", "factor", "expected"),
    [
        ((0.3,), 0.5, [1.0, 1.0, 1.0, 0.5, 0.5]),
        ((0.25,), 0.5, [1.0, 1.0, 1.0, 0.5, 0.5]),  # between two steps
        ((0.31, 0.39), 0.5, [1.0, 1.0, 1.0, 1.0, 0.25]),  # both between the same two
        ((0.2, 0.4), 0.0, [1.0, 1.0, 0.0, 0.0, 0.0]),
        ((0.2, 3e38), 3.0, [1.0, 1.0, 3.0, 3.0, 3.0]),
    ],
)
def test_schedule_piecewise_multiplies_at_every_boundary(boundaries: tuple, factor: float, expected: list[float]):
    optimizer = OptimizerSection(schedule="piecewise", learning_rate=1.0, boundaries=boundaries, decay_factor=factor)
    np.testing.assert_allclose(rates(optimizer, [0, 1, 2, 3, 4]), expected, rtol=1e-6)


def test_schedule_of_moxings_rate_string():
    """1,281,167 examples in batches of 256: 5,004.56 steps an epoch."""

    def expected(step: int) -> float:
        epoch = step * 256 / 1_281_167
        if epoch < 5:
            return 0.001 + 0.399 * epoch / 5
        return next((rate for end, rate in ((30, 0.4), (60, 0.04), (80, 0.004)) if epoch < end), 0.0004)

    optimizer = OptimizerSection(schedule=MOXING)
    changes = [25022, 25023, 150136, 150137, 300273, 300274, 400364, 400365, 450410, 450411]
    steps = [0, 1, 5004, 12_511, *changes, 1_000_000]
    assert sum(expected(a) != expected(a + 1) for a in changes[2:8:2]) == 3  # the steps are the right ones
    measured = rates(optimizer, steps, 1_281_167, batch_size=256)
    np.testing.assert_allclose(measured, [expected(step) for step in steps], rtol=2e-6)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("1:0.1=>0.001", [0.1, 0.1 * 0.01**0.5, 0.1 * 0.01**0.9, 0.001, 0.001]),
        ("1:0.1->0.3", [0.1, 0.2, 0.28, 0.3, 0.3]),
        ("1:0->1,2:1=>16", [0.0, 0.5, 0.9, 1.0, 4.0]),
        ("0.5:1,1.0:2,1.5:3", [1.0, 2.0, 2.0, 3.0, 3.0]),
        ("0.55:1,1:2", [1.0, 1.0, 2.0, 2.0, 2.0]),
        ("1e37:0.25,3e38:1->2", [0.25] * 5),
    ],
)
def test_schedule_of_a_rate_string_follows_its_spans(schedule: str, expected: list[float]):
    np.testing.assert_allclose(rates(OptimizerSection(schedule=schedule), [0, 5, 9, 10, 15]), expected, rtol=2e-6)


def test_schedule_of_lars_32k():
    """Warm-up from 2 to what the polynomial has at step 200, and then the polynomial, counted from step 0."""

    def polynomial(step: int) -> float:
        return 1e-4 + (29 - 1e-4) * (1 - step / 3600) ** 2

    measured = rates(OptimizerSection(**LARS_32K), [0, 1, 100, 199, 200, 201, 1800, 3599, 3600], num_steps=LARS_STEPS)
    rise = (polynomial(200) - 2) / 200
    expected = [2, 2 + rise, 2 + 100 * rise, 2 + 199 * rise, *map(polynomial, (200, 201, 1800, 3599)), 1e-4]
    np.testing.assert_allclose(measured, expected, rtol=2e-6)
    np.testing.assert_allclose(measured[[4, 6]], [25.8673, 7.2501], rtol=1e-5)


def test_schedule_warms_up_to_a_peak_of_its_own():
    measured = rates(OptimizerSection(**LARS_32K, warmup_peak=29.0), [0, 100, 199, 200, 1800], num_steps=LARS_STEPS)
    np.testing.assert_allclose(measured, [2, 15.5, 2 + 27 * 199 / 200, 25.8673, 7.2501], rtol=1e-5)


@pytest.mark.parametrize("schedule", ["1:0.1->0.3,2:0.05", "exponential"])
def test_schedule_warms_up_to_where_it_is_then(schedule: str):
    fields = {"schedule": schedule, "learning_rate": 1.0, "decay_epochs": 0.5}
    plain = rates(OptimizerSection(**fields), [12, 13, 30])
    warmed = rates(OptimizerSection(**fields, warmup_steps=12, warmup_rate=0.5), [0, 3, 12, 13, 30])
    np.testing.assert_allclose(warmed[:2], [0.5, 0.5 + (plain[0] - 0.5) / 4], rtol=1e-6)
    np.testing.assert_array_equal(warmed[2:], plain)


@pytest.mark.parametrize("schedule", ["cosine", "polynomial"])
@pytest.mark.parametrize("num_steps", [5, 20])
def test_schedule_of_a_trial_that_ends_in_the_warm_up_rises_as_that_of_the_whole_run(schedule: str, num_steps: int):
    """At step 20 these schedules have come to 0; what a long run has then is nearly the learning rate."""
    optimizer = OptimizerSection(schedule=schedule, learning_rate=0.5, warmup_steps=20, warmup_rate=0.1)
    steps = [0, 1, 4, 5]
    trial = rates(optimizer, steps, num_steps=num_steps)
    np.testing.assert_allclose(trial, [0.1 + 0.4 * step / 20 for step in steps], rtol=1e-6)
    np.testing.assert_allclose(trial, rates(optimizer, steps, num_steps=100_000), rtol=1e-3)


@pytest.mark.parametrize(
    "fields",
    [LARS_32K, {"schedule": "1:0.1->0.3,2:0.05", "warmup_steps": 3, "warmup_rate": 0.01}, {"schedule": "fixed"}],
    ids=["lars", "string", "fixed"],
)
def test_schedule_scales_all_rates_by_the_batch(fields: dict):
    steps = [0, 1, 2, 3, 7, 15, 100, 300, 3600]
    sections = (OptimizerSection(**fields, rate_batch_size=size) for size in (24, None))
    scaled, plain = (rates(section, steps, batch_size=64, num_steps=LARS_STEPS) for section in sections)
    np.testing.assert_allclose(scaled, plain * 64 / 24, rtol=1e-6)
