"""The transformer: what it has, what it may look at, and where its loss starts."""

import functools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxtern.models import MODELS, create_model, draw_weights
from jaxtern.models.transformer import Transformer
from jaxtern.training.recipe.selection import mask, path_of

pytestmark = pytest.mark.slow

CLASSES, LENGTH = 11, 12


@functools.cache
def make(dropout_rate: float = 0.5, **sizes: int) -> Transformer:
    options = {"depth": 2, "width": 16, "heads": 2} | sizes
    model = draw_weights(
        lambda: Transformer((LENGTH,), CLASSES, dropout_rate=dropout_rate, **options, rngs=nnx.Rngs(params=3))
    )
    assert isinstance(model, Transformer)
    return model


def weights(model: nnx.Module) -> Any:
    return nnx.to_pure_dict(nnx.split(model, nnx.Param)[1])


def by_path(tree: Any) -> dict[str, Any]:
    return {path_of(keys): leaf for keys, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def text(rows: int = 3, length: int = LENGTH) -> np.ndarray:
    return np.random.default_rng(rows).integers(0, CLASSES, (rows, length), np.int32)


def test_transformer_is_registered():
    model = nnx.eval_shape(lambda: create_model("transformer", (128,), 65, seed=0))
    assert MODELS["transformer"] is type(model) is Transformer
    assert sum(leaf.size for leaf in jax.tree.leaves(weights(model))) == 824_385


@pytest.mark.parametrize(("depth", "width", "heads"), [(2, 16, 2), (3, 24, 4), (1, 8, 1)])
def test_transformer_has_the_parameters_of_its_formula(depth: int, width: int, heads: int):
    model = make(depth=depth, width=width, heads=heads)
    blocks = depth * (12 * width**2 + 9 * width)
    expected = (CLASSES + LENGTH) * width + blocks + 2 * width + (width + 1) * CLASSES
    assert sum(leaf.size for leaf in jax.tree.leaves(weights(model))) == expected


def test_transformer_holds_weights_alone():
    """Neither moments nor states of random numbers, which a checkpoint would have to know of."""
    graph, _ = nnx.split(make(), nnx.Param)  # which refuses to leave anything out
    hash(graph)  # as an argument of compiled functions


def test_transformer_decays_the_kernels_of_its_linear_layers_alone():
    decayed = by_path(mask(Transformer.decayed, weights(make(depth=1))))
    block = ["attention/query", "attention/key", "attention/value", "attention/out", "widen", "narrow"]
    assert {path for path, yes in decayed.items() if yes} == {f"blocks/0/{name}/kernel" for name in block} | {
        "head/kernel"
    }


def test_transformer_starts_with_the_deviations_of_gpt2():
    params = by_path(weights(make(depth=3, width=64)))
    for path, leaf in params.items():
        values = np.asarray(leaf, np.float64).ravel()
        if path.endswith(("kernel", "embedding")):
            residual = re.search("(attention/out|narrow)/kernel", path)
            deviation = 0.02 / math.sqrt(6) if residual else 0.02
            assert abs(values.std() / deviation - 1) < 5 / math.sqrt(2 * values.size), path
            assert abs(values.mean()) < 5 * deviation / math.sqrt(values.size), path
        else:
            np.testing.assert_array_equal(values, path.endswith("scale"), path)


@pytest.mark.parametrize("place", [0, 1, 5, LENGTH - 1])
def test_transformer_logits_depend_on_no_later_character(place: int):
    model, before = make(), text()
    after = before.copy()
    after[:, place] = (before[:, place] + 1) % CLASSES
    first, second = np.asarray(model(before)), np.asarray(model(after))
    np.testing.assert_array_equal(first[:, :place], second[:, :place])
    assert np.all(np.any(first[:, place:] != second[:, place:], axis=-1))  # and on all that came before


def test_transformer_knows_the_order_of_characters():
    """Without positions, the last logits would be the same for any order of those before."""
    model, tokens = make(), text()
    swapped = np.roll(tokens[:, :-1], 1, axis=1)
    assert np.all(np.any(tokens[:, :-1] != swapped, axis=1))
    swapped = np.concatenate([swapped, tokens[:, -1:]], axis=1)
    assert np.abs(np.asarray(model(tokens))[:, -1] - np.asarray(model(swapped))[:, -1]).max() > 1e-6


def test_transformer_reads_a_shorter_text_as_the_beginning_of_a_longer():
    model, tokens = make(), text()
    np.testing.assert_allclose(model(tokens[:, :5]), np.asarray(model(tokens))[:, :5], rtol=0, atol=1e-6)


def test_transformer_treats_the_rows_of_a_batch_apart():
    model, tokens = make(), text(5)
    order = np.array([3, 0, 4, 2, 1])
    np.testing.assert_allclose(model(tokens[order]), np.asarray(model(tokens))[order], rtol=0, atol=1e-6)


def test_transformer_drops_by_its_key():
    model, tokens = make(), text()
    first, again, other = (np.asarray(model(tokens, jax.random.key(seed))) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.mean(first != other) > 0.99
    evaluated = np.asarray(model(tokens))
    np.testing.assert_array_equal(evaluated, model(tokens))
    assert np.mean(first != evaluated) > 0.99
    still = make(dropout_rate=0.0)
    np.testing.assert_array_equal(still(tokens, jax.random.key(1)), evaluated)


@pytest.mark.parametrize("key", [None, jax.random.key(0)], ids=["evaluation", "training"])
def test_transformer_gradient_reaches_every_parameter(key: jax.Array | None):
    model = make(dropout_rate=0.1)
    graph, params = nnx.split(model, nnx.Param)
    inputs, targets = text(8)[:, :-1], text(8)[:, 1:]

    def loss(params: Any) -> jax.Array:
        logits = nnx.merge(graph, params)(inputs, key)
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1))

    gradients = by_path(jax.jit(jax.grad(loss))(nnx.to_pure_dict(params)))
    assert gradients.keys() == by_path(weights(model)).keys()
    for path, gradient in gradients.items():
        if path == "positions/embedding":
            gradient = gradient[:-1]  # the last character of a window is no input
        assert np.abs(gradient).max() > 1e-5, path
        assert np.all(np.any(gradient.reshape(len(gradient), -1) != 0, axis=1)), path


def test_transformer_starts_at_the_loss_of_no_knowledge():
    model = create_model("transformer", (32,), 65, seed=1)
    tokens = np.random.default_rng(0).integers(0, 65, (4, 33), np.int32)
    logits = np.asarray(jax.nn.log_softmax(model(tokens[:, :-1])))
    loss = -np.mean(np.take_along_axis(logits, tokens[:, 1:, None], axis=-1))
    assert abs(loss - math.log(65)) < 0.05


def test_transformer_refuses_more_characters_than_it_has_positions():
    with pytest.raises(ValueError, match=r"^tokens.shape=\(3, 13\): must have at most 12 tokens a row"):
        make()(text(length=LENGTH + 1))


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("transformer", (28, 28, 1), "model.name='transformer': takes text, and preprocessing gives images"),
        ("lenet", (128,), "model.name='lenet': takes images, and preprocessing gives text"),
    ],
)
def test_model_refuses_what_it_cannot_read(name: str, shape: tuple[int, ...], words: str):
    with pytest.raises(ValueError, match=f"^{words}$"):
        create_model(name, shape, 10, seed=0)
