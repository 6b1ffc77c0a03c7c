"""What an exported program is, and what is not exported."""

from collections.abc import Callable

import jax
import numpy as np
import pytest
from flax import nnx

from jaxtern.models import create_model
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.recipe.run import RunSection
from jaxtern.training.run.exporting import export_network
from jaxtern.training.run.inputs import facts_of, open_inputs


@pytest.fixture(scope="module")
def make_program() -> Callable[..., tuple[jax.export.Exported, dict[str, np.ndarray]]]:
    """The program of a network on digits, and its weights."""

    def make(seed: int) -> tuple[jax.export.Exported, dict[str, np.ndarray]]:
        recipe = Recipe(run=RunSection(seed=seed))
        inputs = open_inputs(recipe.data)
        graph, variables = nnx.split(create_model(recipe.model.name, inputs.input_shape, 10, seed))
        artifact = export_network(recipe, facts_of(inputs.task, inputs.dataset), graph, nnx.to_pure_dict(variables))
        return jax.export.deserialize(bytearray(artifact.program)), artifact.weights

    return make


def test_program_takes_any_batch_on_cpus_and_gpus(make_program: Callable):
    program, _ = make_program(0)
    assert program.platforms == ("cpu", "cuda")
    images, (logits,) = program.in_avals[-1], program.out_avals
    assert (str(images.dtype), str(images.shape)) == ("uint8", "(b, 8, 8, 1)")
    assert (str(logits.dtype), str(logits.shape)) == ("float32", "(b, 10)")


def test_program_holds_no_weights(make_program: Callable):
    """They are arguments: another network's run in it."""
    (program, _), (other, weights) = make_program(0), make_program(1)
    assert len(program.mlir_module_serialized) < 20_000
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 1), np.uint8)
    np.testing.assert_array_equal(program.call(weights, images), other.call(weights, images))
