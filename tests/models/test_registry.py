"""What holds for every network that has a name."""

import re

import pytest
from flax import nnx

from jaxtern.models import MODELS, create_model


def shapes_of(name: str) -> tuple[type, dict]:
    """The network's variables, of which nothing is made, by kind and path."""
    shape = (16,) if MODELS[name].takes_text else (96, 96, 3)
    model = nnx.eval_shape(lambda: create_model(name, shape, 10, seed=0))
    return type(model), {"/".join(map(str, path)): leaf for path, leaf in nnx.to_flat_state(nnx.state(model))}


@pytest.mark.parametrize("name", MODELS)
def test_model_has_weights_and_moments_and_nothing_else(name: str):
    _, variables = shapes_of(name)
    assert {type(leaf) for leaf in variables.values()} <= {nnx.Param, nnx.BatchStat}


@pytest.mark.parametrize("name", MODELS)
def test_model_names_a_layer_of_its_own_as_the_last(name: str):
    model, variables = shapes_of(name)
    assert variables[f"{model.last_layer}/kernel"][...].shape[-1] == 10


@pytest.mark.parametrize("name", MODELS)
def test_model_decays_kernels_and_neither_biases_nor_norms(name: str):
    model, variables = shapes_of(name)
    decayed = [path for path in variables if any(re.fullmatch(pattern, path) for pattern in model.decayed)]
    assert decayed
    assert all(path.endswith("/kernel") for path in decayed)


def test_model_that_does_not_exist_is_named():
    with pytest.raises(ValueError, match="model='lenett': must be one of lenet"):
        create_model("lenett", (28, 28, 1), 10, seed=0)


@pytest.mark.parametrize(("name", "shape"), [("lenet", (28,)), ("transformer", (28, 28, 1))])
def test_model_of_images_takes_no_text_nor_the_other_way_round(name: str, shape: tuple[int, ...]):
    with pytest.raises(ValueError, match=f"model='{name}': takes (images|text), and preprocessing gives (text|images)"):
        create_model(name, shape, 10, seed=0)


def test_model_without_dropout_takes_no_rate_of_it():
    with pytest.raises(ValueError, match=r"dropout_rate=0.5: must be None, as model='lenet' has no dropout"):
        create_model("lenet", (28, 28, 1), 10, seed=0, dropout_rate=0.5)
