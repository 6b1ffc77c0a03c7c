"""Three updates of every optimiser against its formula in NumPy."""

import itertools
import typing
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxtern.models.model import Model
from jaxtern.training.recipe.optimizer import OptimizerSection
from jaxtern.training.recipe.selection import mask
from jaxtern.training.step.optimizers import DECAYING_OPTIMIZERS, create_optimizer, decay_patterns, decays_in_loss

OPTIMIZERS = typing.get_args(typing.get_type_hints(OptimizerSection)["name"])
RATES, STEPS = (0.1, 0.2, 0.05), 3
CONSTANTS = {"beta1": 0.9, "beta2": 0.999, "rms_decay": 0.9}
KERNELS = (r"(.*/)?kernel",)
Tree = dict[str, dict[str, np.ndarray]]


def draw(seed: int) -> Tree:
    generator = np.random.default_rng(seed)
    shapes = {"kernel": (3, 2), "bias": (2,)}
    return {"fc": {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}}


class Slow:
    """One tensor's updates, from the formulas alone; `d` is 0 for a tensor that is not decayed."""

    def __init__(self, decay: float, decayed: bool, trust: float = 0.02, **constants: float):
        self.b1, self.b2, self.rms = (constants.get(name, given) for name, given in CONSTANTS.items())
        self.epsilon = constants.get("epsilon")
        self.d, self.decayed, self.trust = decay if decayed else 0.0, decayed, trust
        self.t, self.first, self.second, self.velocity, self.square = 0, 0.0, 0.0, 0.0, 1.0

    def sgd(self, g: np.ndarray, w: np.ndarray, rate: float) -> np.ndarray:
        return rate * (g + self.d * w)

    def momentum(self, g: np.ndarray, w: np.ndarray, rate: float) -> np.ndarray:
        self.velocity = 0.8 * self.velocity + g
        return rate * (self.velocity + self.d * w)

    def nesterov(self, g: np.ndarray, w: np.ndarray, rate: float) -> np.ndarray:
        self.velocity = 0.8 * self.velocity + g
        return rate * (g + 0.8 * self.velocity + self.d * w)

    def adam(self, g: np.ndarray, w: np.ndarray, rate: float, epsilon: float = 1e-8) -> np.ndarray:
        self.t += 1
        self.first = self.b1 * self.first + (1 - self.b1) * g
        self.second = self.b2 * self.second + (1 - self.b2) * g * g
        root = np.sqrt(self.second / (1 - self.b2**self.t)) + (self.epsilon or epsilon)
        quotient = self.first / (1 - self.b1**self.t) / root
        return rate * (quotient + self.d * w)

    adamw = adam

    def rmsprop(self, g: np.ndarray, w: np.ndarray, rate: float) -> np.ndarray:
        """TensorFlow's with TernGrad's decay .9, epsilon 1: the mean square starts at 1, epsilon is under the root."""
        self.square = self.rms * self.square + (1 - self.rms) * g * g
        return rate * (g / np.sqrt(self.square + (self.epsilon or 1.0)) + self.d * w)

    def lamb(self, g: np.ndarray, w: np.ndarray, rate: float) -> np.ndarray:
        """You et al. 2020, algorithm 2, with phi(z) = z."""
        update = self.adam(g, w, 1.0, epsilon=1e-6)
        return rate * update * (np.linalg.norm(w) / np.linalg.norm(update) if self.decayed else 1)

    def lars(self, g: np.ndarray, w: np.ndarray, rate: float) -> np.ndarray:
        """You et al. 2017, algorithm 1, but for the norm: of g + d w, where theirs is |g| + d |w|."""
        update = g + self.d * w
        local = self.trust * np.linalg.norm(w) / np.linalg.norm(update) if self.decayed else 1.0
        self.velocity = 0.8 * self.velocity + rate * local * update
        return self.velocity

    def muon(self, g: np.ndarray, w: np.ndarray, rate: float) -> np.ndarray:
        """Five iterations of Newton and Schulz change nothing but the singular values. NAdam for what is no matrix."""
        is_matrix = self.decayed and g.ndim == 2
        b1 = 0.8 if is_matrix else self.b1
        self.t += 1
        self.first = b1 * self.first + (1 - b1) * g
        self.second = self.b2 * self.second + (1 - self.b2) * g * g
        mean = b1 * self.first / (1 - b1 ** (self.t + 1)) + (1 - b1) * g / (1 - b1**self.t)
        if not is_matrix:
            return rate * (mean / (np.sqrt(self.second / (1 - self.b2**self.t)) + 1e-8) + self.d * w)
        left, values, right = np.linalg.svd(mean / np.linalg.norm(mean), full_matrices=False)
        for _ in range(5):
            values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
        return rate * (0.2 * max(g.shape) ** 0.5 * (left * values) @ right + self.d * w)


def run(section: OptimizerSection, schedule: Any, params: Tree, decayed: tuple[str, ...] = KERNELS) -> list[Tree]:
    optimizer = create_optimizer(section, schedule, decayed, "fc2")
    params = jax.tree.map(jnp.asarray, params)
    state, history, update = optimizer.init(params), [], jax.jit(optimizer.update)
    for step in range(STEPS):
        updates, state = update(jax.tree.map(jnp.asarray, draw(step)), state, params)
        params = optax.apply_updates(params, updates)
        history.append(jax.tree.map(np.asarray, params))
    return history


def assert_follows(history: list[Tree], leaf: str, rule: Callable) -> None:
    weight = draw(10)["fc"][leaf].astype(np.float64)
    for step, params in enumerate(history):
        weight = weight - rule(draw(step)["fc"][leaf].astype(np.float64), weight, RATES[step])
        np.testing.assert_allclose(params["fc"][leaf], weight, rtol=2e-5, atol=1e-6)


def schedule(step: jax.Array) -> jax.Array:
    return jnp.array(RATES)[step]


@pytest.mark.parametrize("mode", ["decoupled", "loss"])
@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_follows_its_formula(name: str, decay: float, mode: str):
    """Weight decay in the loss is left to the loss, but by those that always decay."""
    section = OptimizerSection(
        name=name, momentum=0.8, trust_coefficient=0.02, weight_decay=decay, weight_decay_mode=mode
    )
    history = run(section, schedule, draw(10))
    taken = decay if mode == "decoupled" or name in ("adamw", "lars", "lamb", "muon") else 0.0
    for leaf in ("kernel", "bias"):
        assert_follows(history, leaf, getattr(Slow(taken, leaf == "kernel"), name))


@pytest.mark.parametrize("name", ["adam", "adamw", "lamb", "rmsprop"])
@pytest.mark.parametrize("constant", [{"beta1": 0.5}, {"beta2": 0.7}, {"rms_decay": 0.6}, {"epsilon": 0.3}])
def test_optimizer_takes_its_constants_from_the_recipe(name: str, constant: dict[str, float]):
    """And none that is another's."""
    history = run(OptimizerSection(name=name, **constant), schedule, draw(10))
    assert_follows(history, "kernel", getattr(Slow(0.0, decayed=True, **constant), name))
    is_own = "epsilon" in constant or (name == "rmsprop") == ("rms_decay" in constant)
    plain = run(OptimizerSection(name=name), schedule, draw(10))
    assert is_own != np.array_equal(history[-1]["fc"]["kernel"], plain[-1]["fc"]["kernel"])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_follows_no_other_formula(name: str):
    section = OptimizerSection(
        name=name, momentum=0.8, trust_coefficient=0.02, weight_decay=0.3, weight_decay_mode="loss"
    )
    history = run(section, schedule, draw(10))
    decay = 0.3 if name in DECAYING_OPTIMIZERS else 0.0
    for other in OPTIMIZERS:
        if getattr(Slow, other) is not getattr(Slow, name):
            with pytest.raises(AssertionError):
                assert_follows(history, "kernel", getattr(Slow(decay, decayed=True), other))


@pytest.mark.parametrize("name", ["lars", "lamb"])
@pytest.mark.parametrize("zero", ["weights", "gradients"])
def test_optimizer_by_norms_moves_tensors_of_zeros_by_the_plain_rule(name: str, zero: str):
    """A layer that starts at 0 has no norm to go by, and must not stay there; without a gradient it stays finite."""
    weight = {"fc": {"kernel": jnp.full((3, 2), 0.0 if zero == "weights" else 1.0)}}
    gradient = {"fc": {"kernel": jnp.full((3, 2), 0.0 if zero == "gradients" else 2.0)}}
    optimizer = create_optimizer(OptimizerSection(name=name), optax.constant_schedule(0.1), KERNELS, "fc2")
    updates, _ = optimizer.update(gradient, optimizer.init(weight), weight)
    plain = {"lars": 0.2, "lamb": 0.1}[name]
    expected = 0.0 if zero == "gradients" else -plain
    np.testing.assert_allclose(updates["fc"]["kernel"], expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["sgd", "adamw", "lars", "lamb"])
def test_optimizer_decays_what_the_recipe_names_in_place_of_what_the_network_does(name: str):
    fields = {"name": name, "momentum": 0.8, "trust_coefficient": 0.02, "weight_decay": 0.3}
    history = run(OptimizerSection(**fields, weight_decay_mode="decoupled", decay=("fc/b.*",)), schedule, draw(10))
    for leaf in ("kernel", "bias"):
        assert_follows(history, leaf, getattr(Slow(0.3, leaf == "bias"), name))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_works_where_the_network_decays_nothing(name: str):
    fields = {"name": name, "momentum": 0.8, "weight_decay": 0.3, "weight_decay_mode": "decoupled"}
    history = run(OptimizerSection(**fields), schedule, draw(10), decayed=("other/kernel",))
    for leaf in ("kernel", "bias"):
        assert_follows(history, leaf, getattr(Slow(0.3, decayed=False), name))


@pytest.mark.parametrize(
    ("name", "mode", "decay"), list(itertools.product(OPTIMIZERS, ("loss", "decoupled"), (0.0, 0.1)))
)
def test_weight_decay_is_in_the_loss_only_of_optimizers_that_do_not_decay(name: str, mode: str, decay: float):
    expected = mode == "loss" and decay > 0 and name not in ("adamw", "lars", "lamb", "muon")
    assert decays_in_loss(OptimizerSection(name=name, weight_decay=decay, weight_decay_mode=mode)) is expected


@pytest.mark.parametrize(
    ("path", "shape", "rows"),
    [("conv/kernel", (3, 3, 8, 16), 72), ("query/kernel", (16, 4, 4), 16), ("out/kernel", (4, 4, 16), 16)],
)
def test_muon_takes_a_tensor_as_the_matrix_that_is_nearest_to_a_square(path: str, shape: tuple[int, ...], rows: int):
    layer, leaf = path.split("/")
    gradient = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    found = {}
    for name, own in (("whole", shape), ("matrix", (rows, gradient.size // rows))):
        optimizer = create_optimizer(OptimizerSection(name="muon"), optax.constant_schedule(1.0), KERNELS, "fc2")
        weights = {layer: {leaf: jnp.zeros(own)}}
        updates, _ = optimizer.update({layer: {leaf: gradient.reshape(own)}}, optimizer.init(weights), weights)
        found[name] = np.ravel(updates[layer][leaf])
    np.testing.assert_allclose(found["whole"], found["matrix"], rtol=1e-3, atol=1e-4)


def test_muon_leaves_the_last_layer_and_embeddings_to_adam():
    optimizer = create_optimizer(OptimizerSection(name="muon"), optax.constant_schedule(1.0), KERNELS, "fc")
    weights = {"fc": {"kernel": jnp.zeros((4, 3))}, "tokens": {"embedding": jnp.zeros((4, 3))}}
    updates, _ = optimizer.update(jax.tree.map(lambda x: x + 2.0, weights), optimizer.init(weights), weights)
    nadam = -(0.9 * 0.1 / (1 - 0.9**2) + 1)  # of a first gradient, whatever its size
    np.testing.assert_allclose(jax.tree.leaves(updates), np.full((2, 4, 3), nadam), rtol=1e-5)


def test_decay_patterns_are_the_recipes_where_it_has_some():
    assert decay_patterns(OptimizerSection(), ["fc1/kernel"]) == ("fc1/kernel",)
    assert decay_patterns(OptimizerSection(decay=("a", "b")), ["fc1/kernel"]) == ("a", "b")


def test_kernels_are_what_is_called_so_at_any_depth():
    tree = {"a": {"kernel": 1, "bias": 2}, "b": {"c": {"kernel": 3, "scale": 4}}}
    expected = {"a": {"kernel": True, "bias": False}, "b": {"c": {"kernel": True, "scale": False}}}
    assert mask(Model.decayed, tree) == expected
