"""All networks keep one contract: variables, head, decay, keys, dropout, and what is refused."""

import functools
import inspect
import re
import runpy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxtern.hosts.agreement import describe_source
from jaxtern.models import MODELS, create_model, functions_of

# The smallest images of which all layers get something, but for those that take any. Deeper ResNets have no code of
# their own.
SHAPES = {
    "lenet": (12, 8, 1),
    "cifarnet": (7, 9, 3),
    "mnistnet": (7, 12, 1),
    "alexnet": (57, 57, 3),
    "alexnet_v2": (67, 67, 3),
    "vgg_a": (32, 32, 3),
    "vgg_16": (32, 32, 3),
    "vgg_19": (32, 32, 3),
    "vgg_f": (32, 32, 3),
    "googlenet": (32, 32, 3),
    "googlenet_terngrad": (32, 32, 3),
    "inception_v3": (75, 75, 3),
    "resnet_20": (8, 8, 3),
    "resnet_50": (32, 32, 3),
}
TRAINED = ["lenet", "cifarnet", "mnistnet", "alexnet", "alexnet_v2", "vgg_a", "vgg_f", "googlenet"]
NORMALIZED = ["alexnet", "vgg_a", "googlenet"]
DROPPING = ["mnistnet", "alexnet", "alexnet_v2", "vgg_a", "vgg_f", "googlenet"]
LARGE = [
    "alexnet",
    "alexnet_v2",
    "vgg_a",
    "vgg_f",
    "googlenet",
    "googlenet_terngrad",
    "inception_v3",
]  # take long to compile


def marked(names: Iterable[str]) -> list:
    return [pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE)) for name in names]


class Outcome(NamedTuple):
    """Of a network: logits in evaluation and by key of training, and what else came of the first key."""

    evaluated: np.ndarray
    evaluated_moments: dict
    trained: dict[int, np.ndarray]
    trained_again: np.ndarray
    gradients: dict
    moments: dict
    first_moments: dict


@pytest.fixture(scope="module")
def outcome_of(filled: Callable) -> Callable[[str], Outcome]:
    """What comes of a small batch, computed once for each network."""

    @functools.cache
    def run(name: str) -> Outcome:
        graph, params, first_moments = filled(name, SHAPES[name], 5)
        random = np.random.default_rng(1)
        images = random.standard_normal((4, *SHAPES[name]), np.float32)
        weights = random.standard_normal((4, 5), np.float32)

        def loss(params: Any, key: jax.Array | None) -> tuple[jax.Array, tuple[jax.Array, dict]]:
            model = nnx.merge(graph, params, first_moments)
            outputs = model(images, key)
            logits, *heads = outputs if isinstance(outputs, tuple) else (outputs,)
            total = sum((jnp.vdot(weights, each) for each in heads), start=jnp.vdot(weights, logits))
            return total, (logits, nnx.to_pure_dict(nnx.state(model, nnx.BatchStat)))

        train = jax.jit(jax.grad(loss, has_aux=True))
        evaluate = jax.jit(lambda params: loss(params, None)[1])
        evaluated, evaluated_moments = evaluate(params)
        gradients, (first, moments) = train(params, jax.random.key(1))
        again, other = (np.asarray(train(params, jax.random.key(seed))[1][0]) for seed in (1, 2))
        trained = {1: np.asarray(first), 2: other}
        return Outcome(np.asarray(evaluated), evaluated_moments, trained, again, gradients, moments, first_moments)

    return run


@functools.cache
def shape_of(name: str) -> nnx.Module:
    """The network with ten classes, without values."""
    return nnx.eval_shape(lambda: create_model(name, SHAPES[name], 10, seed=0))


@pytest.mark.few("*net", "resnet_20", "alexnet_v2")
@pytest.mark.parametrize("name", SHAPES)
def test_model_keeps_weights_and_moments_and_nothing_else(name: str):
    for _, variable in nnx.to_flat_state(nnx.state(shape_of(name))):
        assert isinstance(variable, nnx.Param | nnx.BatchStat)


@pytest.mark.few("*net", "resnet*", "vgg*", "alexnet*")
@pytest.mark.parametrize("name", SHAPES)
def test_model_names_its_head_and_decays_kernels_alone(name: str):
    weights = nnx.to_flat_state(nnx.state(shape_of(name), nnx.Param))
    shapes = {"/".join(map(str, path)): weight.shape for path, weight in weights}
    assert shapes[f"{MODELS[name].last_layer}/bias"] == (10,)
    decayed = {path for path in shapes if any(re.fullmatch(pattern, path) for pattern in MODELS[name].decayed)}
    kernels = {path for path in shapes if path.endswith("kernel")}
    assert decayed == ({"fc1/kernel", "fc2/kernel"} if name == "cifarnet" else kernels)


@pytest.mark.parametrize("extra", [(0, 0), pytest.param((9, 30), marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", marked(SHAPES))
def test_model_gives_logits_of_images_of_any_size_above_its_least(name: str, extra: tuple[int, int]):
    height, width, channels = SHAPES[name]
    shape = height + extra[0], width + extra[1], channels

    def both(images: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        model = create_model(name, shape, 7, seed=0)
        return model(images), model(images, key)

    images = jax.ShapeDtypeStruct((2, *shape), jnp.float32)
    evaluated, trained = jax.eval_shape(both, images, jax.random.key(0))
    for logits in (evaluated, *(trained if isinstance(trained, tuple) else (trained,))):
        assert (logits.shape, logits.dtype) == ((2, 7), jnp.float32)


@pytest.mark.parametrize("name", marked(TRAINED))
def test_gradient_reaches_every_weight(name: str, outcome_of: Callable):
    for path, gradient in jax.tree_util.tree_leaves_with_path(outcome_of(name).gradients):
        assert np.any(gradient), path
        assert np.all(np.isfinite(gradient)), path


@pytest.mark.parametrize("name", marked(DROPPING))
def test_key_decides_what_is_dropped(name: str, outcome_of: Callable):
    outcome = outcome_of(name)
    np.testing.assert_array_equal(outcome.trained[1], outcome.trained_again)
    assert np.all(outcome.trained[1] != outcome.trained[2])


@pytest.mark.parametrize("name", marked(sorted(set(DROPPING) - set(NORMALIZED))))
def test_nothing_is_dropped_in_evaluation(name: str, outcome_of: Callable, filled: Callable):
    graph, params, moments = filled(name, SHAPES[name], 5, dropout_rate=0.0)
    images = np.random.default_rng(1).standard_normal((4, *SHAPES[name]), np.float32)
    run = jax.jit(lambda params: nnx.merge(graph, params, moments)(images, jax.random.key(0)))
    trained = run(params)
    np.testing.assert_allclose(outcome_of(name).evaluated, trained, rtol=1e-4, atol=1e-5)
    assert np.all(np.abs(outcome_of(name).trained[1] - trained) > 1e-3)


@pytest.mark.parametrize("name", ["lenet", "cifarnet"])
def test_model_that_drops_nothing_gives_in_training_what_it_gives_in_evaluation(name: str, outcome_of: Callable):
    outcome = outcome_of(name)
    np.testing.assert_allclose(outcome.trained[1], outcome.evaluated, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(outcome.trained[1], outcome.trained[2])


@pytest.mark.parametrize("name", marked(NORMALIZED))
def test_moments_move_in_training_and_stay_in_evaluation(name: str, outcome_of: Callable):
    outcome = outcome_of(name)
    jax.tree.map(np.testing.assert_array_equal, outcome.evaluated_moments, outcome.first_moments)
    for moved, first in zip(jax.tree.leaves(outcome.moments), jax.tree.leaves(outcome.first_moments), strict=True):
        assert np.mean(moved != first) > 0.9  # one of many may be met by its new value


@pytest.mark.parametrize(("name", "momentum"), [("alexnet", 0.9997), ("vgg_a", 0.999), ("googlenet_terngrad", 0.9997)])
def test_batch_norm_has_terngrads_constants_and_no_scale(name: str, momentum: float):
    norms = [module for _, module in nnx.iter_modules(shape_of(name)) if isinstance(module, nnx.BatchNorm)]
    assert {(norm.momentum, norm.epsilon, norm.use_scale) for norm in norms} == {(momentum, 0.001, False)}


@pytest.mark.parametrize(
    ("name", "side"),
    [("lenet", 4), ("alexnet", 57), ("alexnet_v2", 67), ("vgg_a", 32), ("vgg_f", 32)],
)
def test_model_refuses_images_of_which_nothing_would_be_left(name: str, side: int, shapes_of: Callable):
    shapes_of(name, (side, side, 3), 10)
    for shape in ((side - 1, 224, 3), (224, side - 1, 3)):
        message = f"{shape}: must be height, width and channels, height and width (data.image_size) {side} or more"
        with pytest.raises(ValueError, match=re.escape(message)):
            create_model(name, shape, 10, seed=0)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("shape", [(64, 64), (64, 0, 3), (64, 64, 0)])
def test_model_refuses_what_is_no_image(name: str, shape: tuple[int, ...]):
    with pytest.raises(ValueError, match=rf"input_shape={re.escape(str(shape))}: must be height, width and channels"):
        create_model(name, shape, 10, seed=0)


def test_model_that_does_not_exist_is_named():
    with pytest.raises(ValueError, match=r"model.name='lenett': must be one of lenet, cifarnet"):
        create_model("lenett", (28, 28, 1), 10, seed=0)


@pytest.mark.parametrize("name", SHAPES)
def test_dropout_rate_is_that_of_all_dropouts_or_refused(name: str):
    if "dropout_rate" in inspect.signature(MODELS[name].__init__).parameters:
        model = nnx.eval_shape(lambda: create_model(name, SHAPES[name], 10, seed=0, dropout_rate=0.2))
        rates = [module.rate for _, module in nnx.iter_modules(model) if isinstance(module, nnx.Dropout)]
        assert rates
        assert set(rates) == {0.2}
    else:
        with pytest.raises(ValueError, match=f"dropout_rate=0.2: must be None, as model='{name}' has no dropout"):
            create_model(name, SHAPES[name], 10, seed=0, dropout_rate=0.2)


@pytest.mark.parametrize(("name", "shape"), [("lenet", (28,)), ("transformer", (28, 28, 1))])
def test_model_of_images_takes_no_text_nor_the_other_way_round(name: str, shape: tuple[int, ...]):
    with pytest.raises(ValueError, match=f"name='{name}': takes (images|text), and preprocessing gives (text|images)"):
        create_model(name, shape, 10, seed=0)


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_dropout_rate_out_of_its_range_is_refused(rate: float):
    with pytest.raises(ValueError, match=f"dropout_rate={rate}: must be from 0 to below 1"):
        create_model("mnistnet", (28, 28, 1), 10, seed=0, dropout_rate=rate)


def test_source_of_a_network_is_told_by_file_and_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """So that hosts with files that differ do not train together."""
    path = tmp_path / "mine.py"
    told = []
    for width in (3, 4):
        own = f"class Mine(Model):\n    def width(self):\n        return {width}\n"
        path.write_text(f"from jaxtern.models import Model\n{own}")
        monkeypatch.setitem(MODELS, "mine", runpy.run_path(str(path))["Mine"])
        told.append(describe_source(functions_of("mine")))
    assert [list(each) for each in told] == [["mine.py", "model.py"]] * 2
    assert told[0]["mine.py"] != told[1]["mine.py"]
    assert told[0]["model.py"] == told[1]["model.py"]
    path.unlink()
    assert describe_source(functions_of("mine"))["mine.py"] == "no file"
    assert list(describe_source(functions_of("lenet"))) == ["model.py", "small.py"]
    assert describe_source(functions_of("nothing")) == {}


def test_source_of_a_network_is_that_of_the_networks_it_derives_from_too(monkeypatch: pytest.MonkeyPatch):
    class Own(MODELS["lenet"]):
        @nnx.jit
        def __call__(self, images: jax.Array) -> jax.Array:
            return super().__call__(images)

    monkeypatch.setitem(MODELS, "own", Own)
    assert set(describe_source(functions_of("own"))) == {Path(__file__).name, "small.py", "model.py"}
